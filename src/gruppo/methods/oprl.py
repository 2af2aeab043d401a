"""OPRL, online process reward learning (Liu et al. 2025, arXiv:2509.19199; from version 3 on called iStar).

    r_k = β Σ_{t in step k} (log π_φ(o_t) − log π_old(o_t))                                what step k is paid
    A_t = RLOO of R over the group + w · RLOO of r over all steps of the group             for the tokens of step k
    J_π = mean_t min(ratio_t A_t, clip(ratio_t, 1 ± 0.2) A_t)
    J_φ = mean over pairs of log σ(S(o⁺) − S(o⁻)),    S(o) = Σ_k r_k,   o⁺ right and o⁻ wrong, of one group

Differs from RLOO: a second language model φ, the role `prm`, learns which answers of a group are better, by DPO
against the policy that wrote them. Its log-ratio pays every step, and the advantage of a step is added to that of the
answer: advantages are added, not rewards. Steps are paid by φ as it was before its own update. A step is a turn; in
answers of one turn it ends with `rollout.steps`, here a line (for `task=chain`, `method.rollout.steps=" "`).
Notes on CharacterRL-iStar/istar/core_istar.py and dp_rm.py of the authors were read, not the files. Where they differ
from the paper we follow the paper: S is the sum over steps (code: their mean), the baseline of a step is all other
steps of the group (code: first steps only), and φ has a gradient (as read, the code detaches it). All pairs of
different rewards count, the higher one as right. β = 0.05, w = 1, no KL. The paper's learning rates are 5e-7 for the
policy and 1e-6 for φ, here the run's unless cast.prm.lr is set; gradients of both are clipped at optim.clip_norm
(paper: 10 for φ). Where φ is the old policy every r is 0, and this is RLOO with PPO's clip. Confidence: code, by notes.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, Source
from gruppo.data.pairs import inside
from gruppo.methods.rloo import RLOO
from gruppo.pieces import advantage
from gruppo.pieces.preference import bradley_terry
from gruppo.stages import Context, Need, Occupant, Role, Stats, Term, Values, need, setting
from gruppo.stages.credit import COMPARES, judged_N
from gruppo.stages.objective import OLD, ClippedSurrogate
from gruppo.stages.relations import pair_terms, pair_values
from gruppo.stages.rollout import Group
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class EpisodeAndSteps(Occupant):
    """Advantage of the episode and, times `step_coef`, of the step, each against the others of the group.

    Also gives the pairs that the second model learns from, with the `beta` that its log-ratios are scaled by.
    """

    beta: float = setting(0.05, witness=0.5)
    step_coef: float = setting(1.0, witness=5.0)
    writes = ("adv_N", "win_P", "lose_P", "margin_P", "beta_E")
    ignores = ("shift",)
    requires = (COMPARES,)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (OLD, need("logp", "prm"))

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        mine_N, groups = judged_N(batch), batch.level("E", "G")
        paid_K = self.beta * batch.gather(batch.logp_prm_N - batch.logp_old_N, "N", "K", "sum", where=mine_N)
        step_K = advantage.leave_one_out(paid_K, batch.level("K", "G"), where=batch.gather(mine_N, "N", "K", "any"))
        whole_E = advantage.leave_one_out(batch.reward_E, groups, where=batch.judged_E)
        pairs = inside(groups, batch.reward_E, batch.judged_E & batch.learn_E)
        adv_N = batch.spread(whole_E, "E", "N") + self.step_coef * batch.spread(step_K, "K", "N")
        return {"adv_N": adv_N, **pairs.columns(), "beta_E": torch.full_like(whole_E, self.beta)}


@dataclass(frozen=True)
class PairLikelihood(Occupant):
    """log σ(S_w − S_l), S = β Σ_t (log π_φ − log π_old) over the policy's tokens: the second model's objective."""

    mean: Any = setting("token", added=True)
    reads = ("win_P", "lose_P", "beta_E")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("logp", "prm", when="step"), OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return pair_terms(batch.pairs.both(batch.gather(wrote_N(batch), "N", "E", "any")), self.mean)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        gap_N = stats.logp_N - batch.logp_old_N
        sum_E = batch.beta_E * batch.gather(gap_N, "N", "E", "sum", where=wrote_N(batch))
        return pair_values(batch, bradley_terry(batch.pairs.gap(sum_E)), sum_E)


def wrote_N(batch: Batch) -> Tensor:
    """What the policy wrote in answers to learn from, also if selection dropped it."""
    return (batch.source_N == Source.POLICY) & batch.spread(batch.learn_E, "E", "N")


OPRL = RLOO.but(
    name="oprl",
    paper="arXiv:2509.19199",
    rollout=Group(steps="\n"),
    credit=EpisodeAndSteps(beta=0.05, step_coef=1.0),
    objective={"policy": ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token"), "prm": PairLikelihood()},
    update=Passes(epochs=1, minibatches=2),
    cast={"prm": Role(train=True)},
    together=("credit", "objective"),
    breaks={"equal_rewards": "Steps are paid by the second model, also where all answers have the same reward."},
)
