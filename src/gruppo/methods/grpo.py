"""GRPO (Shao et al. 2024, arXiv:2402.03300).

    A_i = (R_i − mean R) / (std R + ε)
    J = 1/G Σ_i 1/|o_i| Σ_t [ min(r_it A_i, clip(r_it, 1−0.2, 1+0.2) A_i) − β k3_it ]
    r = π/π_old,   k3 = exp(log π_ref − log π) − (log π_ref − log π) − 1

Differs from REINFORCE: rewards are normalised within the group of a prompt, the importance ratio is clipped, every
response counts the same whatever its length, and a KL to the reference is in the objective. A group of equal rewards
has A = 0 and stays in the mean. A group of one is refused.
"""

from gruppo.methods.reinforce import REINFORCE
from gruppo.stages.credit import GroupNormalised
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.penalties import ReferenceKL

GRPO = REINFORCE.but(
    name="grpo",
    paper="arXiv:2402.03300",
    checked=(
        "Compared with verl core_algos.py, compute_grpo_outcome_advantage and kl_penalty: the standard deviation has n "
        "- 1. β = 0.04 and the mean per sequence are the paper's; verl's defaults are 0.001 and the mean over tokens. "
        "A group of one has A = R in verl and is refused here. verl's kl_penalty clamps the log-ratio of k3 to -20 to "
        "20 and its value to -10 to 10, so that beyond a value of 10 (a log-ratio above about 2.6 or below about -11) "
        "the penalty has no gradient there. Here the log-ratio log π_ref - log π is bounded by 20 above only, to keep "
        "exp finite, and the value has no bound, so that the pull to the reference does not end; a single far token "
        "can weigh much more than in verl."
    ),
    confidence="code",
    credit=GroupNormalised(eps=1e-6),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="sequence"),
    penalties=ReferenceKL(kl_coef=0.04, mean="sequence"),
)
