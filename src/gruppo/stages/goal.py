"""What a role (a model that is trained) maximises in one optimiser step: the terms of its objectives and penalties.

It is computed from statistics such as log-probabilities, without a model. The learner, the laws and the laboratory
share it. Terms are declared before the statistics are known, their denominators are counted over the whole step, and
dJ/dstatistic is all that the backward pass of a model needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.pieces.aggregate import weighted_sum
from gruppo.pieces.stop import stop
from gruppo.stages.check import readable_N
from gruppo.stages.context import Context
from gruppo.stages.method import Method, kind
from gruppo.stages.names import nearest
from gruppo.stages.readouts import Need, Stats
from gruppo.stages.select import reads_current, through_second_door
from gruppo.stages.terms import Counts, Term
from gruppo.stages.writers import writers_of

_AS_STORED = frozenset({"logp_gen_N", "temperature_N", "row_N"})  # in logp_gen, NaN means that nothing was sampled


@dataclass(frozen=True)
class Goal:
    """J of a role: its objectives and, for the policy, the penalties. Every writer learns by those of the policy."""

    method: Method
    ctx: Context
    role: str = "policy"
    penalties: bool = True

    @property
    def named(self) -> str:
        """The role as its objective names it: a writer is the policy there."""
        return "policy" if self.role in writers_of(self.method) else self.role

    @property
    def writes(self) -> bool:
        return self.named == "policy"

    def occupants(self) -> list[tuple[Any, bool]]:
        """(occupant, whether it also reads tokens that selection dropped), penalties last."""
        mine = [(o, "dropped" in o.reads) for o in self.method.objectives[self.named]]
        return mine + [(o, True) for o in self.method.penalties if self.writes and self.penalties]

    def needs(self) -> list[Need]:
        """What it reads from its own role at every optimiser step, with gradient; each once."""
        return [n for n in self._now() if n.role == self.named]

    def others(self) -> list[Need]:
        """What it reads from other roles at every optimiser step, without gradient, under their full names."""
        return [replace(n, when="batch") for n in self._now() if n.role != self.named]

    def _now(self) -> list[Need]:
        here = [o for o, _ in self.occupants()] + list(self.method.select if self.writes else ())
        return list(dict.fromkeys(n for o in here for n in o.needs(self.ctx) if n.when == "step"))

    def terms(self, batch: Batch) -> list[Term]:
        """The terms of all occupants, before any statistic is known."""
        out: list[Term] = []
        flags = {dropped for _, dropped in self.occupants()}
        clean = {dropped: self._clean(batch, Stats(), dropped)[0] for dropped in flags}
        for number, (occupant, dropped) in enumerate(self.occupants()):
            declared = occupant.terms(self.ctx, clean[dropped])
            out += [replace(t, mean=self._mean(t.mean), declared_by=number) for t in declared]
        names = [t.name for t in out]
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise ValueError(
                f"{self.method.name}: two terms of {self.role} are called {twice!r}, so one would hide the other in "
                "the log. Rename one of them, or leave one of the objectives out: method.objective-=KIND."
            )
        return out

    def values(self, batch: Batch, stats: Stats, terms: Sequence[Term]) -> list[Tensor]:
        """The values of these terms, in their order."""
        out: list[Tensor] = []
        flags = {dropped for _, dropped in self.occupants()}
        clean = {dropped: self._clean(batch, stats, dropped) for dropped in flags}
        for number, (occupant, dropped) in enumerate(self.occupants()):
            found = occupant(self.ctx, *clean[dropped])
            if not isinstance(found, Mapping):
                raise ValueError(
                    f"{kind(occupant)} returned {type(found).__name__}, so its values have no names. Return a dict of "
                    "the values of the terms that it declares, by name."
                )
            names = [t.name for t in terms if t.declared_by == number]
            if set(names) != set(found):
                strange = next(iter(set(found) ^ set(names)))
                raise ValueError(
                    f"{kind(occupant)} declares the terms {', '.join(names)} and gives values for {', '.join(found)}"
                    f"{nearest(strange, names)}: what is counted would not be what is maximised. Use the same names."
                )
            out += [found[name] for name in names]
        return out

    def fused(self, terms: Sequence[Term]) -> bool:
        """Whether gradients of micro-batches add up: no row depends on another sequence, and selection is done."""
        chain = self.method.select if self.writes else ()
        current = any(hasattr(o, "tokens") and reads_current(self.ctx, o) for o in chain)
        return not current and all(t.additive and t.at in "NKS" for t in terms)

    def selected(self, batch: Batch, stats: Stats) -> Batch:
        """After the selection of tokens that reads current statistics, without gradient."""
        chain = self.method.select if self.writes else ()
        fixed = Stats({k: stop(v) for k, v in stats.items()})
        return through_second_door(self.ctx, chain, batch, fixed, current=True)

    def counts(self, batch: Batch, terms: Sequence[Term]) -> Counts:
        """The denominators of an optimiser step on this batch."""
        return Counts({t.name: t.count(batch) for t in terms})

    def weights(self, batch: Batch, terms: Sequence[Term], counts: Counts) -> list[Tensor]:
        """The weight of each row of each term, under the counts of the whole optimiser step."""
        return [t.weights(batch, counts.of[t.name]) for t in terms]

    def whole(self, batch: Batch, stats: Stats) -> "Sum":
        """J of a whole optimiser step."""
        batch = self.selected(batch, stats)
        terms = self.terms(batch)
        weights = self.weights(batch, terms, self.counts(batch, terms))
        out = Sum(terms, weights)
        out.value = out.add(self.values(batch, stats, terms), weights, stats)
        return out

    def slopes(
        self, batch: Batch, leaves: Mapping[str, Tensor], scale: float = 1.0, fixed: Mapping[str, Tensor] | None = None
    ) -> "tuple[dict[str, Tensor], Sum]":
        """scale · dJ/dstatistic over the whole step, for each leaf that J depends on; `fixed` are of other roles."""
        total = self.whole(batch, Stats({**leaves, **(fixed or {})}))
        found = torch.autograd.grad(scale * total.value, list(leaves.values()), allow_unused=True)
        reached: list[Tensor | None] = list(found)
        return {k: g for k, g in zip(leaves, reached, strict=True) if g is not None}, total

    def _mean(self, mean: str | float) -> str | float:
        """`episode_sum/max_tokens` divides by the longest answer that the run allows."""
        if isinstance(mean, str) and mean.endswith("/max_tokens"):
            return f"{mean.removesuffix('max_tokens')}{self.ctx.sampling.max_tokens}"
        return mean

    def _clean(self, batch: Batch, stats: Stats, dropped: bool) -> tuple[Batch, Stats]:
        """Only what may be learned from. Roles other than the policy always read tokens that selection dropped."""
        alive_N = batch.spread(batch.alive_E, "E", "N") & readable_N(self.method, batch)
        return _clean(batch, stats, alive_N & batch.keep_N if self.writes and not dropped else alive_N)


class Sum:
    """J, added up part by part; `totals` are the means of the terms without their coefficients, for the log.

    `value` is J itself if the whole step came at once.
    """

    def __init__(self, terms: Sequence[Term], weights: Sequence[Tensor]) -> None:
        self.terms, self.weights = terms, weights
        self.value = torch.zeros(())
        self.totals: dict[str, Tensor] = {}

    def pairs(self) -> list[tuple[Term, Tensor]]:
        return list(zip(self.terms, self.weights, strict=True))

    def add_micro(self, values: Sequence[Tensor], micro: Batch, stats: Mapping[str, Tensor]) -> Tensor:
        """The part of J of a micro-batch, with the weights of the whole step."""
        rows = [micro.columns[f"row_{t.at}"] for t in self.terms]
        terms = [replace(t, coef=t.coef[r]) if isinstance(t.coef, Tensor) and t.coef.dim() else t
                 for t, r in zip(self.terms, rows, strict=True)]  # fmt: skip
        return self.add(values, [w[r] for w, r in zip(self.weights, rows, strict=True)], stats, terms)

    def add(
        self,
        values: Sequence[Tensor],
        weights: Sequence[Tensor],
        stats: Mapping[str, Tensor],
        terms: Sequence[Term] | None = None,
    ) -> Tensor:
        """The part of J of these rows."""
        part = zero_of(stats)
        for term, value, weight in zip(self.terms if terms is None else terms, values, weights, strict=True):
            if not term.logged_only:
                part = part + term.total(value, weight)
            plain = weighted_sum(value.detach(), weight)
            self.totals[term.name] = self.totals.get(term.name, torch.zeros_like(plain)) + plain
        return part


def zero_of(stats: Mapping[str, Tensor]) -> Tensor:
    """0, with a graph: a step without rows to learn from still has a gradient, which is 0."""
    return sum((0.0 * torch.nan_to_num(x).sum() for x in stats.values()), torch.zeros(()))  # type: ignore[return-value]


def _clean(batch: Batch, stats: Stats, alive_N: Tensor) -> tuple[Batch, Stats]:
    """Rows that are not alive become 0, so that NaN and infinities there reach neither values nor gradients."""

    def zero(x: Tensor) -> Tensor:
        return torch.where(alive_N.view(-1, *[1] * (x.dim() - 1)), x, torch.zeros((), dtype=x.dtype, device=x.device))

    columns = {
        name: zero(x)
        for name, x in batch.columns.items()
        if name.endswith("_N") and x.is_floating_point() and name not in _AS_STORED
    }
    return batch.with_columns(**columns), Stats({k: zero(v) if k.endswith("_N") else v for k, v in stats.items()})
