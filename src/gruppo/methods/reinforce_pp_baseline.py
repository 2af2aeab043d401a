"""REINFORCE++-baseline (Hu et al. 2025, arXiv:2501.03262).

    A' = R_i − mean R      inside the group of a prompt
    A = whiten(A')         over all tokens of the batch
    J = mean_t [ min(r_t A_t, clip(r_t, 1−0.2, 1+0.2) A_t) − β k2_t ],      k2 = ½ (log π − log π_ref)²

Differs from REINFORCE++: the mean of the prompt's samples is taken off first, so that it needs groups, and the KL to
the reference is a term of the objective instead of a part of the reward. Differs from GRPO: one deviation for the whole
batch, not one for each group, so that a group with almost equal rewards is not blown up. Checked against verl
`core_algos.py`, compute_reinforce_plus_plus_baseline_outcome_advantage, and OpenRLHF experience_maker.py
(reinforce_baseline). verl's example keeps the KL in the reward (k1, 0.001); the k2 term is the paper's and OpenRLHF's
script's (use_loss, β = 1e-5 there). After whitening a group of equal rewards has not exactly 0 but the batch's mean of
A' with a minus, as in both. A group of one is refused (verl: A' = R).
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
    """R_i − mean of the group at every token of an answer, whitened over the tokens of the batch."""

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
    credit=WhitenedCentred(),
    penalties=ReferenceKL(kl_coef=0.001, mean="token", estimator="k2"),
)
