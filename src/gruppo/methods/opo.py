"""OPO (Hao et al. 2025, arXiv:2505.23585, "On-policy RL with optimal reward baseline").

    A_i = R_i − b,      b = Σ_j |o_j| R_j / Σ_j |o_j|      over the group of a prompt
    J = 1/B Σ_i A_i Σ_t log π(o_it | q, o_i<t)

Differs from REINFORCE: the baseline is the length-weighted mean reward of the prompt's samples. The baseline of least
variance is E[|∇ log π|² R] / E[|∇ log π|²]; if token gradients are orthogonal and of equal norm, |∇ log π|² is
proportional to the length, which gives b. Training is exactly on-policy, with one optimiser step per batch, so there is
no importance ratio and no clip; no KL, no entropy bonus. A group of one is refused.
"""

from dataclasses import dataclass

from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.reinforce import REINFORCE
from gruppo.pieces import advantage
from gruppo.stages import Context, Occupant
from gruppo.stages.credit import COMPARES, judged_N, to_tokens


@dataclass(frozen=True)
class LengthWeighted(Occupant):
    """A_i = R_i − length-weighted mean reward of the group; a length counts the tokens that the policy sampled."""

    writes = ("adv_N",)
    ignores = ("shift",)
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        length_E = batch.gather(judged_N(batch), "N", "E", "sum").to(batch.reward_E.dtype)
        groups = batch.level("E", "G")
        return to_tokens(batch, advantage.weighted_centre(batch.reward_E, length_E, groups, where=batch.judged_E))


OPO = REINFORCE.but(
    name="opo",
    paper="arXiv:2505.23585",
    checked=(
        "Compared with verl core_algos.py, compute_opo_outcome_advantage, and docs/algo/opo.md; the formula of b "
        "was read in both and in summaries of the paper. verl averages over tokens by default; the paper's "
        "gradient is that of the whole answer, as here (objective.mean=token is verl's). verl has b = 0 in a group "
        "of one, which is refused here."
    ),
    confidence="code",
    credit=LengthWeighted(),
)
