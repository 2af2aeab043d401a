"""OPRL, online process reward learning (Liu et al. 2025, arXiv:2509.19199; from version 3 on called iStar).

    r_k = β Σ_{t in step k} (log π_φ(o_t) − log π_old(o_t))                                the reward of step k
    A_t = RLOO of R over the group + w · RLOO of r over all steps of the group             for the tokens of step k
    J_π = mean_t min(ratio_t A_t, clip(ratio_t, 1 ± 0.2) A_t)
    J_φ = mean over pairs of log σ(S(o⁺) − S(o⁻)),    S(o) = Σ_k r_k,   o⁺ right and o⁻ wrong, of one group

Differs from RLOO: a second language model φ, the role `prm`, learns by DPO which answers of a group are better, with
the policy that sampled them as its reference. Its log-ratio is the reward of each step, taken before φ is updated. The
step advantage is added to the episode advantage: advantages are added, not rewards. `normalise="group"` uses
group-normalised advantages for both (the GRPO form). A step is a turn; answers of one turn are split at
`rollout.steps`, here a line break (for task=chain, `method.rollout.steps=" "`). Pairs are all pairs of different
rewards. While φ equals the old policy, every r is 0 and this is RLOO with PPO's clip. A group of one is refused.
"""

from dataclasses import dataclass
from typing import Any, Literal

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
    """A_t = A(R) of the episode + step_coef · A(r) of the step, r = beta Σ_t (log π_φ − log π_old) over the step.

    Also writes the pairs that φ learns from, with the `beta` that scales its log-ratios.

    normalise  A within the group: leave_one_out, x − mean of the others; group, (x − mean) / (std + 1e-6)
    """

    beta: float = setting(0.05, above=0, witness=0.5)
    step_coef: float = setting(1.0, low=0, witness=5.0)
    normalise: Literal["leave_one_out", "group"] = setting("leave_one_out", added=True)
    writes = ("adv_N", "win_P", "lose_P", "margin_P", "beta_E")
    ignores = ("shift",)
    requires = (COMPARES,)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (OLD, need("logp", "prm"))

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        mine_N, groups = judged_N(batch), batch.level("E", "G")
        paid_K = self.beta * batch.gather(batch.logp_prm_N - batch.logp_old_N, "N", "K", "sum", where=mine_N)
        compared = advantage.z_score if self.normalise == "group" else advantage.leave_one_out
        step_K = compared(paid_K, batch.level("K", "G"), where=batch.gather(mine_N, "N", "K", "any"))
        whole_E = compared(batch.reward_E, groups, where=batch.judged_E)
        pairs = inside(groups, batch.reward_E, batch.judged_E & batch.learn_E)
        adv_N = batch.spread(whole_E, "E", "N") + self.step_coef * batch.spread(step_K, "K", "N")
        return {"adv_N": adv_N, **pairs.columns(), "beta_E": torch.full_like(whole_E, self.beta)}


@dataclass(frozen=True)
class PairLikelihood(Occupant):
    """log σ(S_w − S_l), S = β Σ_t (log π_φ − log π_old) over the policy's tokens: the objective of φ."""

    mean: Any = setting("token", above=0, added=True)
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
    """Sampled tokens of answers to learn from, including those that selection dropped."""
    return (batch.source_N == Source.POLICY) & batch.spread(batch.learn_E, "E", "N")


OPRL = RLOO.but(
    name="oprl",
    paper="arXiv:2509.19199",
    checked=(
        "Compared with Tongyi-ConvAI/Tongyi-Character, CharacterRL-iStar: istar/core_istar.py, istar/dp_rm.py, "
        "istar/rm_utils.py, verl/trainer/ppo/ray_trainer.py and examples/istar_trainer/run_webshop.sh, read at "
        "commit dfee104. From the script: β = 0.05, w = 1, no KL; step rewards come from the forward pass before "
        "the update of φ, as here. Where code and paper differ, this follows the paper. (1) S is the sum over "
        "steps; compute_eto_loss_rm takes their mean. (2) The baseline of a step is all other steps of the group; "
        "step_rloo_reward averages over the first step of each trajectory only. (3) φ has a gradient; "
        "update_rm_eto detaches the log-ratios before the loss, so that in the published code φ never moves. "
        "Further differences: the code divides step rewards by their largest absolute value in the batch "
        "(istar_norm=batch_norm, the default of its configuration), which is left out here; its pairs are "
        "successes (reward above 0) against failures, here all pairs of different rewards, the higher one as "
        "right; a group of one has A = R there and is refused here; its script adds a penalty of 0.1 on invalid "
        "actions. normalise=group is compute_istar_grpo_advantage with mode mean_std_norm (standard deviation with "
        "n - 1, epsilon 1e-6), but over all steps of the group; the default mode of the configuration, mean_norm, "
        "does not divide by the standard deviation. The learning rates of the script are 5e-7 for the policy and "
        "1e-6 for φ, here the run's unless cast.prm.lr is set; gradients of both are clipped at optim.clip_norm "
        "(script: 10 for φ)."
    ),
    confidence="code",
    rollout=Group(steps="\n"),
    credit=EpisodeAndSteps(beta=0.05, step_coef=1.0),
    objective={"policy": ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token"), "prm": PairLikelihood()},
    update=Passes(epochs=1, minibatches=2),
    cast={"prm": Role(train=True)},
    together=("credit", "objective"),
    breaks={"equal_rewards": "Steps are paid by the second model, also where all answers have the same reward."},
)
