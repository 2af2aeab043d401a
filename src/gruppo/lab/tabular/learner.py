"""What an update room calls, for many tables at once: the gradient of each part as if it were alone, and its step.

    J = Σ_p J_p,      J_p the objective of part p, with denominators counted over its own rows

No part's parameters occur in another part's J_p, so dJ/dθ is the gradient of every part. The objective's values come
from the method's own occupants; only the counting is by part here, as it is by optimiser step in a run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.lab.exact.groups import Unlike
from gruppo.lab.tabular.tables import Tables
from gruppo.pieces.aggregate import UNITS, Count
from gruppo.stages import Context, Method, Need, Stats, Term
from gruppo.stages.goal import Goal
from gruppo.train.learner import OptimConfig

ADAM_EPS = 1e-8  # torch's
SAMPLER = "sampler"  # the role of the policy that gave a step's answers, as `read` knows it


def part_weights(batch: Batch, term: Term, parts: int) -> Tensor:
    """The weight of each row of a term, counted over the rows of its own part."""
    weight = term.weights(batch, Count(1.0, 1.0, 1.0))
    if isinstance(term.mean, float | int):
        return weight
    part_of = batch.part_G[batch.up(term.at, "G")]
    if term.mean == "token":
        where, member = part_of, term.over
    elif term.mean.startswith("drawn_group"):
        where, member = batch.part_G, torch.ones_like(batch.part_G)
    else:
        unit = UNITS[term.mean.partition("/")[0].removesuffix("_sum")]
        where = batch.part_G[batch.up(unit, "G")]
        member = batch.gather(term.over, term.at, unit, "any") if unit != term.at else term.over
    count_P = torch.zeros(parts, dtype=weight.dtype).index_add(0, where, member.to(weight.dtype))
    return weight / count_P.clamp(min=1.0)[part_of]


class TableLearner:
    """Trains the tables of some parts. It offers `step`, `grad` and `apply`, which is what `Passes` calls."""

    trained = ("policy",)

    def __init__(self, method: Method, tables: Tables, theta: Tensor, config: OptimConfig, sgd: bool = False) -> None:
        self.method, self.tables, self.config, self.sgd = method, tables, config, sgd
        self.theta, self.start = theta.clone(), theta.clone()
        self.given = self.start  # the roles that a run must be given
        self.first, self.second = torch.zeros_like(theta), torch.zeros_like(theta)
        self.count = torch.zeros(len(theta), 1, 1, dtype=theta.dtype)
        self.rows, self.asked_PX, self.logs = torch.arange(len(theta)), torch.arange(theta.shape[1])[None], True
        self.ctx = Context()
        self.grad_PXJ = torch.zeros_like(theta)
        self.tally: dict[str, tuple[Tensor, float]] = {}
        self.trail: list[Tensor] | None = None  # the gradients of a step, if they are wanted

    def begin(
        self, ctx: Context, rows: Tensor, asked_PX: Tensor, logs: bool = True, sampler: Tensor | None = None
    ) -> None:
        """A step of these parts, each with the prompts that it asks. Without `logs`, terms are not logged. `sampler`
        are the policies that give its answers, of all parts; by default those of now."""
        self.ctx, self.rows, self.asked_PX, self.logs, self.tally = ctx, rows, asked_PX, logs, {}
        self._old = self.asked(self.theta)
        self._sampler = self._old if sampler is None else self.asked(sampler)
        self._tables: dict[tuple[str, str], Tensor] = {}

    def asked(self, theta: Tensor) -> Tensor:
        """The rows of the tables that the step asks, [P, X, J]."""
        theta = theta if len(self.rows) == len(theta) else theta[self.rows]
        if self.asked_PX.shape[1] == theta.shape[1]:
            return theta.clone()
        return theta.gather(1, self.asked_PX[..., None].expand(-1, -1, theta.shape[2]))

    # what rooms read

    def read(self, role: str, batch: Batch, needs: Sequence[Need]) -> dict[str, Tensor]:
        """What the policy at the start of the step, or a frozen role, says of a batch."""
        return {n.column: self.table(role, n.readout).view(-1).index_select(0, batch.cell_N) for n in needs}

    def table(self, role: str, readout: str) -> Tensor:
        if (role, readout) not in self._tables:
            self._tables[role, readout] = self._read(self._theta_of(role), readout)
        return self._tables[role, readout]

    def _theta_of(self, role: str) -> Tensor:
        if role in ("old", SAMPLER):
            return self._old if role == "old" else self._sampler
        return self.asked(self.start if self._starts(role) else self.given)

    def _starts(self, role: str) -> bool:
        return role not in self.method.cast or bool(self.method.cast[role].start)

    def _read(self, theta: Tensor, readout: str) -> Tensor:
        return self.tables.log_p(theta) if readout == "logp" else self.tables.entropy(theta)

    def sampled(self, uniform_E: Any) -> Tensor:
        """The answers that the policies give, for a random number from 0 to 1 each."""
        upto_PXA = self.tables.along(self.table(SAMPLER, "logp")).exp().cumsum(-1)
        uniform = uniform_E.view(*upto_PXA.shape[:2], -1)
        answer = torch.searchsorted(upto_PXA, uniform * upto_PXA[..., -1:], right=True)
        return answer.clamp(max=self.tables.answers - 1).flatten()

    # what updates call

    def step(self, role: str, batch: Batch, coef: float = 1.0, lr: float | None = None, penalties: bool = True) -> None:
        self.grad(role, batch, coef, penalties=penalties)
        self.apply(role, lr)

    def grad(self, role: str, batch: Batch, coef: float = 1.0, *, penalties: bool = True) -> None:
        """dJ_p/dθ_p of every part, in the rows that it asks; to be ascended."""
        goal = Goal(self.method, self.ctx, role, penalties)
        theta = self.asked(self.theta).requires_grad_()
        stats = Stats({n.column: self._read(theta, n.readout).view(-1)[batch.cell_N] for n in goal.needs()})
        for n in goal.others():
            stats |= self.read(n.role, batch, [n])
        if "logp_old_N" not in batch.columns and "logp_N" in stats:
            batch = batch.with_columns(logp_old_N=stats.logp_N.detach())
        batch = goal.selected(batch, stats)
        terms = goal.terms(batch)
        value = torch.zeros((), dtype=theta.dtype)
        for term, x in zip(terms, goal.values(batch, stats, terms), strict=True):
            if term.logged_only and not self.logs:
                continue
            weight = part_weights(batch, term, len(theta))
            value = value if term.logged_only else value + term.total(x, weight)
            if self.logs:
                self._log(batch, term, x.detach(), weight)
        [found] = torch.autograd.grad(value, theta, allow_unused=True) if value.requires_grad else [None]
        self.grad_PXJ = torch.zeros_like(theta) if found is None else coef * found

    def _spread(self, grad_PXJ: Tensor) -> Tensor:
        """The gradient of whole tables: 0 for prompts that were not asked."""
        size = (len(self.rows), *self.theta.shape[1:])
        if grad_PXJ.shape == size:
            return grad_PXJ
        at = self.asked_PX[..., None].expand(-1, -1, size[2])
        return torch.zeros(size, dtype=grad_PXJ.dtype).scatter_(1, at, grad_PXJ)

    def _log(self, batch: Batch, term: Term, x: Tensor, weight: Tensor) -> None:
        part = batch.part_G[batch.up(term.at, "G")]
        kept = torch.where(weight != 0, weight * x, torch.zeros_like(x))
        self._add(term.name, torch.zeros(len(self.rows), dtype=kept.dtype).index_add(0, part, kept))

    def _add(self, name: str, value_P: Tensor) -> None:
        before, steps = self.tally.get(name, (torch.zeros_like(value_P), 0.0))
        self.tally[name] = (before + value_P, steps + 1.0)

    def means(self) -> Mapping[str, Tensor]:
        """What was logged in the step, by part: the mean over its optimiser steps."""
        return {name: total / steps for name, (total, steps) in self.tally.items()}

    @torch.no_grad()
    def apply(self, role: str, lr: float | None = None) -> None:
        """Clip the gradient of each part by its own norm, and step. A part whose gradient is not finite stays."""
        c, g = self.config, self._spread(self.grad_PXJ)
        if self.trail is not None:
            self.trail.append(g)
        norm_P = g.flatten(1).norm(dim=1)
        if self.logs:
            self._add("grad_norm", norm_P)
        fine = torch.isfinite(norm_P)
        scale_P = torch.where(fine, (c.clip_norm / (norm_P + 1e-6)).clamp(max=1.0), torch.zeros_like(norm_P))
        g = g * scale_P.view(-1, 1, 1)
        rate = self._lr() if lr is None else lr
        if bool(fine.all()):
            self._move(self.rows, g, rate)
        else:
            self._add("bad_gradients", (~fine).to(norm_P.dtype))
            self._move(self.rows[fine], g[fine], rate)

    def _lr(self) -> float:
        own = self.method.cast["policy"].lr
        return self.ctx.at(own if own else self.config.lr)

    def _move(self, rows: Tensor, g: Tensor, rate: float) -> None:
        c = self.config
        if self.sgd:
            self.theta[rows] += rate * self.ctx.prompts * g
            return
        every = len(rows) == len(self.theta)
        m, v, n, theta = (x if every else x[rows] for x in (self.first, self.second, self.count, self.theta))
        m.lerp_(g, 1 - c.beta1)
        v.mul_(c.beta2).addcmul_(g, g, value=1 - c.beta2)
        n += 1
        root = (v / (1 - c.beta2**n)).sqrt_().add_(ADAM_EPS)
        theta.mul_(1 - rate * c.weight_decay)
        theta += rate * (m / (1 - c.beta1**n)) / root
        if not every:
            for whole, x in ((self.first, m), (self.second, v), (self.count, n), (self.theta, theta)):
                whole[rows] = x

    # one part again, for the check that parts are independent

    def saved(self, row: int) -> tuple[Tensor, ...]:
        return tuple(x[row].clone() for x in (self.theta, self.first, self.second, self.count))

    def restore(self, row: int, saved: tuple[Tensor, ...]) -> None:
        for x, y in zip((self.theta, self.first, self.second, self.count), saved, strict=True):
            x[row] = y


def refuse_unread(method: Method, ctx: Context) -> None:
    """What a table cannot say of a decision: then the training loop itself is needed."""
    goal = Goal(method, ctx)
    for n in [*(n for _, _, n in method.needs(ctx)), *goal.needs(), *goal.others()]:
        plain: Any = (n.at, n.view, n.params, n.against, n.side)
        if n.readout not in ("logp", "entropy") or plain != ("N", "as_trained", (), "", "before"):
            raise Unlike(f"it reads {n}")
