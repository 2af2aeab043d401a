"""EMPO, entropy-minimised policy optimisation (Zhang et al. 2025, arXiv:2504.05812).

    R_i = |answers of the group that agree with i| / G,      0 where no answer was found
    R_i = 0 for the whole group if H ≥ log G, that is, if all answers differ,      H = −Σ_a p_a log p_a
    then GRPO on R

Differs from GRPO: no label is used. An answer is worth the share of the group that gives it, so that the policy comes
to agree with itself: the mean of R is Σ p², which grows as the entropy of the answers falls. No KL. The task's own
score is still measured, and shown as accuracy, but it is not paid. Which answers agree says the scorer, who does not
look at the reference for it. Checked against QingyangZhang/EMPO, trl/src/open_r1/rewards.py,
semantic_entropy_math_reward. Answers that were not found count in G, and are one answer in H. A group that agrees
wholly, or falls into equal parts, has nothing to learn from. The paper also leaves out groups of low entropy; both
bounds are shares of log G here: `answer_entropy_high` = 1 is the code's bound, `answer_entropy_low` = 0 leaves out
nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gruppo.data import Episode
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.requires import Samples
from gruppo.stages.reward import codes

ROUNDING = 1e-9


@dataclass(frozen=True)
class AgreeingAnswers(Occupant):
    """Component `agreement`, in place of `task`: the share of the group that gives the same answer.

    It is 0 in groups whose entropy, in units of log G, is below `answer_entropy_low` or not below
    `answer_entropy_high`.
    """

    answer_entropy_high: float = setting(1.0, witness=0.5)
    answer_entropy_low: float = setting(0.0, witness=0.9)
    of_groups = True
    replaces = ("task",)
    reads = ("answer_E",)
    refuses = ("redraw_equal_groups",)  # it looks at the labels
    requires = (Samples(3, "Of two answers both agree or both differ, so they are always worth the same."),)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        group_E, answer_E = codes([e.group for e in episodes]), codes([(e.group, e.answer) for e in episodes])
        size_E = np.bincount(group_E)[group_E]
        share_E = np.bincount(answer_E)[answer_E] / size_E
        entropy_E = -np.bincount(group_E, np.log(share_E) / size_E)[group_E]
        most_E = np.log(size_E)
        apart_E = entropy_E >= self.answer_entropy_high * most_E - ROUNDING
        alike_E = entropy_E < self.answer_entropy_low * most_E - ROUNDING
        found_E = np.array([bool(e.answer) for e in episodes])
        return {"agreement": np.where(found_E & ~apart_E & ~alike_E, share_E, 0.0)}


EMPO = GRPO.but(name="empo", paper="arXiv:2504.05812", reward=AgreeingAnswers(), penalties=())
