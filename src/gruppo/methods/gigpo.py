"""GiGPO, group-in-group policy optimisation (Feng et al. 2025, arXiv:2505.10978).

    A^E_i = (R_i − mean R) / (std R + ε)             over the episodes of a task
    g_it = Σ_{u ≥ t} γ^{u−t} r_iu,   γ = 0.95        the return from turn t on
    A^S_it = (g_it − mean g) / (std g + ε)           over all turns of the task that begin in the same state
    A_it = A^E_i + ω A^S_it,   ω = 1                 for every token of turn t
    J = mean over turns of mean_t [ min(r_t A, clip(r_t, 1−0.2, 1+0.2) A) − β k3_t ],   β = 0.01

Differs from GRPO: turns that begin in the same state, the anchors, are compared with each other, too. So an action
that leads to the goal sooner is better even where all episodes succeed, and a loop is worse than a way on. No further
rollouts are needed. Every turn counts the same, however long it is.

A state that nobody else visits has A^S = 0; one that is visited twice in an episode is in its group twice. Without any
state that recurs this is GRPO. In a task of one turn, all answers begin at the task, so A^S is A^E. States are equal or
not; the similarity of texts is not looked at. Of several agents, each is compared with itself. A group of one is
refused. `over="turn"` takes the statistics of A^E over turns, so that long episodes weigh more; `normalise="mean"` does
not divide; `alone="raw"` gives A^E = R to an episode that is left alone in its group.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.credit import COMPARES
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.requires import RecurringStates
from gruppo.stages.turns import (
    Alone,
    Normalise,
    anchor_K,
    comparison,
    judged_K,
    seat_advantage,
    seat_return,
    turn_return,
)


@dataclass(frozen=True)
class AnchorGroups(Occupant):
    """A = A^E of the episode + step_coef · A^S of the turn: its return against those that begin in the same state.

    over       A^E compares episodes, or turns, each with the return of its episode
    normalise  A is (x − mean) / (std + eps), or x − mean
    alone      A^E of an episode that nothing compares with: zero, or its raw return
    """

    gamma: float = setting(0.95, low=0, high=1)
    step_coef: float = setting(1.0, low=0, witness=5.0)
    over: Literal["episode", "turn"] = "episode"
    normalise: Normalise = "std"
    alone: Alone = "zero"
    eps: float = setting(1e-6, low=0, witness=1.0)
    writes = ("adv_N",)
    ignores = ("scale",)
    requires = (COMPARES, RecurringStates())

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        judged = judged_K(batch)
        whole, step = (comparison(self.normalise, self.eps, alone=alone) for alone in (self.alone, "zero"))
        if self.over == "episode":
            whole_K = seat_advantage(batch, whole)
        else:
            whole_K = whole(seat_return(batch), batch.key("K", batch.group_K, batch.agent_K), judged)
        anchors = batch.key("K", batch.group_K, batch.agent_K, anchor_K(batch))
        step_K = step(turn_return(batch, self.gamma), anchors, judged)
        return {"adv_N": batch.spread(whole_K + self.step_coef * step_K, "K", "N")}


GIGPO = GRPO.but(
    name="gigpo",
    paper="arXiv:2505.10978",
    checked=(
        "Compared with compute_gigpo_outcome_advantage of verl-agent (gigpo/core_gigpo.py), read in copies of it: "
        "episode_norm_reward and step_norm_reward, ε = 1e-6, standard deviations with n - 1. Its statistics of A^E "
        "are over turns (compute_mean_std_cross_steps, here over=turn), and an episode alone in its group keeps its "
        "raw score (here alone=raw), while a turn alone has A^S = 0 there, too; the paper compares episodes. Its "
        "mode mean_norm is normalise=mean. From its scripts: γ = 0.95, ω = 1, β = 0.01, groups of 8. There a "
        "penalty of 0.1 on an invalid action is in the score of its own turn alone; here a reward of a turn is in "
        "the return of the episode. Its greedy matching of similar observations (enable_similarity) is left out. "
        "Every turn is a sample of its own there, and so it is in the mean here; verl's default is the mean over "
        "tokens."
    ),
    confidence="code",
    credit=AnchorGroups(gamma=0.95, step_coef=1.0),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="turn"),
    penalties=ReferenceKL(kl_coef=0.01, mean="turn"),
    breaks={"equal_rewards": "Of equal rewards the one that is nearer is worth more: γ prefers the shorter way."},
)
