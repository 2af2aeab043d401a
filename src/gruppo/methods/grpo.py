"""GRPO (Shao et al. 2024, arXiv:2402.03300).

    A_i = (R_i − mean R) / (std R + ε)
    J = 1/G Σ_i 1/|o_i| Σ_t [ min(r_it A_i, clip(r_it, 1−0.2, 1+0.2) A_i) − β k3_it ]
    r = π/π_old,   k3 = exp(log π_ref − log π) − (log π_ref − log π) − 1

Differs from REINFORCE: rewards are normalised inside the group of a prompt, the ratio is clipped, each answer counts
the same whatever its length, and a KL to the reference is in the objective. Checked against verl
`core_algos.py`, compute_grpo_outcome_advantage and kl_penalty: std with n − 1; β = 0.04 and the mean per sequence
are the paper's, verl's defaults are 0.001 and the mean over tokens. A group of one is refused (verl: A = R).
"""

from gruppo.methods.reinforce import REINFORCE
from gruppo.stages.credit import GroupNormalised
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.penalties import ReferenceKL

GRPO = REINFORCE.but(
    name="grpo",
    paper="arXiv:2402.03300",
    credit=GroupNormalised(eps=1e-6),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="sequence"),
    penalties=ReferenceKL(kl_coef=0.04, mean="sequence"),
)
