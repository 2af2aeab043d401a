"""GRPO for pass@k (Tang et al. 2025, arXiv:2503.19595, "Optimizing language models for inference time objectives").

    A_i = mean over the S ∋ i of k answers of (max_{j∈S} R_j − max_{j∈S∖i} R_j) / (std R + ε)
    J = 1/G Σ_i 1/|o_i| Σ_t [ min(r_it, 1+0.2) A_i − β k3_it ]

Differs from GRPO: the objective is the best of k responses. The baseline of a response is what k tries would have
scored without it, so it is worth what it adds: a correct response less and less, the more of the others are correct. A
is never negative, so only the upper clip can bind.

Groups of fewer than k responses are compared as a whole. `normalise=False` leaves out the division by the deviation, as
in the paper; before that division the estimate is unbiased for any reward. `method.credit.k=8 samples=8` is verl's
form. Pass@k Training (Chen et al. 2025, arXiv:2508.10751) is a different method: its rewards are 0 and 1, and it also
pushes wrong responses down.
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
    """A_i = mean over the S ∋ i of k responses of (max_{j∈S} R_j − max_{j∈S∖i} R_j) / (std R + eps).

    k          a response is compared with k − 1 others of its group
    normalise  divide by std R + eps; False: do not, as in the paper
    """

    k: int = setting(2, low=2, witness=4)
    eps: float = setting(1e-6, low=0, witness=1.0)
    normalise: bool = setting(True, added=True)
    writes = ("adv_N",)
    ignores = ("shift", "scale")
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        groups, judged = batch.level("E", "G"), batch.judged_E
        lead_E = advantage.lead(batch.reward_E, groups, self.k, where=judged)
        if not self.normalise:
            return to_tokens(batch, lead_E)
        std_E = groups.spread(batch.gather(batch.reward_E, "E", groups, "std", where=judged, ddof=1))
        return to_tokens(batch, torch.where(lead_E > 0, lead_E / (std_E + self.eps), torch.zeros_like(lead_E)))


GRPO_PASSK = GRPO.but(
    name="grpo_passk",
    paper="arXiv:2503.19595",
    checked=(
        "Compared with verl core_algos.py, compute_grpo_passk_outcome_advantage, which names the paper. There k is the "
        "size of the group, so that a second correct response leaves no advantage to any. The division by the "
        "deviation is verl's (norm_adv_by_std_in_grpo, on by default there); the paper has none (normalise=False). The "
        "mean over all S for k < G is that of Pass@K Policy Optimization (Walder and Karkhanis 2025, arXiv:2505.15201, "
        "equation 33, up to its factor k/G). Both formulas were read in code, the papers only in excerpts. k = 2 is "
        "ours."
    ),
    confidence="code",
    credit=BestOfK(k=2),
    version=2,  # 1 had its own objective, without the lower clip
    breaks={"fields_matter": "Advantages are never below 0, so the lower clip of GRPO's objective cannot bind."},
)
