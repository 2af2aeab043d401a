"""Forking tokens (Wang et al. 2025, arXiv:2506.01939, "Beyond the 80/20 rule").

    J = Σ_it 1[H_it ≥ τ] min(r_it A_i, clip(r_it, 1−0.2, 1+0.28) A_i) / Σ_it 1[H_it ≥ τ]
    H_it = −Σ_v π_old log π_old,      τ: the entropy above which the top 20 % of the batch's tokens lie

Differs from DAPO: tokens below τ are left out of both sum and denominator. Few tokens decide where a response goes, and
they are the uncertain ones; learning from them alone is as good as learning from all.

No gradient flows through H or τ. The top 20 % are taken over the whole step, before it is cut into minibatches. All
tokens at τ stay, so more than 20 % may remain. `method.select.top_entropy.counted=true` keeps the dropped tokens in the
denominator, as TRL does. H is taken at the sampler's temperature.
"""

from gruppo.methods.dapo import DAPO
from gruppo.stages.select import TopEntropy

FORKING_TOKENS = DAPO.but(
    name="forking_tokens",
    paper="arXiv:2506.01939",
    checked=(
        "Compared with the paper (sections 5.1 and 5.2, equation 6) and with TRL grpo_trainer.py, "
        "get_high_entropy_mask. The paper's code takes the top 20 % over a micro-batch and drops ties; here it is over "
        "the step, and all tokens at τ stay. TRL divides by all tokens (counted=true). H is taken at the sampler's "
        "temperature; the paper's is 1."
    ),
    confidence="code",
    select=TopEntropy(share=0.2),
)
