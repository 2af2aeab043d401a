"""RFT: rejection-sampling fine-tuning (Yuan et al. 2023, arXiv:2308.01825).

    D⁺ = {(x, o_i) : R_i ≥ 1}, each text once a prompt;      J = 1/Σ|o_i| Σ_{D⁺} Σ_t log π(o_it | x, o_i<t)

Differs from SFT: the answers are the policy's own, sampled at every step and kept if right. With rewards of 0 and 1 the
gradient is that of REINFORCE with A = R and no baseline, up to the denominator. This is the online form: the pool of
accepted answers does not grow over rounds. `method.select.accepted.most=1` keeps the best answer to a prompt (RAFT,
arXiv:2304.06767); the idea is that of STaR (arXiv:2203.14465). A prompt without a right answer has no gradient.
"""

from gruppo.methods.sft import SFT
from gruppo.stages.rollout import Group

RFT = SFT.but(
    name="rft",
    paper="arXiv:2308.01825",
    checked=(
        "Compared with OFA-Sys/gsm8k-ScRel, collect_rejection_sampling.py. The authors collect once: 100 answers "
        "to each question at temperature 0.7, of which they keep right ones whose equations compute correctly and "
        "whose list of equations differs from those kept before. Here sampling goes on at every step, a right "
        "answer is kept whatever its equations, and only identical texts count once. The online form is ours."
    ),
    confidence="code",
    rollout=Group(),
    breaks=SFT.breaks,
)
