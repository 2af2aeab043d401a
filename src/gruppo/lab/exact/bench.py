"""The bench of the exact laboratory: the world, all draws of a step, and the table of edges that they share.

An edge is a token in a state. Every statistic of a decision is a function of its edge, so a table with one row per edge
holds it for all draws.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Source, pack
from gruppo.lab.exact.groups import Draws, Unlike, all_draws
from gruppo.lab.exact.world import ExactWorld, TablePolicy
from gruppo.stages import Context


@dataclass
class LabContext(Context):
    """A context that notices if a room draws random numbers of its own, or asks for redraws."""

    random: bool = False
    again: int = 0

    def uniform(self, *key: int | str | Tensor) -> Any:
        self.random = True
        return super().uniform(*key)


@dataclass(frozen=True)
class Drawn:
    """A packed draw, before credit; the column `edge_N` of each view holds the edges of the decisions."""

    batch: Batch
    episodes: list[Episode]
    drawn: list[Episode]  # before selection


class Bench:
    """A world, how a step draws from it, and the models other than the policy that is trained.

    drift   standard deviation of the random change in each logit of the policy that sampled; 0: on-policy
    critic  "exact": the critic knows the expected reward of every state; "zero": it is 0 everywhere
    warm    steps that memory has seen before; 0: none, this is the first step
    """

    def __init__(
        self, world: ExactWorld, *, drift: float = 0.0, critic: str = "exact", warm: int = 8, seed: int = 0
    ) -> None:
        self.world, self.drift, self.critic, self.warm, self.seed = world, drift, critic, warm, seed
        generator = torch.Generator().manual_seed(seed)
        self.noise_T = torch.randn(world.theta.shape, generator=generator, dtype=torch.float64)
        width = len(world.answers)
        self.atlas = pack([world.episode(i, i) for i in range(len(world.rates) * width)], dtype=torch.float64)
        self.edge_XV = torch.full((len(world.next_XV), world.tokenizer.choices), -1)
        state_N, token_N = self.states(self.atlas, "as_trained"), self.atlas.token_N
        cell_N = state_N * world.tokenizer.choices + token_N
        cells, edge_N = torch.unique(cell_N, return_inverse=True)
        self.edge_XV.view(-1)[cells] = torch.arange(len(cells))
        self.row_of_edge = torch.zeros(len(cells), dtype=torch.int64).scatter_(0, edge_N, torch.arange(len(edge_N)))
        self.edges_of_answer = torch.zeros(len(world.rates) * width, len(cells), dtype=torch.float64)
        self.edges_of_answer.index_put_((self.atlas.episode_N, edge_N), torch.ones(len(edge_N)).double())
        self._draws: dict[tuple[int, int], Draws] = {}
        self.shelf: dict[tuple[int, int, int], Batch] = {}  # plain draws, the same for every method

    def states(self, batch: Batch, view: str) -> Tensor:
        """The state in which each decision of a view was made."""
        inputs, model = batch.views[view], TablePolicy(self.world, self.world.theta)
        return model.states(inputs)[inputs.parent_M[inputs.at_N]]

    def edges(self, batch: Batch, view: str) -> Tensor:
        """The edge of each decision; 0 for injected tokens, which are not learned."""
        state_N, token_N = self.states(batch, view), batch.token_N
        injected_N = batch.source_N == Source.INJECTED
        outside = token_N >= self.world.tokenizer.choices
        edge_N = self.edge_XV[state_N, token_N.clamp(max=self.world.tokenizer.choices - 1)]
        if bool(((outside | (edge_N < 0)) & ~injected_N).any()):
            raise Unlike("it learns tokens that no answer of the laboratory has there")
        return torch.where(injected_N, torch.zeros_like(edge_N), edge_N)

    def draws(self, prompts: int, samples: int) -> Draws:
        if (prompts, samples) not in self._draws:
            self._draws[prompts, samples] = all_draws(self.world, prompts, samples)
        return self._draws[prompts, samples]

    def log_mass(self, theta: Tensor) -> Tensor:
        """log π(answer | prompt), [Q, A], directly from the table."""
        model = TablePolicy(self.world, theta)
        logits = model.base_XD.index_put(model.at, theta)
        flat = torch.log_softmax(logits, -1).flatten()[self._cells]
        return (self.edges_of_answer @ flat).view(len(self.world.rates), -1)

    @property
    def _cells(self) -> Tensor:
        return torch.nonzero(self.edge_XV.flatten() >= 0)[:, 0]

    def old(self, theta: Tensor) -> Tensor:
        return theta + self.drift * self.noise_T
