"""Learning from pairs and from given answers: limits and special cases, the other side written by loops."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sides import NOW, OLD, REINFORCE, Equivalence, even, whole_terms, whole_value
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Use
from gruppo.methods import method
from gruppo.methods.dpo import DirectPreference
from gruppo.methods.ipo import IdentityPreference
from gruppo.methods.kto import ProspectUtility
from gruppo.methods.orpo import OddsRatio
from gruppo.methods.simpo import MeanPreference
from gruppo.stages import Context, Method, Need, Occupant, Stats, Term, Values
from gruppo.stages.objective import PolicyGradient
from gruppo.stages.recorded import Likelihood
from gruppo.stages.relations import PairUp

DPO, IPO, KTO, ORPO, SIMPO, SFT, RFT = (method(n) for n in ("dpo", "ipo", "kto", "orpo", "simpo", "sft", "rft"))


def tokens_of(batch: Batch, episode: int) -> list[int]:
    """Rows of the answer's tokens: the policy's and the experts', in an episode to learn from, that were kept."""
    out: list[int] = []
    for n in range(batch.size("N")):
        mine = int(batch.episode_N[n]) == episode and int(batch.source_N[n]) in (Source.POLICY, Source.EXPERT)
        if mine and bool(batch.learn_E[episode]) and bool(batch.keep_N[n]):
            out.append(n)
    return out


