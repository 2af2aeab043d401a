"""GRPO for pass@k (Tang et al. 2025, arXiv:2503.19595, "Optimizing language models for inference time objectives").

    A_i = mean over the S ∋ i of k answers of (max_{j∈S} R_j − max_{j∈S∖i} R_j) / (std R + ε)
    J = 1/G Σ_i 1/|o_i| Σ_t [ min(r_it, 1+0.2) A_i − β k3_it ]

The objective is the best of k answers. The baseline of an answer is what k tries would have had without it, so it is
worth as much as it adds: a right answer less and less, the more of the others are right. Differs from GRPO: this
advantage, which is never below 0, so that of the clips only the upper one can bind. Checked against verl
`core_algos.py`, compute_grpo_passk_outcome_advantage, which names the paper: there k is the group (here:
method.credit.k=8 samples=8), so that a second right answer leaves no advantage to any; the division by the deviation
is verl's. The mean over all S for k < G is that of Pass@K Policy Optimization (Walder and Karkhanis 2025,
arXiv:2505.15201, equation 33, up to its factor k/G); before the deviation it is unbiased, for any reward. Both formulas
were read in code, the papers only in excerpts. Pass@k Training (Chen et al. 2025, arXiv:2508.10751) is another method:
for rewards of 0 and 1, and it also pushes wrong answers down.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.grpo import GRPO
from gruppo.pieces import advantage
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.credit import COMPARES, to_tokens


@dataclass(frozen=True)
class BestOfK(Occupant):
    """A_i = what the answer adds to the best of k of its group, on average, over (std + eps)."""

    k: int = setting(2, low=2, witness=4)  # an answer is compared with k − 1 others
    eps: float = setting(1e-6, witness=1.0)
    writes = ("adv_N",)
    ignores = ("shift", "scale")
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        groups, judged = batch.level("E", "G"), batch.judged_E
        lead_E = advantage.lead(batch.reward_E, groups, self.k, where=judged)
        std_E = groups.spread(batch.gather(batch.reward_E, "E", groups, "std", where=judged, ddof=1))
        return to_tokens(batch, torch.where(lead_E > 0, lead_E / (std_E + self.eps), torch.zeros_like(lead_E)))


GRPO_PASSK = GRPO.but(
    name="grpo_passk",
    paper="arXiv:2503.19595",
    credit=BestOfK(k=2),
    version=2,  # 1 had an objective of its own, without the lower clip
    breaks={"fields_matter": "Advantages are never below 0, so the lower clip of GRPO's objective cannot bind."},
)
