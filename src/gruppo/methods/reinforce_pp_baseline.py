"""REINFORCE++-baseline (Hu et al. 2025, arXiv:2501.03262).

    A' = R_i − mean R      inside the group of a prompt
    A = whiten(A')         over all tokens of the batch
    J = mean_t [ min(r_t A_t, clip(r_t, 1−0.2, 1+0.2) A_t) − β k2_t ],      k2 = ½ (log π − log π_ref)²

Differs from REINFORCE++: the group mean is subtracted first, so groups are needed, and the KL to the reference is a
term of the objective instead of a part of the reward. Differs from GRPO: one standard deviation for the whole batch
instead of one per group, so a group with almost equal rewards is not amplified. After whitening, a group of equal
rewards has minus the batch mean of A' (over the standard deviation) instead of exactly 0. A group of one is refused.
"""

from dataclasses import dataclass

from torch import Tensor

from gruppo.data import Batch, centre
from gruppo.methods.reinforce_pp import REINFORCE_PP
from gruppo.stages import Context, Occupant
from gruppo.stages.credit import COMPARES, judged_in_time, whitened
from gruppo.stages.penalties import ReferenceKL


@dataclass(frozen=True)
class WhitenedCentred(Occupant):
    """R_i − group mean on every token of an answer, whitened over the tokens of the batch."""

    writes = ("adv_N",)
    ignores = ("shift", "scale")
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        mine = judged_in_time(batch)
        centred_E = centre(batch.reward_E, batch.level("E", "G"), where=batch.judged_E)
        return whitened(batch, mine, batch.spread(centred_E, "E", "N")[mine])


REINFORCE_PP_BASELINE = REINFORCE_PP.but(
    name="reinforce_pp_baseline",
    paper="arXiv:2501.03262",
    checked=(
        "Compared with verl core_algos.py, compute_reinforce_plus_plus_baseline_outcome_advantage, and OpenRLHF "
        "experience_maker.py (reinforce_baseline). In both, too, a group of equal rewards is not exactly 0 after "
        "whitening. verl's example keeps the KL in the reward (k1, 0.001); the k2 term is that of the paper and of "
        "OpenRLHF's script (use_loss, with β = 1e-5; here 0.001). verl has A' = R in a group of one, which is "
        "refused here."
    ),
    confidence="code",
    credit=WhitenedCentred(),
    penalties=ReferenceKL(kl_coef=0.001, mean="token", estimator="k2"),
)
