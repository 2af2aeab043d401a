"""The learner: from a batch to a gradient and an optimiser step, the same for any cut into micro-batches.

Additive terms take one fused pass: weights are counted over the whole optimiser step, then each micro-batch adds its
rows. Objectives that couple rows take two passes: a forward pass without gradient gives the statistics, autograd gives
dJ/dstatistic over the whole step, and the micro-batches back-propagate Σ slope · statistic. Several ranks share the
micro-batches in both cases, and add up statistics and gradients.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from gruppo.data import Batch, micro_rows
from gruppo.fields import Checked, setting
from gruppo.policies.memory import free_memory, out_of_memory
from gruppo.stages import Context, Method, Need, Never, Stats
from gruppo.stages.cast import ADAM
from gruppo.stages.goal import Goal, Sum, zero_of
from gruppo.stages.schedule import Sched
from gruppo.stages.writers import by_writer, cast_of, cut_of, writers_of, written
from gruppo.train.cast import average
from gruppo.train.forward import put_into, rows_of, serve, serve_into
from gruppo.train.keeping import Keeping
from gruppo.train.metrics import refuse_metrics, term_name
from gruppo.train.optim import AdamW
from gruppo.train.ranks import Ranks, whole
from gruppo.train.tally import Tally
from gruppo.train.timing import Clock

T = TypeVar("T")
LARGEST_NORM = 1e9  # of weights: that of the largest models is below 1e5, and float32 ends soon when layers multiply
Cut = Sequence[Tensor] | None
Parts = Sequence[tuple[Tensor, bool]]  # the sequences of each micro-batch of this rank, and whether they count


@dataclass(frozen=True)
class OptimConfig(Checked):
    """Settings of the optimiser."""

    lr: Sched = setting(1e-4, low=0, high=1, why=ADAM)  # a number or a schedule
    beta1: float = setting(0.9, low=0, below=1)  # AdamW's
    beta2: float = setting(0.95, low=0, below=1)  # AdamW's
    weight_decay: float = setting(0.0, low=0)  # AdamW's
    clip_norm: float = setting(1.0, low=1e-12, infinite=True)  # largest norm of the gradient; inf: any, no clipping
    micro_tokens: int = setting(16384, low=1)  # input tokens per micro-batch; shared prefixes count once
    share_prefixes: bool = True  # compute shared prefixes of sequences once, where that is faster


class Learner(Keeping):
    """Trains the roles of a method, on one or several ranks."""

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
        self.micro_tokens = config.micro_tokens  # smaller after running out of memory
        self.writers = writers_of(method)  # each learns by the policy's objective, from what it wrote
        trained = [r for r in method.objectives if method.cast[r].train]
        self.trained = trained + [r for r in self.writers if r not in trained]
        self.optimisers = {r: self._optimiser(models[r]) for r in self.trained}
        self.ctx = Context()
        self.tally = Tally()
        self.clock = Clock()
        self.bad_steps = dict.fromkeys(self.trained, 0)  # in a row
        self.version: int | None = None  # of the weights, where somebody counts
        self.moved: set[str] = set()  # roles whose weights have changed since the engine was last told

    def _optimiser(self, model: Any) -> torch.optim.Optimizer:
        c, params = self.config, [p for p in model.parameters() if p.requires_grad]
        return AdamW(params, lr=1.0, betas=(c.beta1, c.beta2), weight_decay=c.weight_decay)

    def begin(self, ctx: Context) -> None:
        """Start a batch: set the context for schedules, and clear the tally."""
        self.ctx, self.tally = ctx, Tally()

    # what updates may call

    def step(self, role: str, batch: Batch, coef: float = 1.0, lr: float | None = None, penalties: bool = True) -> None:
        """One optimiser step of a role on a batch; `penalties=False` leaves the penalties out.

        A writer that wrote nothing of it takes none.
        """
        if written(self.method, batch, role).size("S") or not batch.size("S"):
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
        """Write −coef · dJ to the .grad of the role's parameters; of a writer, from the sequences that it wrote.

        cut       the sequences of each micro-batch, instead of a cut by `micro_tokens`
        two_pass  take two passes even if one fused pass would do
        report    log the terms as metrics of the step
        """
        goal = Goal(self.method, self.ctx, role, penalties)
        cut = None if cut is None else cut_of(self.method, batch, role, list(cut))
        mine = written(self.method, batch, role)
        if not mine.size("S") and batch.size("S"):
            self.optimisers[role].zero_grad(set_to_none=True)
            return
        made = self._within_memory(mine, lambda: self._grad(goal, mine, coef, cut, two_pass))
        self.ranks.added(p.grad for p in self._params(role) if p.grad is not None)
        if report:
            self.tally.merge(made)

    def gradient(self, role: str, batch: Batch, **options: Any) -> Tensor:
        """The result of `grad` as one vector; .grad is cleared, and nothing is logged."""
        self.grad(role, batch, report=False, **options)
        params = self._params(role)
        flat = torch.cat([whole(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in params])
        self.optimisers[role].zero_grad(set_to_none=True)
        return flat

    def read(self, role: str, batch: Batch, needs: Sequence[Need], grad: bool = False) -> dict[str, Tensor]:
        """What a role says about a batch, without a graph; `old` is the policy at the start of the step.

        Rows of another writer are read from that writer, and from its own reference.
        """
        out: dict[str, Tensor] = {}
        for writer, part in by_writer(self.method, batch):
            found = self._within_memory(
                part, lambda p=part, w=writer: self._statistics(role, p, needs, self._parts(p, None), grad, w)
            )
            if part is batch:
                return found
            put_into(out, batch, part, needs, found)
        return out

    def apply(self, role: str, lr: float | None = None) -> None:
        """Clip and step. A gradient that is not finite is skipped and counted; three in a row end the run."""
        with self.clock("optimiser"):
            optimiser = self.optimisers[role]
            norm = float(torch.nn.utils.clip_grad_norm_(self._params(role), self.config.clip_norm))
            self.tally.add(f"grad_norm_{role}" if role != "policy" else "grad_norm", norm)
            self._count_bad(role, norm)
            if math.isfinite(norm):
                optimiser.param_groups[0]["lr"] = self.lr(role) if lr is None else lr
                self._step(optimiser)
                self.moved.add(role)
            optimiser.zero_grad(set_to_none=True)

    @torch.no_grad()
    def refuse_broken(self) -> None:
        """Ends the run if a step has made weights that are not finite, or far too large to give finite logits."""
        for role in self.trained:
            norm = float(torch.nn.utils.get_total_norm([p.data for p in self._params(role)]))  # not one by one
            if not norm < LARGEST_NORM:
                raise ValueError(
                    f"the weights of {role} have left the range of numbers (their norm is {norm:g}), so this step is "
                    f"lost and not saved. Lower optim.lr (it was {self.lr(role):g} here), optim.clip_norm "
                    f"({self.config.clip_norm:g}) or optim.weight_decay ({self.config.weight_decay:g}); with "
                    "--allow-changes a run goes on from its last checkpoint."
                )

    def copy(self, source: str, target: str, tau: float = 1.0) -> None:
        """target ← (1 - tau) target + tau source, for a target that is trained or that the update moves."""
        role = self.method.cast[target]
        if not role.train and isinstance(role.refresh, Never):
            raise ValueError(
                f"copy({source!r}, {target!r}): role {target!r} keeps its weights, so no checkpoint would hold what it "
                f"becomes. Say that it moves: but(cast={{{target!r}: Role(refresh=ByUpdate(), …)}})."
            )
        average(self.models[source], self.models[target], tau)
        self.moved.add(target)

    # what updates may read

    def lr(self, role: str) -> float:
        own = self.method.cast[role].lr
        return self.ctx.at(own if own else self.config.lr)

    # how a gradient is made

    def _grad(self, goal: Goal, batch: Batch, coef: float, cut: Cut, two_pass: bool) -> Tally:
        self.optimisers[goal.role].zero_grad(set_to_none=True)
        terms = goal.terms(batch)
        refuse_metrics(self.method.name, goal.role, [t.name for t in terms])
        parts, made = self._parts(batch, cut), Tally()
        if goal.fused(terms) and not two_pass:
            total = Sum(terms, goal.weights(batch, terms, goal.counts(batch, terms)))
            self._fused(goal, batch, parts, total, coef, made)
        else:
            total = self._two_passes(goal, batch, parts, coef, made)
        for term, weight in total.pairs():
            # Terms are averaged over optimiser steps; those that are only logged, over their rows.
            count = float((weight > 0).sum()) if term.logged_only else 1.0
            made.add(term_name(goal, term.name), float(total.totals[term.name]) * count, count)
        return made

    def _parts(self, batch: Batch, cut: Cut) -> Parts:
        size = self.ranks.size
        shares = micro_rows(batch, self.micro_tokens, size) if cut is None else [cut[i::size] for i in range(size)]
        filler = torch.zeros(min(batch.size("S"), 1), dtype=torch.int64, device=batch.device)
        return self.ranks.mine(shares, filler)

    def _fused(self, goal: Goal, batch: Batch, parts: Parts, total: Sum, coef: float, made: Tally) -> None:
        needs = goal.needs()
        for rows_S, counts in parts:
            micro = batch.micro(rows_S)
            with self.clock("forward"):
                stats = Stats(serve(self.models[goal.role], micro, needs, grad=True, cast=self._cast(goal.role)))
                stats.update(self._of_others(goal, micro))
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

    def _two_passes(self, goal: Goal, batch: Batch, parts: Parts, coef: float, made: Tally) -> Sum:
        model, needs, cast = self.models[goal.role], goal.needs(), self._cast(goal.role)
        with self.clock("forward"):
            leaves = self._statistics(goal.named, batch, needs, parts, writer=goal.role)
            fixed = self._of_others(goal, batch, parts)
        leaves = {k: v.requires_grad_() for k, v in leaves.items()}
        slopes, total = goal.slopes(self._with_old(goal, batch, Stats(leaves), made), leaves, -coef, fixed)
        steep = [n for n in needs if n.column in slopes] or needs[:1]  # what has no slope is not read again
        for rows_S, counts in parts:
            micro = batch.micro(rows_S)
            with self.clock("forward"):
                now = serve(model, micro, steep, grad=True, cast=cast)
            value = zero_of(now)
            for n in steep:
                slope = slopes.get(n.column)
                if slope is not None and counts:
                    value = value + (slope[rows_of(micro, n)] * now[n.column]).sum()
            with self.clock("backward"):
                value.backward()
        return total

    def _cast(self, role: str) -> Mapping[str, Any]:
        """The models by name, as they are for the rows that a role learns from."""
        return cast_of(self.models, role if role in self.writers else "policy")

    def _statistics(
        self, role: str, batch: Batch, needs: Sequence[Need], parts: Parts, grad: bool = False, writer: str = "policy"
    ) -> dict[str, Tensor]:
        """The needs at every row, without a graph: each rank reads its own rows, and all ranks get all of them.

        `grad` computes them in the same way as training does.
        """
        out, cast = dict[str, Tensor](), self._cast(writer)
        for rows_S, counts in parts:
            serve_into(out, cast[role], batch, batch.micro(rows_S), needs, counts, cast, grad)
        self.ranks.added(out.values())
        return out

    def _of_others(self, goal: Goal, batch: Batch, parts: Parts | None = None) -> dict[str, Tensor]:
        """What other roles say now, without gradient; a whole batch is read in parts."""
        out, needs, cast = dict[str, Tensor](), goal.others(), self._cast(goal.role)
        for role in dict.fromkeys(n.role for n in needs):
            mine = [n for n in needs if n.role == role]
            if parts is None:
                out |= serve(cast[role], batch, mine, cast=cast)
            else:
                out |= self._statistics(role, batch, mine, parts, writer=goal.role)
        return out

    def _with_old(self, goal: Goal, batch: Batch, stats: Stats, made: Tally) -> Batch:
        """Add log π_old if it was left out: with one optimiser step per batch it is log π itself."""
        if not goal.writes or "logp_old_N" in batch.columns or "logp_N" not in stats:
            return batch
        logp_old_N = stats.logp_N.detach()
        sampler_gap(made, batch, logp_old_N, self.version)
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
        """Try again with smaller micro-batches if memory runs out; the result is the same for any cut."""
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
        if self.ranks.size > 1:  # the other ranks have cut the batch as before
            raise ValueError(
                f"out of memory on one of {self.ranks.size} ranks with optim.micro_tokens={self.micro_tokens}: all "
                f"ranks must cut a batch in the same way. Start with optim.micro_tokens={max(now // 2, longest)}."
            )
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
        if math.isfinite(norm):
            self.bad_steps[role] = 0
            return
        self.bad_steps[role] += 1
        first = "bad_gradients" not in self.tally.sums
        self.tally.add("bad_gradients", 1.0, count=float(first))  # a number, not a mean
        if self.bad_steps[role] >= 3:
            raise ValueError(
                f"gradient norm of {role} is {norm} for the third step in a row: the weights would be lost. Lower "
                "optim.lr, optim.clip_norm or the coefficients, and look at the last episodes; the last checkpoint is "
                "untouched."
            )


def sampler_gap(tally: Tally, batch: Batch, logp_old_N: Tensor, version: int | None = None) -> None:
    """|log π_old − log π_gen| of tokens that were sampled from this policy: sampler and trainer should agree.

    Of a version of the weights, which is that of π_old; None: of the newest in the batch.
    """
    known = batch.on_policy_N & torch.isfinite(batch.logp_gen_N)
    own_N = batch.newest_N if version is None else batch.version_N == version
    here = known & own_N & ~batch.spread(batch.replayed_E, "E", "N")
    gap = (logp_old_N - batch.logp_gen_N)[here].abs()
    if len(gap):
        tally.add("sampler_gap", float(gap.sum()), len(gap))
        tally.most("sampler_gap_max", float(gap.max()))
