"""ADORA, advantage dynamics via online rollout adaptation (Ren et al. 2026, arXiv:2602.10019; blog of March 2025).

    w_q = 1 if max_{i right} |o_i| > mean_{j wrong, not truncated} |o_j|, else λ = 0.1
    A_i = w_q (R_i − mean R) / (std R + ε),      right: R_i > 0.5

A group counts in full if its longest right answer is longer than its wrong answers are on average: it shows that
thinking longer helps. Any other group counts a tenth. Differs from GRPO: this weight of whole groups; the KL of 0.001
is that of the launch script. Without a right answer a group is not one to learn from (λ), with right ones only it is
(1); equal rewards have A = 0 either way. Checked against ShadeCloak/ADORA, ADORA/verl/trainer/ppo/core_algos.py,
compute_grpo_outcome_advantage_ASORA: there R is right above 1.01, on the scale of Logic-RL, and an answer of less than
4054 tokens is not truncated; here the sampler's own status says it. The form for vision models (ADORA_VL, OpenRLHF)
takes groups without a right answer in full and those without a wrong one by λ. Of the paper the abstract was read and
a summary, which says that its LLMs are amplified where its VLMs are attenuated: `factor` may be above 1. A group of
one is refused (code: A = R).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import Batch, Status
from gruppo.methods.grpo import GRPO
from gruppo.pieces import advantage
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.credit import COMPARES, judged_N, to_tokens
from gruppo.stages.penalties import ReferenceKL


@dataclass(frozen=True)
class LongerIsRight(Occupant):
    """GRPO's advantage, times `factor` in groups whose longest right answer is not longer than the wrong ones are."""

    threshold: float = setting(0.5, witness=2.0)
    factor: float = setting(0.1, witness=0.5)
    eps: float = setting(1e-6, witness=1.0)
    writes = ("adv_N",)
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        groups, judged = batch.level("E", "G"), batch.judged_E
        length_E = batch.gather(judged_N(batch), "N", "E", "sum").to(batch.reward_E.dtype)
        right_E = judged & (batch.reward_E > self.threshold)
        wrong_E = judged & (batch.reward_E <= self.threshold) & (batch.status_E != Status.TRUNCATED)
        longest_G = batch.gather(length_E, "E", groups, "max", where=right_E)  # none: 0, which is above no mean
        usual_G = batch.gather(length_E, "E", groups, "mean", where=wrong_E)  # none: 0, which is below any
        weight_G = torch.where(longest_G > usual_G, torch.ones_like(usual_G), torch.full_like(usual_G, self.factor))
        adv_E = advantage.z_score(batch.reward_E, groups, where=judged, eps=self.eps)
        return to_tokens(batch, groups.spread(weight_G) * adv_E)


ADORA = GRPO.but(
    name="adora",
    paper="arXiv:2602.10019",
    credit=LongerIsRight(),
    penalties=ReferenceKL(kl_coef=0.001, mean="sequence"),
)
