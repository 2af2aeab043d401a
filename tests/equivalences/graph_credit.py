"""Equivalences of methods whose difference is credit or rollout."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from sides import REINFORCE, RLOO, Centred, Equivalence, by_episode, even, members
from torch import Tensor

from gruppo.data import Batch, Episode, Use
from gruppo.methods import method
from gruppo.methods.grpo_passk import BestOfK
from gruppo.methods.reinforce_pp import WhitenedReturn
from gruppo.stages import Context, Occupant, Role
from gruppo.stages.credit import Gae, LeaveOneOut
from gruppo.stages.objective import ClippedSurrogate, PolicyGradient

DR_GRPO, REMAX, GPG, OPO, PASSK = (method(n) for n in ("dr_grpo", "remax", "gpg", "opo", "grpo_passk"))
REINFORCE_PP, REINFORCE_PP_BASELINE = method("reinforce_pp"), method("reinforce_pp_baseline")


# The other sides, written by loops


@dataclass(frozen=True)
class Less(Occupant):
    """R_i − b, the same b for all."""

    b: float = 0.5
    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rewards = batch.reward_E.tolist()
        return by_episode(batch, {i: rewards[i] - self.b for rows in members(batch).values() for i in rows})


@dataclass(frozen=True)
class Lead(Occupant):
    """max with the answer less max without it, over the deviation: a loop over every choice of k − 1 others."""

    k: int = 2
    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        reward, adv = batch.reward_E.tolist(), {}
        for rows in members(batch).values():
            if len(rows) > 1:
                mean = math.fsum(reward[i] for i in rows) / len(rows)
                std = math.sqrt(math.fsum((reward[i] - mean) ** 2 for i in rows) / (len(rows) - 1))
                for i in rows:
                    sets = list(combinations([j for j in rows if j != i], min(self.k, len(rows)) - 1))
                    gains = [max(reward[i] - max(reward[j] for j in s), 0.0) for s in sets]
                    adv[i] = math.fsum(gains) / len(sets) / (std + 1e-6)
        return by_episode(batch, adv)


# What is changed before the two are compared


def learned(episodes: list[Episode]) -> list[Episode]:
    """Only answers that have ended and are learned from: PPO's whitening leaves baselines out, and knows open ones."""
    return [e for e in episodes if e.use == Use.LEARN and e.status.judged]


def without_turns(f: Callable[[list[Episode]], list[Episode]]) -> Callable[[list[Episode]], list[Episode]]:
    """No reward of a turn: then every token of an answer has the same return."""
    return lambda episodes: [replace(e, turns=[replace(t, reward={}) for t in e.turns]) for e in f(episodes)]


def in_one_group(episodes: list[Episode]) -> list[Episode]:
    return [replace(e, group="g") for e in learned(episodes)]


def alive(episodes: list[Episode]) -> list[Episode]:
    """Only the groups that have right and wrong answers."""
    return [e for e in episodes if e.group in ("g0", "g1")]


def greedy_half(episodes: list[Episode]) -> list[Episode]:
    """Every group has a greedy answer, worth one half."""
    groups = {e.group: e for e in episodes if e.status.judged}
    greedy = [replace(e, uid=e.uid + 500, use=Use.BASELINE, reward={"task": 0.5}) for e in groups.values()]
    return [*(e for e in episodes if e.use != Use.BASELINE), *greedy]


def no_value(batch: Batch) -> Batch:
    return batch.with_columns(value_critic_N=torch.zeros_like(batch.weight_N))


GRAPH: list[Equivalence] = [
    Equivalence(
        "reinforce_pp_is_ppo_without_critic",
        REINFORCE_PP.but(name="reinforce++, γ = .9", credit=WhitenedReturn(gamma=0.9, kl_coef=0.2)),
        REINFORCE_PP.but(
            name="ppo, λ = 1, V = 0",
            credit=Gae(gamma=0.9, lam=1.0, kl_coef=0.2),
            cast={"critic": Role(as_="head")},
        ),
        "REINFORCE++ (arXiv:2501.03262) is PPO's advantage with λ = 1 and no value, the KL in the reward of both.",
        episodes=learned,
        batch=no_value,
    ),
    Equivalence(
        "one_group_needs_no_baseline",
        REINFORCE_PP_BASELINE.but(name="reinforce++-baseline without kl", penalties=()),
        REINFORCE_PP.but(name="reinforce++ without kl", credit=WhitenedReturn(kl_coef=0.0)),
        "Whitening takes off the mean of the batch; where that is one group, its mean before it changes nothing.",
        episodes=without_turns(in_one_group),
    ),
    Equivalence(
        "dr_grpo_is_rloo",
        DR_GRPO,
        RLOO.but(
            name="rloo, kl 0, over 12", credit=LeaveOneOut(kl_coef=0.0), objective=PolicyGradient(mean="episode_sum/12")
        ),
        "RLOO is G/(G-1) times Dr.GRPO (arXiv:2503.20783): 3 samples and a budget of 8 make 2/3 · 1/8 = 1/12.",
        on_policy=True,
        episodes=even,
    ),
    Equivalence(
        "dr_grpo_of_full_answers",
        DR_GRPO.but(name="dr_grpo, budget 4", objective=ClippedSurrogate(mean="episode_sum/4")),
        DR_GRPO.but(name="centred, sequence mean", credit=Centred(), objective=ClippedSurrogate(mean="sequence")),
        "Where every answer is as long as the constant, dividing by it is the mean per sequence, as in GRPO.",
        episodes=even,
    ),
    Equivalence(
        "remax_is_reinforce",
        REMAX,
        REINFORCE.but(name="reinforce, b = 1/2", credit=Less(0.5)),
        "ReMax (arXiv:2310.10505): where every greedy answer is worth b, it is REINFORCE with that baseline.",
        episodes=without_turns(greedy_half),
    ),
    Equivalence(
        "gpg_is_centred",
        GPG,
        REINFORCE.but(name="centred, token mean", credit=Centred(), objective=PolicyGradient(mean="token")),
        "GPG (arXiv:2504.02546): where every group has right and wrong answers, α = 1.",
        episodes=alive,
    ),
    Equivalence(
        "opo_is_centred",
        OPO,
        REINFORCE.but(name="centred", credit=Centred()),
        "OPO (arXiv:2505.23585): answers of one length weigh the same, and the optimal baseline is the mean.",
        episodes=even,
    ),
    Equivalence(
        "passk_is_policy_gradient",
        PASSK.but(name="grpo for pass@2 without kl", penalties=()),
        REINFORCE.but(name="policy gradient of the lead", credit=Lead(), objective=PolicyGradient(mean="sequence")),
        "arXiv:2503.19595: on-policy, the policy gradient of what an answer adds to the best of two.",
        on_policy=True,
    ),
    Equivalence(
        "passk_of_the_group",
        PASSK.but(name="grpo for pass@8 without kl", credit=BestOfK(k=8), penalties=()),
        REINFORCE.but(name="lead over the group", credit=Lead(8), objective=PolicyGradient(mean="sequence")),
        "verl's: with k no less than the group only a single best answer leads, by the second best.",
        on_policy=True,
        episodes=even,
    ),
]
