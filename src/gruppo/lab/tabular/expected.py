"""Steps along the expected gradient: over all groups, weighted by their chances. Nothing is sampled.

Groups go through the rooms in one batch where the rooms keep them apart. Elsewhere the exact laboratory adds them up,
draw by draw.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gruppo.lab.exact.bench import Bench
from gruppo.lab.exact.groups import Unlike
from gruppo.lab.exact.trial import Trial
from gruppo.lab.exact.world import ExactWorld
from gruppo.lab.tabular.learner import TableLearner
from gruppo.lab.tabular.probe import EveryGroup, Found, Probe
from gruppo.lab.tabular.quick import Mixed, refuse_if_episodes
from gruppo.lab.tabular.setup import Setup
from gruppo.lab.tabular.tables import Tables
from gruppo.stages import Context, Memory, Method


class Expected:
    """All seeds of one method along E g, with the optimiser of the setup. `why` says why groups were not one batch."""

    def __init__(
        self, method: Method, setup: Setup, tables: Tables, worlds: Sequence[ExactWorld], start: Tensor
    ) -> None:
        self.method, self.setup, self.tables, self.worlds, self.start = method, setup, tables, worlds, start
        self.learner = TableLearner(method, tables, start, setup.optim, setup.optimiser == "sgd")
        self.memory, self.why = Memory(), ""
        self.probe = Probe(method, setup, tables, together=True)
        self.every = EveryGroup(self.probe, setup.prompts)
        self._trials: dict[int, Trial] = {}
        try:
            refuse_if_episodes(method, self.context(0))
            self.every.refuse_if_mixed(start[0], start[0], 0)
        except (Unlike, Mixed) as said:
            self.why = str(said)

    def context(self, step: int) -> Context:
        return self.setup.context(step, self.memory, self.tables.max_tokens)

    @property
    def theta(self) -> Tensor:
        return self.learner.theta

    def found(self, row: int, step: int) -> Found:
        """Every group of a seed, at its policy now."""
        return self.every.found(self.theta[row], self.start[row], step)

    def gradient(self, row: int, step: int) -> Tensor:
        """E g of a seed at its policy now, [Q, J]."""
        if not self.why:
            return self.found(row, step).mean(self.tables.prompts)
        if row not in self._trials:
            bench = Bench(self.worlds[row], warm=0, seed=self.setup.seed)
            self._trials[row] = Trial(self.method, bench, self.setup.prompts, self.setup.samples)
        return self._trials[row].moments(self.theta[row].flatten()).mean_T.view(self.tables.prompts, -1)

    def step(self, step: int) -> Mapping[str, Tensor]:
        every = torch.arange(len(self.theta))
        mean = torch.stack([self.gradient(row, step) for row in every.tolist()])
        prompts = torch.arange(self.tables.prompts).expand(len(every), -1)
        self.learner.begin(self.context(step), every, prompts)
        self.learner.grad_PXJ = mean
        self.learner.apply("policy")
        return self.learner.means()
