"""The learner: from a batch to a gradient to a step, exactly the same for any cut into micro-batches.

Additive terms run in one fused pass: weights are counted over the whole optimiser step, then each micro-batch adds
its rows. Objectives that couple rows take two: a forward without gradient gives the statistics as leaves, autograd
gives dJ/dstatistic over the whole step, and the micro-batches back-propagate Σ slope · statistic. Several ranks share
out the micro-batches of either way, and add statistics and gradients.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from gruppo.data import Batch, micro_rows
from gruppo.policies import learned_state, load_learned
from gruppo.policies.memory import free_memory, out_of_memory
from gruppo.stages import Context, Method, Need, Stats
from gruppo.stages.goal import Goal, Sum, zero_of
from gruppo.stages.schedule import Sched
from gruppo.train.cast import average
from gruppo.train.forward import rows_of, serve, serve_into
from gruppo.train.optim import MasterAdamW
from gruppo.train.ranks import Ranks
from gruppo.train.timing import Clock

T = TypeVar("T")
Cut = Sequence[Tensor] | None


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

    def merge(self, other: "Tally") -> None:
        for name, value in other.sums.items():
            self.add(name, value, other.counts[name])

    def most(self, name: str, value: float) -> None:
        """The largest value so far, which has no mean."""
        self.sums[name], self.counts[name] = max(self.sums.get(name, 0.0), value), 1.0

    def means(self) -> dict[str, float]:
        return {k: v / self.counts[k] if self.counts[k] else 0.0 for k, v in self.sums.items()}


class Micros:
    """(micro-batch, whether its rows count), cut when they are needed: only one of them takes memory."""

    def __init__(self, batch: Batch, parts: Sequence[tuple[Tensor, bool]]) -> None:
        self.batch, self.parts = batch, parts

    def __iter__(self) -> Iterator[tuple[Batch, bool]]:
        return ((self.batch.micro(rows_S), counts) for rows_S, counts in self.parts)


class Learner:
    """Trains the roles of a method. `ranks` are the processes that learn together."""

    def __init__(
        self,
        method: Method,
        models: Mapping[str, Any],
        config: OptimConfig,
        say: Callable[[str], None] = print,
        ranks: Ranks | None = None,
    ) -> None:
        self.method, self.models, self.config, self.say = method, models, config, say
        self.ranks = ranks or Ranks()
        self.micro_tokens = config.micro_tokens  # less once memory has run out
        self.trained = [r for r in method.objectives if method.cast[r].train]
        self.optimisers = {r: self._optimiser(models[r]) for r in self.trained}
        self.ctx = Context()
        self.tally = Tally()
        self.clock = Clock()
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

    def grad(
        self,
        role: str,
        batch: Batch,
        coef: float = 1.0,
        cut: Cut = None,
        *,
        penalties: bool = True,
        two_pass: bool = False,
        report: bool = True,
    ) -> None:
        """Leave −coef · dJ in the .grad of the role's parameters.

        cut       the sequences of each micro-batch, instead of a cut by `micro_tokens`
        two_pass  take the way of objectives that couple rows, also where one fused pass would do
        report    count the terms in the metrics of the step
        """
        goal = Goal(self.method, self.ctx, role, penalties)
        made = self._within_memory(batch, lambda: self._grad(goal, batch, coef, cut, two_pass))
        self.ranks.added(p.grad for p in self._params(role) if p.grad is not None)
        if report:
            self.tally.merge(made)

    def gradient(self, role: str, batch: Batch, **options: Any) -> Tensor:
        """What `grad` leaves, as one vector. Nothing is reported, and no gradient is left."""
        self.grad(role, batch, report=False, **options)
        params = self._params(role)
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in params])
        self.optimisers[role].zero_grad(set_to_none=True)
        return flat

    def read(self, role: str, batch: Batch, needs: Sequence[Need], grad: bool = False) -> dict[str, Tensor]:
        """What a role says about a batch, as values; `old` is the policy at the start of the step."""
        model = self.models["policy" if role == "old" else role]
        return self._within_memory(
            batch, lambda: self._statistics(model, batch, needs, self._micros(batch, None), grad)
        )

    def apply(self, role: str, lr: float | None = None) -> None:
        """Clip and step. A gradient that is not finite is dropped and counted; three in a row end the run."""
        with self.clock("optimiser"):
            optimiser = self.optimisers[role]
            norm = float(torch.nn.utils.clip_grad_norm_(self._params(role), self.config.clip_norm))
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
            for p, state in zip(self._params(role), snapshot["optim"], strict=True):
                self.optimisers[role].state[p] = _copy(state)

    def copy(self, source: str, target: str, tau: float = 1.0) -> None:
        """target ← (1 - tau) target + tau source."""
        average(self.models[source], self.models[target], tau)

    # what updates may read

    def lr(self, role: str) -> float:
        own = self.method.cast[role].lr
        return self.ctx.at(own if own else self.config.lr)

    def moments(self, role: str) -> list[dict[str, Tensor]]:
        """Adam's first and second moments, parameter by parameter."""
        return [dict(self.optimisers[role].state[p]) for p in self._params(role)]

    def _params(self, role: str) -> list[Any]:
        return self.optimisers[role].param_groups[0]["params"]

    # how a gradient is made

    def _grad(self, goal: Goal, batch: Batch, coef: float, cut: Cut, two_pass: bool) -> Tally:
        self.optimisers[goal.role].zero_grad(set_to_none=True)
        terms = goal.terms(batch)
        micros, made = self._micros(batch, cut), Tally()
        if goal.fused(terms) and not two_pass:
            total = Sum(terms, [t.weights(batch) for t in terms])
            self._fused(goal, micros, total, coef, made)
        else:
            total = self._two_passes(goal, batch, micros, coef, made)
        for term, weight in zip(total.terms, total.weights, strict=True):
            # Objectives are averaged over optimiser steps, shares (terms with coefficient 0) over their rows.
            count = float((weight > 0).sum()) if term.logged_only else 1.0
            made.add(term.name, float(total.totals[term.name]) * count, count)
        return made

    def _micros(self, batch: Batch, cut: Cut) -> Micros:
        """The micro-batches of this rank."""
        size = self.ranks.size
        shares = micro_rows(batch, self.micro_tokens, size) if cut is None else [cut[i::size] for i in range(size)]
        filler = torch.zeros(min(batch.size("S"), 1), dtype=torch.int64, device=batch.device)
        return Micros(batch, self.ranks.mine(shares, filler))

    def _fused(self, goal: Goal, micros: Micros, total: Sum, coef: float, made: Tally) -> None:
        needs = goal.needs()
        for micro, counts in micros:
            with self.clock("forward"):
                stats = Stats(serve(self.models[goal.role], micro, needs, grad=True, cast=self.models))
            if not counts:
                value = zero_of(stats)
            else:
                micro = self._with_old(goal, micro, stats, made)
                value = total.add_micro(goal.values(micro, stats, total.terms), micro, stats)
            with self.clock("backward"):
                (-coef * value).backward()
        total.totals = {t.name: total.totals.get(t.name, w.new_zeros(())) for t, w in total.pairs()}
        self.ranks.added(total.totals.values())
        self.ranks.added_tally(made.sums, made.counts, "sampler_gap")

    def _two_passes(self, goal: Goal, batch: Batch, micros: Micros, coef: float, made: Tally) -> Sum:
        model, needs = self.models[goal.role], goal.needs()
        with self.clock("forward"):
            leaves = self._statistics(model, batch, needs, micros)
        leaves = {k: v.requires_grad_() for k, v in leaves.items()}
        batch = self._with_old(goal, batch, Stats(leaves), made)
        slopes, total = goal.slopes(batch, leaves, -coef)
        steep = [n for n in needs if n.column in slopes] or needs[:1]  # what has no slope is not read again
        for micro, counts in micros:
            with self.clock("forward"):
                now = serve(model, micro, steep, grad=True, cast=self.models)
            value = zero_of(now)
            for n in steep:  # a gradient of 0 is one, too
                slope = slopes.get(n.column)
                if slope is not None and counts:
                    value = value + (slope[rows_of(micro, n)] * now[n.column]).sum()
            with self.clock("backward"):
                value.backward()
        return total

    def _statistics(
        self, model: Any, batch: Batch, needs: Sequence[Need], micros: Micros, grad: bool = False
    ) -> dict[str, Tensor]:
        """What a model says of every row, as values: each rank reads its own rows, and all of them have all.

        `grad` computes them as training does.
        """
        out: dict[str, Tensor] = {}
        for micro, counts in micros:
            serve_into(out, model, batch, micro, needs, counts, self.models, grad)
        self.ranks.added(out.values())
        return out

    def _with_old(self, goal: Goal, batch: Batch, stats: Stats, made: Tally) -> Batch:
        """The lazy log π_old: with one optimiser step a batch it is log π itself, and costs no forward."""
        if goal.role != "policy" or "logp_old_N" in batch.columns or "logp_N" not in stats:
            return batch
        logp_old_N = stats.logp_N.detach()
        sampler_gap(made, batch, logp_old_N)
        return batch.with_columns(logp_old_N=logp_old_N)

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
            try:
                return attempt()
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
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


def sampler_gap(tally: Tally, batch: Batch, logp_old_N: Tensor) -> None:
    """|log π_old − log π_gen| where the same thing was computed twice: by the sampler and by the trainer."""
    known = batch.on_policy_N & torch.isfinite(batch.logp_gen_N)
    here = known & batch.newest_N & ~batch.spread(batch.replayed_E, "E", "N")
    gap = (logp_old_N - batch.logp_gen_N)[here].abs()
    if len(gap):
        tally.add("sampler_gap", float(gap.sum()), len(gap))
        tally.most("sampler_gap_max", float(gap.max()))


def _copy(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.detach().clone()
    if isinstance(x, Mapping):
        return {k: _copy(v) for k, v in x.items()}
    return [_copy(v) for v in x] if isinstance(x, list) else x
