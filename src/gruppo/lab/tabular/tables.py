"""Many policies that are tables, at once: what each says of every token, and the probability of every answer.

A table has a row of J logits for each prompt, in the order of `ExactWorld.cells`: one for each token that may follow a
beginning of an answer, where several may. Tensors have the shape [parts P, prompts Q, J]; a part is a policy.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from gruppo.data import Batch, pack
from gruppo.lab.exact.world import NEVER, ExactWorld


class Tables:
    """The structure of a world's answers, which is the same for every prompt and every seed."""

    def __init__(self, world: ExactWorld) -> None:
        self.world = world
        self.prompts, self.answers = len(world.rates), len(world.answers)
        cells = [(b, c) for q, b, c in world.cells if q == 0]
        self.cells = len(cells)
        states = list(dict.fromkeys(b for b, _ in cells))
        options = [[j for j, (b, _) in enumerate(cells) if b == s] for s in states]
        self.wide = max(map(len, options))
        self.state_J = torch.tensor([states.index(b) for b, _ in cells])
        pad = [[*o, *[self.cells] * (self.wide - len(o))] for o in options]
        self.pad_FW = torch.tensor(pad)  # the cells of each state; the last number of all: none
        self.place_J = torch.tensor([f * self.wide + o.index(j) for f, o in enumerate(options) for j in o])
        self.place_J = self.place_J[torch.argsort(torch.tensor([j for o in options for j in o]))]
        where = {cell: j for j, cell in enumerate(cells)}
        paths = [[where.get((a[:i], c), self.cells) for i, c in enumerate(a + ".")] for a in world.answers]
        self.length_A = torch.tensor([len(p) for p in paths])
        deep = int(self.length_A.max())
        self.path_AD = torch.tensor([[*p, *[self.cells] * (deep - len(p))] for p in paths])
        begins = [[(a + ".").startswith(b + c) for a in world.answers] for b, c in cells]
        passes = [[a.startswith(b) for a in world.answers] for b, _ in cells]
        self.begins_AJ, self.passes_AJ = (torch.tensor(x, dtype=torch.float64).T for x in (begins, passes))
        self.max_tokens = deep + 1
        self.right_A, self.reward_QA = world.right_A, world.reward_QA

    @cached_property
    def atlas(self) -> Batch:
        """Every answer to every prompt, packed, in the order of prompts."""
        return pack([self.world.episode(i, i) for i in range(self.prompts * self.answers)], dtype=torch.float64)

    @property
    def flat(self) -> bool:
        """Whether only the first token is a choice: then a row of the table is one distribution."""
        return len(self.pad_FW) == 1

    def start(self, worlds: Sequence[ExactWorld]) -> Tensor:
        """The logits of each world's initial policy, log P(token | beginning)."""
        mass_PQA = torch.stack([w.mass_QA for w in worlds])
        return (mass_PQA @ self.begins_AJ).log() - (mass_PQA @ self.passes_AJ).log()

    def log_p(self, theta_PQJ: Tensor) -> Tensor:
        """log π of every cell, then a 0 for tokens that are no choice: [P, Q, J + 1]."""
        if self.flat:
            return torch.nn.functional.pad(torch.log_softmax(theta_PQJ, -1), (0, 1))
        out = torch.log_softmax(self._rows(theta_PQJ), -1).flatten(-2)[..., self.place_J]
        return torch.nn.functional.pad(out, (0, 1))

    def _rows(self, x_PQJ: Tensor, fill: float = NEVER) -> Tensor:
        """Values of cells as rows of states, [P, Q, F, W]."""
        return torch.nn.functional.pad(x_PQJ, (0, 1), value=fill)[..., self.pad_FW]

    def entropy(self, theta_PQJ: Tensor) -> Tensor:
        """The entropy of the state of every cell; 0 where there is no choice."""
        log_p = torch.log_softmax(self._rows(theta_PQJ), -1)
        state_PQF = -(log_p.exp() * log_p).sum(-1)
        return torch.nn.functional.pad(state_PQF[..., self.state_J], (0, 1))

    def log_mass(self, theta_PQJ: Tensor) -> Tensor:
        """log π(answer | prompt), [P, Q, A]."""
        return self.along(self.log_p(theta_PQJ))

    def along(self, x_PQC: Tensor) -> Tensor:
        """The sum of a value of cells along each answer, [P, Q, A]."""
        return x_PQC[..., self.path_AD].sum(-1)

    def slope(self, theta_PQJ: Tensor, move_PQJ: Tensor) -> Tensor:
        """The change of log π(answer) per unit of a move of the logits, to first order."""
        p = torch.softmax(self._rows(theta_PQJ), -1)
        mean_PQF = (p * self._rows(move_PQJ, 0.0)).sum(-1)
        return self.along(torch.nn.functional.pad(move_PQJ - mean_PQF[..., self.state_J], (0, 1)))

    def ascent(self, theta_PQJ: Tensor) -> Tensor:
        """The gradient of the expected reward, the mean over prompts of Σ π(answer) R(answer)."""
        theta = theta_PQJ.detach().clone().requires_grad_()
        rate_PQ = (self.log_mass(theta).exp() * self.reward_QA).sum(-1)
        [found] = torch.autograd.grad(rate_PQ.mean(-1).sum(), theta)
        return found