@dataclass(frozen=True)
class BestAgainstWorst(Occupant):
    """`sign_E`: +1 for the first best answer of a group, −1 for its first worst one, over the number of such groups.

    By loops. Of equally good answers the first is taken, so rewards have to differ.
    """

    writes = ("sign_E",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        groups: dict[int, list[int]] = {}
        for i in range(batch.size("E")):
            if bool(batch.judged_E[i]) and bool(batch.learn_E[i]):
                groups.setdefault(int(batch.group_E[i]), []).append(i)
        reward, sign = batch.reward_E.tolist(), [0.0] * batch.size("E")
        ends = [(max(rows, key=reward.__getitem__), min(rows, key=reward.__getitem__)) for rows in groups.values()]
        ends = [(w, lose) for w, lose in ends if reward[w] > reward[lose]]
        for w, lose in ends:
            sign[w], sign[lose] = 1.0 / len(ends), -1.0 / len(ends)
        return {"sign_E": torch.tensor(sign, dtype=torch.float64)}


@dataclass(frozen=True)
class SignedLikelihood(Occupant):
    """scale · Σ_i sign_i Σ_t log π(y_it), or with `averaged` the mean over an answer's tokens."""

    scale: float = 1.0
    averaged: bool = False
    reads = ("sign_E", "expert")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return whole_terms(batch)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        total = 0.0 * stats.logp_N.sum()
        for i, sign in enumerate(batch.sign_E.tolist()):
            mine = tokens_of(batch, i) if sign else []
            part = sum((stats.logp_N[n] for n in mine), torch.zeros((), dtype=torch.float64))
            total = total + self.scale * sign * part / (max(len(mine), 1) if self.averaged else 1)
        return whole_value(batch, total)


@dataclass(frozen=True)
class Labels(Occupant):
    """`sign_E`: ±1 for answers above and below the mean of their group, over the number of answers."""

    writes = ("sign_E",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        reward, learn = batch.reward_E.tolist(), batch.learn_E.tolist()
        mine = [i for i in range(len(reward)) if learn[i] and reward[i] == reward[i]]
        sign = [0.0] * len(reward)
        for i in mine:
            sign[i] = (1.0 if reward[i] > 0.5 else -1.0) / len(mine)
        return {"sign_E": torch.tensor(sign, dtype=torch.float64)}


@dataclass(frozen=True)
class RewardItself(Occupant):
    """A = R, no baseline; 1 for all if `always`."""

    always: bool = False
    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        reward_E = torch.nan_to_num(batch.reward_E)
        return {"adv_N": batch.spread(torch.ones_like(reward_E) if self.always else reward_E, "E", "N")}


@dataclass(frozen=True)
class WithOld(DirectPreference):
    """DPO that also asks for the old policy, so that it can be put in the place of the reference."""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (*super().needs(ctx), OLD)


# What is changed before the two are compared


def apart_rewards(episodes: list[Episode]) -> list[Episode]:
    """Rewards that all differ, so that nobody has to choose between equal ones."""
    out = [replace(e, turns=[replace(t, reward={}) for t in e.turns]) for e in episodes]
    return [replace(e, reward={k: v + 0.01 * i for k, v in e.reward.items()}) for i, e in enumerate(out)]


def own_answers(episodes: list[Episode]) -> list[Episode]:
    """What the policy itself wrote, in groups that have right and wrong answers; no token of anyone else to learn."""
    mine = [e for e in episodes if e.group in ("g0", "g1") and e.use == Use.LEARN and e.source == Source.POLICY]
    for e in mine:
        for s in e.sequences:
            s.source = np.where(s.source == Source.EXPERT, np.int8(Source.ENV), s.source)
    return mine


def both_kinds(episodes: list[Episode]) -> list[Episode]:
    """Right and wrong answers in turns, in every group."""
    mine = sorted(own_answers(episodes), key=lambda e: e.group)
    calm = [replace(e, turns=[replace(t, reward={}) for t in e.turns]) for e in mine if e.status.judged]
    place = {g: [e.uid for e in calm if e.group == g] for g in ("g0", "g1")}
    return [replace(e, reward={"task": float(place[e.group].index(e.uid) % 2)}) for e in calm]


def labelled(episodes: list[Episode]) -> list[Episode]:
    """One group, so that there is no other prompt."""
    return [replace(e, group="g") for e in own_answers(episodes)]


def reference_is_old(batch: Batch) -> Batch:
    return batch.with_columns(logp_ref_N=batch.logp_old_N) if "logp_old_N" in batch.columns else batch


def flat_reference(batch: Batch) -> Batch:
    """Every token has the same probability under the reference."""
    return batch.with_columns(logp_ref_N=torch.full_like(batch.weight_N, -2.5))


def signed(name: str, credit: Any, **fields: Any) -> Method:
    return DPO.but(name=name, credit=credit, objective=SignedLikelihood(**fields))


GRAPH: list[Equivalence] = [
    Equivalence(
        "dpo_at_the_reference",
        DPO.but(name="dpo, π = π_ref", objective=WithOld()),
        signed("β/2 · best minus worst", BestAgainstWorst(), scale=0.05),
        "DPO (arXiv:2305.18290): at π = π_ref the preference is a toss, and its gradient half of β times the "
        "difference of the two scores.",
        on_policy=True,
        episodes=apart_rewards,
        batch=reference_is_old,
    ),
    Equivalence(
        "dpo_with_little_beta",
        DPO.but(name="dpo, β = 1e-6", objective=DirectPreference(beta=1e-6)),
        signed("5e-7 · best minus worst", BestAgainstWorst(), scale=5e-7),
        "To first order log σ(βh) is βh/2 and a constant, wherever the reference is.",
        episodes=apart_rewards,
        limit=1e-4,
    ),
    Equivalence(
        "ipo_with_little_beta",
        IPO.but(name="ipo, β = 1e-6", objective=IdentityPreference(beta=1e-6)),
        signed("1e6 · mean of best minus mean of worst", BestAgainstWorst(), scale=1e6, averaged=True),
        "IPO (arXiv:2310.12036): a target far away draws with 1/β, whatever the gap.",
        episodes=apart_rewards,
        limit=1e-4,
    ),
    Equivalence(
        "kto_with_little_beta",
        KTO.but(name="kto, β = 1e-6, one prompt", objective=ProspectUtility(beta=1e-6)),
        signed("β/4 · good minus bad", Labels(), scale=2.5e-7),
        "KTO (arXiv:2402.01306): σ' = 1/4 at the point of reference, so every answer is pushed alike.",
        episodes=labelled,
        limit=1e-4,
    ),
    Equivalence(
        "simpo_is_dpo_of_even_lengths",
        SIMPO.but(name="simpo, β = 2, no margin", objective=MeanPreference(beta=2.0, target_margin=0.0)),
        DPO.but(name="dpo, β = .5, flat reference", objective=DirectPreference(beta=0.5)),
        "SimPO (arXiv:2405.14734): with answers of four tokens and a reference that prefers nothing, β/|y| is DPO's β.",
        episodes=even,
        batch=flat_reference,
    ),
    Equivalence(
        "orpo_without_odds_is_sft",
        ORPO.but(name="orpo, λ = 0, all pairs", credit=PairUp(most=0), objective=OddsRatio(odds_coef=0.0)),
        SFT.but(name="sft on right answers"),
        "ORPO (arXiv:2403.07691): without the odds ratio it is the likelihood of the chosen answers.",
        episodes=both_kinds,
    ),
    Equivalence(
        "sft_is_reinforce_of_one",
        SFT.but(name="sft on everything", select=()),
        REINFORCE.but(
            name="reinforce, A = 1", credit=RewardItself(always=True), objective=PolicyGradient(mean="token")
        ),
        "Every token of a demonstration has the advantage 1.",
        episodes=own_answers,
    ),
    Equivalence(
        "rft_is_reinforce_of_reward",
        RFT.but(name="rft, sum over 25", objective=Likelihood(mean=25.0)),
        REINFORCE.but(name="reinforce, A = R", credit=RewardItself(), objective=PolicyGradient(mean=25.0)),
        "With rewards of 0 and 1 keeping right answers is REINFORCE without a baseline, but for the count.",
        episodes=own_answers,
    ),
]
