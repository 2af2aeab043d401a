"""Gradients of many steps at given policies: all groups that can be drawn, or a number of them that were.

    expected  E g = Σ_draws P(draw) g(draw)
    noise     Var g / |E g|²                 over answers, and over the choice of prompts if a step asks only some
    cosine    of E g and the gradient of the expected reward
    falls     P(d log π(o) < 0 along g)      for a right answer o to a prompt that was asked, to first order

Over all groups these are exact. Over draws the variance is estimated without bias, and so is |E g|² = |ḡ|² − Var / n.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import uniform
from gruppo.lab.exact.groups import Draws, all_draws
from gruppo.lab.tabular.frame import Frame
from gruppo.lab.tabular.learner import TableLearner
from gruppo.lab.tabular.quick import Mixed, asked, prepared, turned
from gruppo.lab.tabular.setup import Setup
from gruppo.lab.tabular.tables import Tables
from gruppo.stages import Memory, Method

MOST = 4_000_000  # numbers in the tables of one batch
PROBES = 1 << 20  # added to the numbers of seeds, so that probes have random numbers of their own


@dataclass(frozen=True)
class Found:
    """Gradients of draws at one policy each: of draw d in the rows asked_DX; chance_D sums to 1 over each policy."""

    grad_DXJ: Tensor
    asked_DX: Tensor
    chance_D: Tensor
    sampled: bool
    knows_asked: bool = True  # else asked_DX are all prompts, with a gradient of 0 where one was not asked

    def mean(self, prompts: int) -> Tensor:
        """E g, [Q, J]."""
        weighted = self.chance_D.view(-1, 1, 1) * self.grad_DXJ
        zero = torch.zeros(prompts, weighted.shape[-1], dtype=weighted.dtype)
        return zero.index_add(0, self.asked_DX.flatten(), weighted.flatten(0, 1))

    def _moments(self, prompts: int) -> tuple[float, float]:
        """(Var g, |E g|²); of draws without bias, so that the second may be below 0."""
        mean2 = float(self.mean(prompts).square().sum())
        total = float(self.chance_D @ self.grad_DXJ.square().sum((1, 2)))
        n = len(self.chance_D)
        variance = (total - mean2) * (n / (n - 1) if self.sampled else 1.0)
        return variance, mean2 - variance / n if self.sampled else mean2

    def noise(self, prompts: int) -> float:
        """Var g / |E g|²; infinite if E g is 0."""
        variance, signal = self._moments(prompts)
        return variance / signal if signal > 0 else float("inf")

    def cosine(self, tables: Tables, theta_QJ: Tensor) -> float:
        """Of E g and the gradient of the expected reward; 0 if E g is 0."""
        true_QJ = tables.ascent(theta_QJ[None])[0]
        signal = self._moments(tables.prompts)[1]
        along = float((self.mean(tables.prompts) * true_QJ).sum())
        return along / (signal**0.5 * float(true_QJ.norm())) if signal > 0 else 0.0

    def falls(self, tables: Tables, theta_QJ: Tensor) -> float:
        """The chance that a right answer to a prompt that was asked becomes less likely."""
        theta_DXJ = theta_QJ[self.asked_DX]
        slope_DXA = tables.slope(theta_DXJ, self.grad_DXJ)[..., tables.right_A]
        least = 1e-12 * self.grad_DXJ.abs().amax((1, 2), keepdim=True)
        return float(self.chance_D @ (slope_DXA < -least).double().mean((1, 2)))


class Probe:
    """Steps of one method at any policy; nothing moves."""

    def __init__(self, method: Method, setup: Setup, tables: Tables, together: bool) -> None:
        self.method, self.setup, self.tables, self.together = method, setup, tables, together
        self.memory = Memory()

    def gradients(
        self, theta: Tensor, start: Tensor, seeds_P: Tensor, asked_PX: Tensor, answer_PXG: Tensor | None, step: int
    ) -> Tensor:
        """The gradient of one draw for each part, [P, X, J]; without answers, these are sampled."""
        if self.together:
            return self._at_once(theta, start, seeds_P, asked_PX, answer_PXG, step)
        parts = [slice(p, p + 1) for p in range(len(seeds_P))]
        given = [None if answer_PXG is None else answer_PXG[p] for p in parts]
        found = [
            self._at_once(theta[p], start[p], seeds_P[p], asked_PX[p], a, step)
            for p, a in zip(parts, given, strict=True)
        ]
        return torch.cat(found)

    def _at_once(
        self, theta: Tensor, start: Tensor, seeds_P: Tensor, asked_PX: Tensor, answer_PXG: Tensor | None, step: int
    ) -> Tensor:
        learner = TableLearner(self.method, self.tables, theta, self.setup.optim)
        learner.start = start
        samples = self.setup.samples
        frame = Frame(self.tables, seeds_P, asked_PX.shape[1], samples)
        ctx = self.setup.context(step, self.memory, self.tables.max_tokens)
        ctx.prompts = asked_PX.shape[1]
        learner.begin(ctx, torch.arange(len(theta)), asked_PX, logs=False)
        answer_E = learner.sampled(uniform("probe", step, frame.uid_E)) if answer_PXG is None else answer_PXG.flatten()
        batch = frame.batch(asked_PX, answer_E, turned(self.setup.flips(step), step, frame.uid_E))
        learner.grad("policy", prepared(self.method, learner, ctx, batch))
        return learner.grad_PXJ.detach()

    def sampled(self, theta_QJ: Tensor, start_QJ: Tensor, seed: int, draws: int, step: int) -> Found:
        """A number of draws at a policy."""
        seeds = PROBES + seed * draws + torch.arange(draws)
        asked_DX = asked(seeds, step, self.tables.prompts, self.setup.prompts)
        theta, start = (x.expand(draws, -1, -1) for x in (theta_QJ, start_QJ))
        grad = self.gradients(theta, start, seeds, asked_DX, None, step)
        return Found(grad, asked_DX, torch.full((draws,), 1 / draws, dtype=torch.float64), True)


class EveryGroup:
    """All groups of a step of one prompt, or of a few, and the expected gradient of a method over them."""

    def __init__(self, probe: Probe, prompts: int) -> None:
        self.probe, t = probe, probe.tables
        self.draws: Draws = all_draws(t.world, prompts, probe.setup.samples)
        number = self.draws.places.view(len(self.draws.places), prompts, -1)
        self.asked_DX, self.answer_DXG = number[..., 0] // t.answers, number % t.answers
        self.seeds = torch.arange(len(number))

    def found(self, theta_QJ: Tensor, start_QJ: Tensor, step: int) -> Found:
        many = len(self.seeds)
        size = max(MOST // theta_QJ.numel(), 1)
        grads = [
            self.probe.gradients(
                theta_QJ.expand(len(rows), -1, -1), start_QJ.expand(len(rows), -1, -1), rows, self.asked_DX[rows],
                self.answer_DXG[rows], step,
            )
            for rows in self.seeds.split(size)
        ]  # fmt: skip
        chance_D = self.draws.chances(self.probe.tables.log_mass(theta_QJ[None])[0])
        assert sum(map(len, grads)) == many
        return Found(torch.cat(grads), self.asked_DX, chance_D, False)

    def refuse_if_mixed(self, theta_QJ: Tensor, start_QJ: Tensor, step: int) -> None:
        """A few draws alone must have the gradients that they have among all."""
        found = self.found(theta_QJ, start_QJ, step)
        for row in {0, len(self.seeds) // 2, len(self.seeds) - 1, int(found.chance_D.argmax())}:
            only = slice(row, row + 1)
            alone = self.probe.gradients(
                theta_QJ[None], start_QJ[None], self.seeds[only], self.asked_DX[only], self.answer_DXG[only], step
            )
            apart = float((alone[0] - found.grad_DXJ[row]).abs().max())
            if apart > 1e-12:
                raise Mixed(f"a draw alone has a gradient that is {apart:.1g} apart from its own among others")
