"""Dr.GRPO (Liu et al. 2025, arXiv:2503.20783, "Understanding R1-Zero-like training").

    A_i = R_i − mean R
    J = 1/G Σ_i 1/C Σ_t min(r_it A_i, clip(r_it, 1−0.2, 1+0.2) A_i),      C = the longest answer there can be

Differs from GRPO: no division by the group's standard deviation, which favours prompts that are too easy or too hard;
no division by a response's own length, which favours short correct and long wrong responses; no KL. With G samples per
prompt, G/(G−1) A_i is RLOO's advantage.

C is the run's max_tokens, whatever the lengths in the batch; `mean="episode_sum/4096"` sets another constant. A group
of one is refused.
"""

from gruppo.methods.grpo import GRPO
from gruppo.stages.credit import GroupCentred
from gruppo.stages.objective import ClippedSurrogate

DR_GRPO = GRPO.but(
    name="dr_grpo",
    paper="arXiv:2503.20783",
    checked=(
        "Compared with sail-sg/understand-r1-zero, train_zero_math.py: masked_sum with constant_normalizer = "
        "generate_max_length, and advantages without the deviation. Compared with verl, norm_adv_by_std_in_grpo=False "
        "and loss_agg_mode seq-mean-token-sum-norm, as in agg_loss of verl/trainer/ppo/core_algos.py at commit "
        "1dda039b9 of August 2026: the token sums of the sequences are averaged over the global batch size (over the "
        "sequences that have an unmasked token where it is not given) and divided by actor.loss_scale_factor, or, "
        "where that is not set, by the horizon, which is the padded response width of the batch. So 1/G is included "
        "there, as here, and the two agree if loss_scale_factor is max_tokens; without it C may vary from batch to "
        "batch. Before pull request 5366 of 2026 verl divided the plain sum by C and left 1/G out. A group of one has "
        "A = R in verl and is refused here."
    ),
    confidence="code",
    credit=GroupCentred(),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="episode_sum/max_tokens"),
    penalties=(),
    version=2,  # 1 wrapped the clipped surrogate in an objective of its own
)
