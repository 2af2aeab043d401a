"""EMPO, entropy-minimised policy optimisation (Zhang et al. 2025, arXiv:2504.05812).

    R_i = |answers of the group that agree with i| / G,      0 where no answer was found
    R_i = 0 for the whole group if H ≥ log G, that is, if all answers differ,      H = −Σ_a p_a log p_a
    then GRPO on R

Differs from GRPO: no label is used. A response is worth the share of its group that gives the same answer, so the
policy learns to agree with itself: the mean of R is Σ p², which grows as the answer entropy falls. No KL. The task's
own score is still logged as accuracy, but not paid.

The scorer decides which answers agree, without looking at the reference. Responses without an answer count in G, are
one cluster in H and are worth 0. A group that agrees entirely, or splits into equal clusters, has no advantage.
`answer_entropy_low` and `answer_entropy_high` are shares of log G; groups outside them are worth 0.
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
    """Component `agreement`, which replaces `task`: the share of the group that gives the same answer.

    It is 0 without an answer, and in groups whose answer entropy, as a share of log G, is below `answer_entropy_low`
    or not below `answer_entropy_high`.
    """

    answer_entropy_high: float = setting(1.0, low=0, witness=0.5)
    answer_entropy_low: float = setting(0.0, low=0, high=1, witness=0.9)
    of_groups = True
    replaces = ("task",)
    reads = ("answer_E",)
    refuses = ("redraw_equal_groups",)  # it uses the labels
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


EMPO = GRPO.but(
    name="empo",
    paper="arXiv:2504.05812",
    checked=(
        "Compared with QingyangZhang/EMPO, trl/src/open_r1/rewards.py, semantic_entropy_math_reward (commit c5eccd4): "
        "R is 0 for the whole group unless H < log G, that is answer_entropy_high = 1. The paper also leaves out "
        "groups of low entropy; the code for mathematics does not, and answer_entropy_low = 0 leaves out none. That "
        "both bounds are shares of log G is ours. A response without an answer is the empty string in the code: it "
        "counts in G and has R = 0, as here. Its clusters come from math_verify.verify, which is false for two empty "
        "strings (Math-Verify requires both to be non-empty), so in the code each empty response is a cluster of its "
        "own in H, whereas here all of them are one cluster; this is ours. The two differ where several responses are "
        "empty: if all answers that were found differ, H = log G in the code and the group is worth 0, while here H < "
        "log G and each of them is worth 1/G. The code's reward for free-form answers (semantic_prob_reward) pays an "
        "empty answer -0.5 and has other filters; it is not implemented here."
    ),
    confidence="code",
    reward=AgreeingAnswers(),
    penalties=(),
)
