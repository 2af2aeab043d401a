"""OTC, optimal tool calls (Wang et al. 2025, arXiv:2504.14870), in its form for GRPO.

    m = calls of tools in the rollout,      n = fewest calls of a right rollout of the task so far, this group included
    f = 2 n m / (m + n)
    r_tool = cos(m π / (2m + c)) if n = 0,  else sin(f π / 2n)               1 exactly at m = n, falling to 0 with m
    R = α · r_tool · R_task,      α = 1, c = 1

Differs from GRPO: the reward of a right rollout is multiplied by how few calls it made. What is wrong earns what it
earned, however few they were, so that efficiency never pays for a wrong answer. n is remembered by task and never
rises. Other components of the reward stay as they are. Without calls, m = n = 0 and this is GRPO.

`least="zero"` takes n = 0 for all: the form for PPO, which compares with no other rollout. `counts="turns"` takes every
turn but the last for a call, for a world in which acting is calling and nobody records tools.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from gruppo.data import Episode, Source, Use, name_hash
from gruppo.methods.grpo import GRPO
from gruppo.pieces.shaping import tool_efficiency
from gruppo.stages import Context, Memory, Occupant, StepRecord, setting
from gruppo.stages.requires import FactsOfTurns
from gruppo.stages.reward import task_reward
from gruppo.stages.tables import Table

FEWEST = "fewest_calls"  # of a right rollout, by task


@dataclass(frozen=True)
class ToolEfficiency(Occupant):
    """Component `efficient`, which replaces `task`: tool_coef · r_tool · task of right rollouts, task of others.

    smooth  c: how slowly the reward falls where no call was needed
    least   group: fewest calls of a right rollout of the task so far; zero: as if no call were ever needed
    counts  what a call is: tools that a turn records; or turns, all but the last of an episode
    """

    tool_coef: float = setting(1.0, above=0, witness=0.3)
    smooth: float = setting(1.0, above=0, witness=4.0)
    least: Literal["group", "zero"] = "group"
    counts: Literal["tools", "turns"] = "tools"
    of_groups = True
    replaces = ("task",)
    requires = (FactsOfTurns("the tools that turns have called"),)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        task_E, calls = np.array([task_reward(e) for e in episodes]), np.array([self.calls(e) for e in episodes])
        keys = torch.tensor([name_hash(e.task) for e in episodes], dtype=torch.int64)
        known = self.known(ctx.memory, episodes).look(keys, "calls", 0.0).numpy()
        fewest = known if self.least == "group" else np.zeros(len(episodes))
        paid_E = self.tool_coef * tool_efficiency(calls, fewest, self.smooth) * task_E
        return {"efficient": np.where(task_E > 0, paid_E, task_E)}

    def observe(self, record: StepRecord, memory: Memory) -> None:
        drawn = [e for e in record.drawn if e.status.judged and e.use <= Use.BASELINE]
        memory[FEWEST] = self.known(memory, drawn).plain

    def known(self, memory: Mapping[str, Any], episodes: Sequence[Episode]) -> Table:
        """The fewest calls by task, with the right ones among these rollouts of the policy."""
        right = [e for e in episodes if e.source == Source.POLICY and task_reward(e) > 0]
        keys = torch.tensor([name_hash(e.task) for e in right], dtype=torch.int64)
        calls = torch.tensor([self.calls(e) for e in right], dtype=torch.float64)
        return Table.of(memory, FEWEST).lowered(keys, "calls", calls)

    def calls(self, e: Episode) -> float:
        return float(len(e.turns) - 1 if self.counts == "turns" else sum(len(t.tools) for t in e.turns))


OTC = GRPO.but(
    name="otc",
    paper="arXiv:2504.14870",
    checked=(
        "Written from a module for verl by others and from the abstract; the authors' code was not read. c = 1 is the "
        "module's; the paper describes it as a constant of smoothing, such as the most calls allowed. The format part "
        "of the reward, as in Search-R1, is a component of its own here, if a task gives one. That a negative reward "
        "of a wrong answer stays as it is, is ours, and so is counts=turns."
    ),
    confidence="notes",
    reward=ToolEfficiency(),
)
