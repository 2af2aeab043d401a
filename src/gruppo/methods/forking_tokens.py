"""Forking tokens (Wang et al. 2025, arXiv:2506.01939, "Beyond the 80/20 rule").

    J = Σ_it 1[H_it ≥ τ] min(r_it A_i, clip(r_it, 1−0.2, 1+0.28) A_i) / Σ_it 1[H_it ≥ τ]
    H_it = −Σ_v π_old log π_old,      τ: the entropy above which the top 20 % of the batch's tokens lie

Few tokens decide where an answer goes, and these are uncertain: learning from them alone is as good as from all.
Differs from DAPO: the tokens below τ are left out, of the sum and of the count. No gradient flows through H or τ.
Checked against the paper (sections 5.1 and 5.2, equation 6) and TRL `grpo_trainer.py`, get_high_entropy_mask. The
batch is the step, before it is cut into minibatches (the paper's code: the micro-batch, ties dropped). Tokens at τ all
stay, so that more than 20 % may. TRL divides by all tokens: `method.select.top_entropy.counted=true`. H is taken at
the temperature of the sampler; the paper's is 1.
"""

from gruppo.methods.dapo import DAPO
from gruppo.stages.select import TopEntropy

FORKING_TOKENS = DAPO.but(
    name="forking_tokens",
    paper="arXiv:2506.01939",
    select=TopEntropy(share=0.2),
)
