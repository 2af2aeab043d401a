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
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.grpo import GRPO
from gruppo.pieces import advantage
from gruppo.stages import Context, Need, Occupant, Stats, Term
from gruppo.stages.credit import COMPARES, to_tokens
from gruppo.stages.objective import ClippedSurrogate


@dataclass(frozen=True)
class BestOfK(Occupant):
    """A_i = what the answer adds to the best of k of its group, on average, over (std + eps)."""

    k: int = 2
    eps: float = 1e-6
    gives = ("adv_N",)
    ignores = ("shift", "scale")
    min_samples = 2
    alone = COMPARES
    witness = {"k": 4, "eps": 1.0}

    def __post_init__(self) -> None:
        if self.k < 2:
            raise ValueError(f"k={self.k}: an answer is compared with k - 1 others. Use 2 or more, or method=grpo.")

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        groups, judged = batch.level("E", "G"), batch.judged_E
        lead_E = advantage.lead(batch.reward_E, groups, self.k, where=judged)
        std_E = groups.spread(batch.gather(batch.reward_E, "E", groups, "std", where=judged, ddof=1))
        return to_tokens(batch, torch.where(lead_E > 0, lead_E / (std_E + self.eps), torch.zeros_like(lead_E)))


@dataclass(frozen=True)
class UpperClipped(Occupant):
    """min(r, 1 + clip_high) A: the clipped surrogate of advantages that are never below 0."""

    clip_high: float = 0.2
    mean: Any = "sequence"
    takes = ("adv_N",)
    witness = {"clip_high": 0.9, "mean": ["token", "sequence"]}

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return ClippedSurrogate().needs(ctx)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        return ClippedSurrogate(clip_high=self.clip_high, mean=self.mean)(ctx, batch, stats)


GRPO_PASSK = GRPO.but(
    name="grpo_passk",
    paper="arXiv:2503.19595",
    credit=BestOfK(k=2),
    objective=UpperClipped(clip_high=0.2, mean="sequence"),
)
