"""RFT: rejection-sampling fine-tuning (Yuan et al. 2023, arXiv:2308.01825).

    D⁺ = {(x, o_i) : R_i ≥ 1}, each text once a prompt;      J = 1/Σ|o_i| Σ_{D⁺} Σ_t log π(o_it | x, o_i<t)

Differs from SFT: the answers are the policy's own, sampled at every step and kept if they are right. With rewards of 0
and 1 the gradient is that of REINFORCE with A = R and no baseline, but for the count. This is the on-line form: the
pool of accepted answers does not grow over rounds. `method.select.accepted.most=1` keeps the best one of a prompt
(RAFT, arXiv:2304.06767); the idea is STaR's (arXiv:2203.14465). A prompt without a right answer says nothing.
"""

from gruppo.methods.sft import SFT
from gruppo.stages.rollout import Group

RFT = SFT.but(name="rft", paper="arXiv:2308.01825", rollout=Group(), breaks=SFT.breaks)
