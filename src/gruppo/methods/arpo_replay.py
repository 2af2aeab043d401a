"""ARPO, agentic replay policy optimisation (Lu et al. 2025, arXiv:2505.16282, "End-to-end policy optimisation for GUI
agents with experience replay").

    a group in which all failed (std of the task's reward < 0.05, mean < 0.2):  one of its episodes makes room for a
                                                                                remembered success at the same task
    R = R_task + 0.5 R_format,      R_format = −1 if an action could not be read, else 0
    A = (R − mean R) / (std R + ε),      J = mean_t min(r_t A, clip(r_t, 1−0.2, 1+0.3) A)

Differs from GRPO: a group without any success has no gradient; with one remembered success it has. Each task remembers
its last eight successes, and one of them is drawn at random. It is learned from as if the policy of this step had drawn
it: its log π_old is that of this step. No KL; a mean over tokens. A group with a success of its own is left as it is,
and so is one whose task has never been solved: tasks must recur. Which of the failures makes room is random, since they
are alike. A remembered success keeps its reward, and is not remembered a second time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gruppo.data import Episode, Source, Status, Use
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.requires import RecurringTasks, Samples
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class Readable(Occupant):
    """Component `format`: −format_coef if the answer or one of the actions could not be read, else 0."""

    format_coef: float = setting(0.5, low=0)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        unread = [e.status == Status.INVALID or any("void" in t.flags for t in e.turns) for e in episodes]
        return {"format": -self.format_coef * np.array(unread, np.float64)}


@dataclass(frozen=True)
class SuccessForFailure(Occupant):
    """In a group of failures, one makes room for a remembered success at the same task.

    capacity    remembered successes of each task: the last ones
    success     task reward above which an episode is a success
    spread_low  a group fails if its task rewards have a smaller standard deviation than this, with n,
    mean_low    and a smaller mean than this
    """

    capacity: int = setting(8, low=1, witness=1)
    success: float = setting(0.1, witness=[-1.0, 3.0])
    spread_low: float = setting(0.05, low=0, witness=[0.0, 5.0])
    mean_low: float = setting(0.2, witness=[-1.0, 5.0])
    joins = True
    proximal = "now"
    credited = "now"
    requires = (RecurringTasks(), Samples(2, "A success is compared with the failures of its group."))

    def put(self, ctx: Context, store: list[Episode], episodes: Sequence[Episode]) -> list[Episode]:
        fresh = [e for e in episodes if e.status.judged and (e.use, e.source) == (Use.LEARN, Source.POLICY)]
        out, left = list[Episode](), dict[str, int]()
        for e in reversed([*store, *(e for e in fresh if e.score > self.success)]):
            left[e.task] = left.get(e.task, self.capacity) - 1
            out += [e] if left[e.task] >= 0 else []
        return out[::-1]

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]:
        return list(store)

    def insert(self, ctx: Context, kept: Sequence[Episode]) -> list[Episode]:
        """The episodes of the step with remembered ones among them; each of these at most once."""
        groups: dict[str, list[Episode]] = {}
        for e in kept:
            if e.status.judged and e.use in (Use.LEARN, Use.BASELINE):
                groups.setdefault(e.group, []).append(e)
        past = sorted(ctx.replay, key=lambda e: ctx.uniform("success", e.uid))
        instead: dict[int, Episode] = {}
        for name, group in groups.items():
            mine = [e for e in group if e.use == Use.LEARN]
            good = [e for e in past if e.task == group[0].task]
            if mine and good and self.failed(group):
                out = min(mine, key=lambda e: ctx.uniform("failure", e.uid))
                instead[out.uid] = replace(good[0], group=name, replayed=True)
                past = [e for e in past if e.uid != good[0].uid]
        return [instead.get(e.uid, e) for e in kept]

    def failed(self, group: Sequence[Episode]) -> bool:
        scores = [e.score for e in group]
        return float(np.std(scores)) < self.spread_low and float(np.mean(scores)) < self.mean_low


ARPO_REPLAY = GRPO.but(
    name="arpo_replay",
    paper="arXiv:2505.16282",
    checked=(
        "Compared with dvlab-research/ARPO, read at commit 7489ae3: verl/trainer/replay_buffer.py, apply_replay in "
        "verl/trainer/ray_trainer.py, core_algos.py and examples/osworld_full_arpo.sh. The same in both: the "
        "thresholds, eight successes a task, first in first out, log π_old of this step, 0.5 for the format after "
        "the replacement, standard deviation with n - 1, clips of 0.2 and 0.3, a mean over tokens, two updates a "
        "step (64 of 128 episodes). Differences. (1) The code replaces the first episode of the group, here a "
        "random one. (2) The code has a dual clip of its trainer, off here (clip_dual). (3) The choice of tasks "
        "that at least one of 16 episodes solves (recalled) happens before training and is left out."
    ),
    confidence="code",
    reward=Readable(format_coef=0.5),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.3, mean="token"),
    penalties=(),
    update=Passes(epochs=1, minibatches=2),
    replay=SuccessForFailure(),
)
