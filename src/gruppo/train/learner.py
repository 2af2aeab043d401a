"""The learner: from a batch to a gradient to a step, exactly the same for any cut into micro-batches.

Additive terms run in one fused pass: weights are counted over the whole optimiser step, then each micro-batch adds
its rows. Objectives that couple rows (design 3.5) take two: a forward without gradient gives the statistics as
leaves, autograd gives dJ/dstatistic over the whole step, and the micro-batches back-propagate Σ weight · statistic.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from gruppo.data import Batch, micro_batches
from gruppo.pieces.aggregate import weighted_sum
from gruppo.policies import learned_state, load_learned
from gruppo.policies.memory import free_memory, out_of_memory
from gruppo.stages import Context, Method, Need, Stats, Term
from gruppo.stages.check import readable_N
from gruppo.stages.schedule import Sched
from gruppo.stages.select import through_second_door
from gruppo.train.cast import average
from gruppo.train.forward import places_of, serve, serve_all
from gruppo.train.optim import MasterAdamW
from gruppo.train.timing import Clock

T = TypeVar("T")
Cut = Sequence[Tensor] | None
_AS_STORED = frozenset({"logp_gen_N", "temperature_N", "row_N"})  # NaN in logp_gen says that nothing was sampled


@dataclass(frozen=True)
class OptimConfig:
    """AdamW and its surroundings."""

    lr: Sched = 1e-4  # a number or a schedule
    beta1: float = 0.9  # AdamW's
    beta2: float = 0.95  # AdamW's
    weight_decay: float = 0.0  # AdamW's
    clip_norm: float = 1.0  # largest norm of a gradient
    micro_tokens: int = 16384  # input tokens of one forward and backward; what is shared counts once
    share_prefixes: bool = True  # compute what sequences begin with alike once, where that is faster


@dataclass
class Tally:
    """Sums and counts of what the optimiser steps of one batch did; the logger divides (pitfall 29)."""

    sums: dict[str, float] = field(default_factory=dict[str, float])
    counts: dict[str, float] = field(default_factory=dict[str, float])

    def add(self, name: str, value: float, count: float = 1.0) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value
        self.counts[name] = self.counts.get(name, 0.0) + count

    def means(self) -> dict[str, float]:
        return {k: v / self.counts[k] if self.counts[k] else 0.0 for k, v in self.sums.items()}


class Learner:
    def __init__(
        self, method: Method, models: Mapping[str, Any], config: OptimConfig, say: Callable[[str], None] = print
    ) -> None:
        self.method, self.models, self.config, self.say = method, models, config, say
        self.micro_tokens = config.micro_tokens  # less once memory has run out
        self.trained = [r for r in method.objectives if method.cast[r].train]
        self.optimisers = {r: self._optimiser(models[r]) for r in self.trained}
        self.ctx = Context()
        self.penalties: Sequence[Any] = method.penalties  # those of the gradient that is being made
        self.tally = Tally()
        self.clock = Clock()
        self.two_pass = False  # laws set it: the slow way must agree with the fused one
        self.bad_steps = dict.fromkeys(self.trained, 0)  # in a row

    def _optimiser(self, model: Any) -> torch.optim.Optimizer:
        c, params = self.config, [p for p in model.parameters() if p.requires_grad]
        small = any(torch.finfo(p.dtype).bits < 32 for p in params)
        adam = MasterAdamW if small else torch.optim.AdamW
        return adam(params, lr=1.0, betas=(c.beta1, c.beta2), weight_decay=c.weight_decay, fused=True)

    def begin(self, ctx: Context) -> None:
        """Start of a batch: the context of its schedules, and an empty tally."""
        self.ctx, self.tally = ctx, Tally()

    # the six verbs

    def step(self, role: str, batch: Batch, coef: float = 1.0, lr: float | None = None, penalties: bool = True) -> None:
        """One optimiser step of a role on a batch; without `penalties`, of the objective alone."""
        self.grad(role, batch, coef, penalties=penalties)
        self.apply(role, lr)

    def grad(self, role: str, batch: Batch, coef: float = 1.0, cut: Cut = None, penalties: bool = True) -> None:
        """Leave −coef · dJ in the .grad of the role's parameters. `cut` names the sequences of each micro-batch."""
        self.penalties = self.method.penalties if penalties else ()
        try:
            if cut is not None:
                self._grad(role, batch, coef, cut)
            else:
                self._within_memory(batch, lambda: self._grad(role, batch, coef, None))
        finally:
            self.penalties = self.method.penalties

    def _grad(self, role: str, batch: Batch, coef: float, cut: Cut) -> None:
        self.optimisers[role].zero_grad(set_to_none=True)
        chain = self.method.select if role == "policy" else ()
        current = any(hasattr(o, "tokens") and o.current for o in chain)
        dry = self.terms(role, *self._placeholders(role, batch))
        weights = [t.weights(batch) for t in dry]
        fused = not self.two_pass and not current and all(t.additive and t.at in "NKS" for t in dry)
        if fused:
            self._fused(role, batch, dry, weights, coef, cut)
        else:
            self._two_passes(role, batch, coef, cut)

    def read(self, role: str, batch: Batch, needs: Sequence[Need], grad: bool = False) -> dict[str, Tensor]:
        """What a role says about a batch, as values; `old` is the policy at the start of the step."""
        model = self.models["policy" if role == "old" else role]

        def attempt() -> dict[str, Tensor]:
            return serve_all(model, batch, needs, micro_batches(batch, self.micro_tokens), self.models, grad)

        return self._within_memory(batch, attempt)

    def apply(self, role: str, lr: float | None = None) -> None:
        """Clip and step. A gradient that is not finite is dropped and counted; three in a row end the run."""
        with self.clock("optimiser"):
            optimiser = self.optimisers[role]
            params = optimiser.param_groups[0]["params"]
            norm = float(torch.nn.utils.clip_grad_norm_(params, self.config.clip_norm))
            self.tally.add(f"grad_norm_{role}" if role != "policy" else "grad_norm", norm)
            self._count_bad(role, norm)
            if norm == norm and norm != float("inf"):
                optimiser.param_groups[0]["lr"] = self.lr(role) if lr is None else lr
                self._step(optimiser)
            optimiser.zero_grad(set_to_none=True)

    def snapshot(self, role: str) -> dict[str, Any]:
        """Weights and optimiser of a role, to come back to."""
        optim = self.moments(role) if role in self.optimisers else None
        return {"weights": _copy(learned_state(self.models[role])), "optim": _copy(optim)}

    def restore(self, role: str, snapshot: Mapping[str, Any]) -> None:
        load_learned(self.models[role], snapshot["weights"])
        if snapshot["optim"] is not None:
            optimiser = self.optimisers[role]
            for p, state in zip(optimiser.param_groups[0]["params"], snapshot["optim"], strict=True):
                optimiser.state[p] = _copy(state)

    def copy(self, source: str, target: str, tau: float = 1.0) -> None:
        """target ← (1 - tau) target + tau source."""
        average(self.models[source], self.models[target], tau)

    # what updates may read

    def lr(self, role: str) -> float:
        own = self.method.cast[role].lr
        return self.ctx.at(own if own else self.config.lr)

    def moments(self, role: str) -> list[dict[str, Tensor]]:
        """Adam's first and second moments, parameter by parameter."""
        optimiser = self.optimisers[role]
        return [dict(optimiser.state[p]) for p in optimiser.param_groups[0]["params"]]

    # how a gradient is made

    def needs(self, role: str) -> list[Need]:
        """What the role's objective wants to know at every optimiser step, each once."""
        here = [self.method.objectives[role]]
        if role == "policy":
            here += [*self.penalties, *self.method.select]
        return list(dict.fromkeys(n for o in here for n in o.needs(self.ctx) if n.when == "step"))

    def terms(self, role: str, batch: Batch, stats: Stats) -> list[Term]:
        """The objective's terms and, for the policy, the penalties'. Rows that nothing may learn from read as 0.

        Selection of tokens is the policy's: another role learns from what it dropped, too.
        """
        alive = batch.spread(batch.alive_E, "E", "N") & readable_N(self.method, batch)
        mine = alive & batch.keep_N if role == "policy" else alive
        out = list(self.method.objectives[role](self.ctx, *_clean(batch, stats, mine)))
        if role == "policy" and self.penalties:
            clean = _clean(batch, stats, alive)
            out += [t for p in self.penalties for t in p(self.ctx, *clean)]
        return out

    def _placeholders(self, role: str, batch: Batch) -> tuple[Batch, Stats]:
        """Stand-ins with which additive terms give their masks: these depend on no statistic."""
        like = batch.weight_N
        rows = {"N": batch.size("N"), "K": batch.size("K"), "S": batch.size("S")}
        shapes = {n.column: len(batch.views[n.view].ids_M) if n.at == "M" else rows[n.at] for n in self.needs(role)}
        stats = Stats(
            {name: torch.full((n,), -1.0, dtype=like.dtype, device=like.device) for name, n in shapes.items()}
        )
        if "logp_old_N" not in batch.columns:
            batch = batch.with_columns(logp_old_N=torch.full_like(like, -1.0))
        return batch, stats

    def _micros(self, batch: Batch, cut: Cut) -> Iterable[Batch]:
        return (batch.micro(rows) for rows in cut) if cut is not None else micro_batches(batch, self.micro_tokens)

    def _step(self, optimiser: torch.optim.Optimizer) -> None:
        try:
            optimiser.step()
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise ValueError(
                "out of memory for the two moments that the optimiser keeps of every trained weight. Use "
                "model.lora.rank=16, which trains few weights, or a smaller model."
            ) from None

    def _within_memory(self, batch: Batch, attempt: Callable[[], T]) -> T:
        """Once more with smaller micro-batches when memory runs out: the result is the same for any cut."""
        while True:
            before = Tally(dict(self.tally.sums), dict(self.tally.counts))
            try:
                return attempt()
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
            self.tally = before
            self._smaller(batch)

    def _smaller(self, batch: Batch) -> None:
        rows = max(len(view.ids_M) for view in batch.views.values())
        longest = max(int(torch.bincount(view.seq_M).max()) for view in batch.views.values())
        now = min(self.micro_tokens, rows)
        for optimiser in self.optimisers.values():
            optimiser.zero_grad(set_to_none=True)
        free_memory()
        if now <= longest:
            raise ValueError(
                f"out of memory with one sequence of {longest} tokens at a time: smaller micro-batches cannot help. "
                "Use model.checkpointing=true, model.lora.rank=16, fewer sampling.max_tokens, or on a GPU "
                "model.dtype=bfloat16."
            )
        self.micro_tokens = max(now // 2, longest)
        self.say(
            f"out of memory: micro-batches of {self.micro_tokens} tokens instead of {now} from here on. The gradient "
            f"is the same; optim.micro_tokens={self.micro_tokens} starts with it."
        )

    def _fused(
        self, role: str, batch: Batch, dry: Sequence[Term], weights: Sequence[Tensor], coef: float, cut: Cut
    ) -> None:
        needs, totals = self.needs(role), dict[str, Tensor]()
        for micro in self._micros(batch, cut):
            with self.clock("forward"):
                stats = Stats(serve(self.models[role], micro, needs, grad=True, cast=self.models))
            micro = self._with_old(role, micro, stats)
            terms = self.terms(role, micro, stats)
            mine = [w[_rows(micro, t)] for t, w in zip(terms, weights, strict=True)]
            value = _add_up(terms, mine, stats, totals)
            with self.clock("backward"):
                (-coef * value).backward()
        self._report(totals, dry, weights)

    def _two_passes(self, role: str, batch: Batch, coef: float, cut: Cut) -> None:
        needs, totals = self.needs(role), dict[str, Tensor]()
        leaves = self._leaves(role, batch, needs, cut)
        stats = Stats(leaves)
        batch = self._with_old(role, batch, stats)
        if role == "policy":
            fixed = Stats({k: v.detach() for k, v in stats.items()})
            batch = through_second_door(self.ctx, self.method.select, batch, fixed, current=True)
        terms = self.terms(role, batch, stats)
        weights = [t.weights(batch) for t in terms]
        value = _add_up(terms, weights, stats, totals)
        slopes = torch.autograd.grad(-coef * value, list(leaves.values()), allow_unused=True)
        steep = [(n, slope) for n, slope in zip(needs, slopes, strict=True) if slope is not None]
        steep = steep or [(needs[0], torch.zeros_like(leaves[needs[0].column]))]  # a gradient of 0 is one, too
        for micro in self._micros(batch, cut):
            with self.clock("forward"):  # what has no slope is not read again
                now = serve(self.models[role], micro, [n for n, _ in steep], grad=True, cast=self.models)
            total = _zero(now)
            for n, slope in steep:
                total = total + (slope[places_of(micro, n)] * now[n.column]).sum()
            with self.clock("backward"):
                total.backward()
        self._report(totals, terms, weights)

    def _leaves(self, role: str, batch: Batch, needs: Sequence[Need], cut: Cut) -> dict[str, Tensor]:
        """Statistics of the whole step from a forward without gradient, as leaves of a new graph."""
        with self.clock("forward"):
            out = serve_all(self.models[role], batch, needs, self._micros(batch, cut), self.models)
        return {k: v.requires_grad_() for k, v in out.items()}

    def _with_old(self, role: str, batch: Batch, stats: Stats) -> Batch:
        """The lazy logp_old: with one optimiser step a batch it is logp itself, and costs no forward."""
        if role != "policy" or "logp_old_N" in batch.columns or "logp_N" not in stats:
            return batch
        logp_old_N = stats.logp_N.detach()
        sampler_gap(self.tally, batch, logp_old_N)
        return batch.with_columns(logp_old_N=logp_old_N)

    def _report(self, totals: Mapping[str, Tensor], terms: Sequence[Term], weights: Sequence[Tensor]) -> None:
        """Objectives are averaged over optimiser steps, shares (terms with coefficient 0) over their rows."""
        for term, weight in zip(terms, weights, strict=True):
            count = float((weight > 0).sum()) if _silent(term) else 1.0
            self.tally.add(term.name, float(totals[term.name]) * count, count)

    def _count_bad(self, role: str, norm: float) -> None:
        if norm == norm and norm != float("inf"):
            self.bad_steps[role] = 0
            return
        self.bad_steps[role] += 1
        first = "bad_gradients" not in self.tally.sums
        self.tally.add("bad_gradients", 1.0, count=float(first))  # how many, so no mean
        if self.bad_steps[role] >= 3:
            raise ValueError(
                f"gradient norm of {role} is {norm} for the third step in a row: the weights would be "
                "lost. Lower optim.lr "
                "or the coefficients, and look at the last episodes; the last checkpoint is untouched."
            )


def _clean(batch: Batch, stats: Stats, alive_N: Tensor) -> tuple[Batch, Stats]:
    """Numbers of dead rows read as 0, so that NaN and infinities there reach neither value nor gradient."""

    def zero(x: Tensor) -> Tensor:
        return torch.where(alive_N.view(-1, *[1] * (x.dim() - 1)), x, torch.zeros((), dtype=x.dtype, device=x.device))

    columns = {
        name: zero(x)
        for name, x in batch.columns.items()
        if name.endswith("_N") and x.is_floating_point() and name not in _AS_STORED
    }
    return batch.with_columns(**columns), Stats({k: zero(v) if k.endswith("_N") else v for k, v in stats.items()})


def _rows(micro: Batch, term: Term) -> Tensor:
    return micro.columns[f"row_{term.at}"]


def _zero(stats: Mapping[str, Tensor]) -> Tensor:
    """0 with a graph: an optimiser step without a row to learn from still has a gradient, of 0."""
    return sum((0.0 * torch.nan_to_num(x).sum() for x in stats.values()), torch.zeros(()))  # type: ignore[return-value]


def _silent(term: Term) -> bool:
    """A share to be logged, not maximised."""
    return isinstance(term.coef, float | int) and term.coef == 0


def _add_up(terms: Sequence[Term], weights: Sequence[Tensor], stats: Stats, totals: dict[str, Tensor]) -> Tensor:
    """J of these rows; `totals` collects each term's own mean, without its coefficient, for the log."""
    value = _zero(stats)
    for term, weight in zip(terms, weights, strict=True):
        if not _silent(term):
            value = value + term.total(weight)
        plain = weighted_sum(term.value.detach(), weight)
        totals[term.name] = totals.get(term.name, torch.zeros_like(plain)) + plain
    return value


def sampler_gap(tally: Tally, batch: Batch, logp_old_N: Tensor) -> None:
    """|log π_old − log π_gen| where the same thing was computed twice: by the sampler and by the trainer."""
    known = batch.on_policy_N & torch.isfinite(batch.logp_gen_N)
    here = known & batch.newest_N & ~batch.spread(batch.replayed_E, "E", "N")
    gap = (logp_old_N - batch.logp_gen_N)[here].abs()
    if len(gap):
        tally.add("sampler_gap", float(gap.sum()), len(gap))
        tally.sums["sampler_gap_max"] = max(tally.sums.get("sampler_gap_max", 0.0), float(gap.max()))
        tally.counts["sampler_gap_max"] = 1.0


def _copy(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.detach().clone()
    if isinstance(x, Mapping):
        return {k: _copy(v) for k, v in x.items()}
    return [_copy(v) for v in x] if isinstance(x, list) else x
