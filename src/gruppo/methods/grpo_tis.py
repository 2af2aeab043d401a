"""GRPO with truncated importance sampling, TIS (Yao et al. 2025, "Your efficient RL framework secretly …").

    w_it = sg( min( π_old(o_it) / π_gen(o_it), 2 ) )
    J = 1/G Σ_i 1/|o_i| Σ_t [ w_it · min(r_it A_i, clip(r_it, 1−0.2, 1+0.2) A_i) − β k3_it ]

Differs from GRPO: tokens are weighted by the truncated importance ratio of trainer and sampler. π_gen is what the
sampler drew from, π_old the same weights in the trainer, π the weights being trained. Any method can take it:
`method.select+=truncated_importance`. With a sampler that agrees with the trainer, as the built-in one does to 1e-4, w
= 1 up to that and this is GRPO.

Variants: `level=sequence` (the product over a response, unbiased with a high variance), `level=geometric`,
`self_normalised`, and `method.select+=sampler_gate`, which drops what lies outside a band (masked importance sampling,
MIS; Liu et al. 2025, "When speed kills stability"): by token, by sequence, or by a narrow band of the geometric mean.
"""

from gruppo.methods.grpo import GRPO
from gruppo.stages.select import TruncatedImportance

GRPO_TIS = GRPO.but(
    name="grpo_tis",
    paper="Yao et al. 2025",
    checked=(
        "Compared with verl rollout_corr_helper.py and TRL grpo_trainer.py, vllm_importance_sampling_mode. They "
        "differ: outside the band verl takes tokens out of the denominators, TRL leaves them in (the field counted of "
        "sampler_gate). verl's token band is one of π_gen/π_old; here and in TRL it is one of π_old/π_gen, which is "
        "the same where low = 1/high. The cap of 2 is verl's; the default of TRL is a band by sequence, up to 3."
    ),
    confidence="code",
    select=TruncatedImportance(cap=2.0, level="token"),
)
