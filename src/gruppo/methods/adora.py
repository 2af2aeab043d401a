"""ADORA, advantage dynamics via online rollout adaptation (Ren et al. 2026, arXiv:2602.10019; blog of March 2025).

    w_q = 1 if max_{i right} |o_i| > mean_{j wrong, not truncated} |o_j|, else λ = 0.1
    A_i = w_q (R_i − mean R) / (std R + ε),      right: R_i > 0.5

Differs from GRPO: the group-normalised advantage is scaled by w_q, and the KL coefficient is 0.001. A group keeps its
full weight if its longest correct response is longer than its wrong responses are on average, a sign that longer
reasoning helps on this prompt. Every other group is scaled by λ.

A group without a correct response gets λ, one without a wrong response gets 1; equal rewards give A = 0 either way.
Truncated wrong responses are left out of the mean length. `factor` may exceed 1. A group of one is refused.
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
    """w_q (R_i − mean R) / (std R + eps): the group-normalised advantage, weighted by group.

    threshold  a response is correct if its reward is above this
    factor     w_q where the longest correct response is not longer than the mean wrong one; elsewhere w_q = 1
    """

    threshold: float = setting(0.5, witness=2.0)
    factor: float = setting(0.1, low=0, witness=0.5)
    eps: float = setting(1e-6, low=0, witness=1.0)
    writes = ("adv_N",)
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        groups, judged = batch.level("E", "G"), batch.judged_E
        length_E = batch.gather(judged_N(batch), "N", "E", "sum").to(batch.reward_E.dtype)
        right_E = judged & (batch.reward_E > self.threshold)
        wrong_E = judged & (batch.reward_E <= self.threshold) & (batch.status_E != Status.TRUNCATED)
        longest_G = batch.gather(length_E, "E", groups, "max", where=right_E)  # 0 if there is none: never above a mean
        usual_G = batch.gather(length_E, "E", groups, "mean", where=wrong_E)  # 0 if there is none: below any length
        weight_G = torch.where(longest_G > usual_G, torch.ones_like(usual_G), torch.full_like(usual_G, self.factor))
        adv_E = advantage.z_score(batch.reward_E, groups, where=judged, eps=self.eps)
        return to_tokens(batch, groups.spread(weight_G) * adv_E)


ADORA = GRPO.but(
    name="adora",
    paper="arXiv:2602.10019",
    checked=(
        "Compared with ShadeCloak/ADORA, ADORA/verl/trainer/ppo/core_algos.py, compute_grpo_outcome_advantage_ASORA. "
        "There a response is correct if its reward exceeds 1.01, on the scale of Logic-RL; the threshold of 0.5 here "
        "is ours. There a response of fewer than 4054 tokens is not truncated; here the status reported by the sampler "
        "decides. A group of one has A = R there and is refused here. The KL coefficient of 0.001 is that of the "
        "launch script. The variant for vision models (ADORA_VL, OpenRLHF) gives full weight to groups without a "
        "correct response and λ to groups without a wrong one. Of the paper only the abstract and a summary were read; "
        "the summary says that LLMs are amplified where VLMs are attenuated, hence a factor above 1 is allowed."
    ),
    confidence="code",
    credit=LongerIsRight(),
    penalties=ReferenceKL(kl_coef=0.001, mean="sequence"),
)
