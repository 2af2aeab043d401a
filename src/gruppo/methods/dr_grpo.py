"""Dr.GRPO (Liu et al. 2025, arXiv:2503.20783, "Understanding R1-Zero-like training").

    A_i = R_i − mean R
    J = 1/G Σ_i 1/C Σ_t min(r_it A_i, clip(r_it, 1−0.2, 1+0.2) A_i),      C = the longest answer there can be

Differs from GRPO: no division by the group's deviation, which favours questions that are too easy or too hard; no
division by an answer's own length, which favours short right answers and long wrong ones; no KL. With G equal samples,
G/(G−1) A_i is RLOO's advantage. Checked against sail-sg/understand-r1-zero, train_zero_math.py (masked_sum with
constant_normalizer = generate_max_length; advantages without the deviation) and verl, norm_adv_by_std_in_grpo=False
with seq-mean-token-sum-norm, which divides by C only, leaves 1/G to its caller, and takes the padded width of the batch
for C unless told. Here C is the run's max_tokens, or budget_tokens, whatever the batch. A group of one is refused
(verl: A = R).
"""

from gruppo.methods.grpo import GRPO
from gruppo.stages.credit import GroupCentred
from gruppo.stages.objective import ClippedSurrogate

DR_GRPO = GRPO.but(
    name="dr_grpo",
    paper="arXiv:2503.20783",
    credit=GroupCentred(),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="episode_sum/max_tokens"),
    penalties=(),
    version=2,  # 1 had an objective of its own around the clipped surrogate
)
