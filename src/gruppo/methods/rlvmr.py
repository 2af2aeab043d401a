"""RLVMR, verifiable meta-reasoning rewards (Zhang et al. 2025, arXiv:2507.22844); its optimiser is GRPO-MR.

    r_t = 1 for a valid turn whose kind of thought, its tag, kept its word, else 0:
        planning    the episode succeeds
        explore     this action was not taken before in the episode
        reflection  the turn before was invalid, or there is none, and this action is another
    A^R_i = (R_i − mean R) / (std R + ε)          over the episodes of a task
    A^M_t = (r_t − mean r) / (std r + ε)          over the turns of the task with the same tag
    A_t = α A^R_i + (1 − α) A^M_t,   α = 0.5      for every token of turn t

Differs from GRPO: an agent names the kind of each thought (the format `rlvmr` of `gruppo.envs.format`) and is paid, by
rules, for thoughts that do what they say. These rewards are recorded (`meta`) and are no part of the return. Turns
without a tag, and those whose action is void or invalid, are compared with each other, and all have 0; monitor, the
fourth tag, is not paid. An invalid action costs 0.1 of the return. A tag that occurs once in a group has A^M = 0.

The mix of the paper is traj_coef = α, meta_coef = 1 − α; the released code adds: traj_coef = 1, meta_coef = 1.
`over="turn"` and `alone="raw"` are the code's, too. Without tags it is GRPO with half its advantage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Turn
from gruppo.data.episode import FLAGS
from gruppo.methods.grpo import GRPO
from gruppo.pieces import advantage
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.credit import COMPARES
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.requires import FactsOfTurns, InRoom
from gruppo.stages.reward import InvalidActions


@dataclass(frozen=True)
class MetaReasoning(Occupant):
    """Component `meta` of turns, recorded but not paid: 1 where a thought of its kind did what it says.

    new  what an exploring turn must be the first to do in its episode: an action; or reach a place, a state
    """

    new: Literal["action", "place"] = "action"
    replaces = ("meta",)
    requires = (FactsOfTurns("the tags of turns"),)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        return {"meta": [[float(_valid(t) and self.kept_word(e, i)) for i, t in enumerate(e.turns)] for e in episodes]}

    def kept_word(self, e: Episode, i: int) -> bool:
        """Whether turn i did what its tag says."""
        match e.turns[i].tag:
            case "planning":
                return e.score > 0
            case "explore":
                return self.is_new(e, i)
            case "reflection":
                return i == 0 or (not _valid(e.turns[i - 1]) and _action(e.turns[i]) != _action(e.turns[i - 1]))
            case _:
                return False

    def is_new(self, e: Episode, i: int) -> bool:
        if self.new == "action":
            return _action(e.turns[i]) not in {_action(t) for t in e.turns[:i] if _valid(t)}
        places = [*(t.state for t in e.turns), e.final_state]
        return places[i + 1] != "" and places[i + 1] not in places[: i + 1]


def _valid(t: Turn) -> bool:
    return not t.flags & {"invalid", "void"}


def _action(t: Turn) -> str:
    return t.action_key or t.text


@dataclass(frozen=True)
class TrajectoryAndTags(Occupant):
    """A = traj_coef · z(R) of the episode + meta_coef · z(meta) of the turn, among turns of the group with its tag.

    over   z(R) compares episodes, or turns, each with the return of its episode
    alone  z(meta) of a turn that nothing compares with: zero, or its raw reward
    """

    traj_coef: float = setting(0.5, low=0, witness=2.0)
    meta_coef: float = setting(0.5, low=0, witness=2.0)
    over: Literal["episode", "turn"] = "episode"
    alone: Literal["zero", "raw"] = "zero"
    eps: float = setting(1e-6, low=0, witness=1.0)
    writes = ("adv_N",)
    ignores = ("shift", "scale")
    requires = (COMPARES, InRoom("reward", ("meta_reasoning",)))

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        judged_K, return_K = (batch.spread(x_E, "E", "K") for x_E in (batch.judged_E, batch.reward_E))
        if self.over == "episode":
            whole_E = advantage.z_score(batch.reward_E, batch.level("E", "G"), where=batch.judged_E, eps=self.eps)
            whole_K = batch.spread(whole_E, "E", "K")
        else:
            whole_K = advantage.z_score(return_K, batch.level("K", "G"), where=judged_K, eps=self.eps)
        step_K = self.by_tag(batch, judged_K)
        return {"adv_N": batch.spread(self.traj_coef * whole_K + self.meta_coef * step_K, "K", "N")}

    def by_tag(self, batch: Batch, judged_K: Tensor) -> Tensor:
        if "meta" not in batch.components:
            return torch.zeros_like(batch.reward_K)
        meta_K = torch.where(judged_K, batch.reward_KC[:, batch.components.index("meta")].nan_to_num(0.0), 0.0)
        valid_K = (batch.flags_K & (FLAGS["invalid"] | FLAGS["void"])) == 0
        tags = batch.key("K", batch.group_K, torch.where(valid_K, batch.tag_K, 0))
        adv_K = advantage.z_score(meta_K, tags, where=judged_K, eps=self.eps)
        return advantage.raw_if_alone(adv_K, meta_K, tags, judged_K) if self.alone == "raw" else adv_K


RLVMR = GRPO.but(
    name="rlvmr",
    paper="arXiv:2507.22844",
    checked=(
        "Compared with zzjweb/digitalhuman, RLVMR/code/rlvmr/core_rlvmr.py, its ppo_trainer.yaml and "
        "run_alfworld.sh: the rules of the rewards, ε, standard deviations with n - 1, β = 0.01, and 0.1 for an "
        "invalid action. The mix with α = 0.5 is from notes on the paper; the code adds, with a weight of 1 in its "
        "scripts and 0.5 in its default file. Its statistics of R are over turns (here over=turn), and a tag that "
        "occurs once keeps its raw reward (here alone=raw). In the paper an exploring turn must reach a new object or "
        "place, by notes on it; in the code, and so here, take a new action; new=place takes a new state for a new "
        "place. There the penalty of an invalid action is in the score of its own turn alone; here it is in the "
        "return of the episode. Every turn is a sample of its own there, and so it is in the mean here. The cold "
        "start on 200 tagged trajectories is not part of the method here: train it with method=sft."
    ),
    confidence="code",
    reward=(MetaReasoning(), InvalidActions(invalid_coef=0.1)),
    credit=TrajectoryAndTags(traj_coef=0.5, meta_coef=0.5),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="turn"),
    penalties=ReferenceKL(kl_coef=0.01, mean="turn"),
    together=("reward", "credit"),
)
