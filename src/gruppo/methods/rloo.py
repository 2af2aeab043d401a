"""RLOO (Ahmadian et al. 2024, arXiv:2402.14740; Kool et al. 2019).

    A_i = R_i − 1/(G−1) Σ_{j≠i} R_j,      R_i = r_i − β Σ_t (log π_old − log π_ref)
    J = 1/B Σ_i A_i Σ_t log π(o_it | q, o_i<t)

Differs from REINFORCE: the baseline is the mean reward of the prompt's other samples, and the KL to the reference is
part of the reward. A single sample per prompt is refused, because it has no other sample to be compared with.
"""

from gruppo.methods.reinforce import REINFORCE
from gruppo.stages.credit import LeaveOneOut

RLOO = REINFORCE.but(
    name="rloo",
    paper="arXiv:2402.14740",
    checked=(
        "Compared with verl core_algos.py, compute_rloo_outcome_advantage. β = 0.03 is the low end of the values "
        "in use (0.03 to 0.05)."
    ),
    confidence="code",
    credit=LeaveOneOut(kl_coef=0.03),
)
