"""Equivalences of the methods that are led by something beside the reward: llds, kdrl, chord, rl_plus."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from sides import GRPO, NOW, OLD, Equivalence, Normalised, whole_terms, whole_value
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Use
from gruppo.methods import method
from gruppo.methods.chord import ExpertLikelihood
from gruppo.methods.kdrl import TeacherKL
from gruppo.methods.llds import HoldLikelihood
from gruppo.methods.rl_plus import MixedImportance
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, need
from gruppo.stages.objective import ClippedSurrogate, PolicyGradient
from gruppo.stages.recorded import Likelihood
from gruppo.stages.update import Passes

LLDS, KDRL, CHORD, RL_PLUS, DR_GRPO = (method(n) for n in ("llds", "kdrl", "chord", "rl_plus", "dr_grpo"))
TEACHER = need("logp", "teacher")


def rows_of(mask: Tensor) -> list[int]:
    return torch.nonzero(mask)[:, 0].tolist()


# The other sides, written by loops


@dataclass(frozen=True)
class HeldByLoops(Occupant):
    """λ/N Σ of log π − log π_old over tokens with A ≥ 0 that fell, in turns or answers that fell, one by one."""

    answer: bool = False
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return whole_terms(batch, "hold", 0.2)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        home = (batch.episode_N if self.answer else batch.turn_N).tolist()
        fall, mine = (batch.logp_old_N - stats.logp_N).tolist(), rows_of(batch.policy_N)
        good = [n for n in mine if float(batch.adv_N[n]) >= 0]
        sums: dict[int, float] = {}
        for n in good:
            sums[home[n]] = sums.get(home[n], 0.0) + fall[n]
        total = 0.0 * stats.logp_N.sum()
        for n in good:
            if sums[home[n]] > 0 and fall[n] > 1e-5:
                total = total + stats.logp_N[n] - batch.logp_old_N[n]
        return whole_value(batch, total / max(len(mine), 1), "hold")


@dataclass(frozen=True)
class TaughtByLoops(Occupant):
    """−β/N Σ ½ (log π − log π_T)² over answers that are wrong, or in groups without a right one."""

    groups: bool = False

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, TEACHER)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return whole_terms(batch, "kl_teacher", 0.3)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        judged, rewards = batch.judged_E.tolist(), batch.reward_E.tolist()
        right = {e for e, r in enumerate(rewards) if judged[e] and r > 0}
        if self.groups:
            solved = {int(batch.group_E[e]) for e in right}
            right = {e for e in range(batch.size("E")) if int(batch.group_E[e]) in solved}
        mine, total = rows_of(batch.policy_N), 0.0 * stats.logp_N.sum()
        for n in mine:
            if int(batch.episode_N[n]) not in right:
                total = total - 0.5 * (stats.logp_N[n] - float(batch.logp_teacher_N[n])) ** 2
        return whole_value(batch, total / max(len(mine), 1), "kl_teacher")


@dataclass(frozen=True)
class TeacherInAdvantage(Normalised):
    """GRPO's advantage and β (log π_T − log π_old) of each token."""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (OLD, TEACHER)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        adv_N = super().__call__(ctx, batch)["adv_N"]
        return {"adv_N": adv_N + 0.3 * (batch.logp_teacher_N - batch.logp_old_N)}


@dataclass(frozen=True)
class ExpertsByLoops(Occupant):
    """0.3 · mean of p (1 − p) log p over what experts wrote in answers of their own."""

    reads = ("expert",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return whole_terms(batch, "expert", 0.3)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        theirs = [n for n in rows_of(batch.source_N == Source.EXPERT) if _own(batch, int(batch.episode_N[n]))]
        total = 0.0 * stats.logp_N.sum()
        for n in theirs:
            p = math.exp(float(stats.logp_N[n].detach()))
            total = total + p * (1 - p) * stats.logp_N[n]
        return whole_value(batch, total / max(len(theirs), 1), "expert")


def _own(batch: Batch, e: int) -> bool:
    return int(batch.source_E[e]) == Source.EXPERT and int(batch.use_E[e]) in (Use.LEARN, Use.APART)


@dataclass(frozen=True)
class MixedByLoops(Occupant):
    """1/B Σ_i 1/8 Σ_t: r A of the policy's tokens, 2 π / (1.5 π_old + .5) · √(1 − π) A of the experts', one by one."""

    reads = ("adv_N", "expert")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return whole_terms(batch)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        answers: dict[int, Tensor] = {}
        mine = batch.learn_N.tolist()
        for n, source in enumerate(batch.source_N.tolist()):
            e, a = int(batch.episode_N[n]), float(batch.adv_N[n])
            if mine[n]:
                value = torch.exp(stats.logp_N[n] - batch.logp_old_N[n]) * a
            elif source == Source.EXPERT and _own(batch, e):
                p, old = torch.exp(stats.logp_N[n]), math.exp(float(batch.logp_old_N[n]))
                value = 2 * p / (1.5 * old + 0.5) * a * math.sqrt(1 - float(p.detach()))
            else:
                continue
            answers[e] = answers.get(e, 0.0 * stats.logp_N.sum()) + value / 8
        total = sum(answers.values(), 0.0 * stats.logp_N.sum())
        return whole_value(batch, total / max(len(answers), 1))


# What is changed before the two are compared


def only_experts(episodes: list[Episode]) -> list[Episode]:
    return [e for e in episodes if e.source == Source.EXPERT]


def no_experts(episodes: list[Episode]) -> list[Episode]:
    return [e for e in episodes if e.source != Source.EXPERT]


def right_expert(episodes: list[Episode]) -> list[Episode]:
    """The expert who is in the group scores 1 by the task alone."""
    return [
        replace(e, reward={"task": 1.0}) if e.source == Source.EXPERT and e.use == Use.LEARN else e for e in episodes
    ]


def changed(m: Any, name: str, **rooms: Any) -> Any:
    return m.but(name=name, breaks={}, **rooms)


def chord(name: str, mu: float, **rest: Any) -> Any:
    """(1 − μ) · GRPO over tokens, and μ · the experts' likelihood: a chain of two."""
    policy = ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token", coef=1 - mu)
    return changed(CHORD, name, objective=(policy, ExpertLikelihood(expert_coef=mu, **rest)), select=())


ALONE = LLDS.but(name="llds without kl", penalties=(HoldLikelihood(),))
OVER_TOKENS = GRPO.but(name="grpo over tokens, no kl", objective=ClippedSurrogate(mean="token"), penalties=())
TAUGHT = KDRL.but(name="kdrl, β = 0.3", penalties=(TeacherKL(teacher_coef=0.3),))
UNCLIPPED = ClippedSurrogate(clip_low=1.0, clip_high=1e9, mean="episode_sum/8")

GRAPH: list[Equivalence] = [
    Equivalence(
        "llds_by_loops",
        ALONE,
        LLDS.but(name="turns that fell, one by one", penalties=(HeldByLoops(),)),
        "LLDS (arXiv:2512.04220): tokens that fell, in turns that fell, of answers with A ≥ 0.",
    ),
    Equivalence(
        "llds_of_answers_by_loops",
        LLDS.but(name="llds, whole answers", penalties=(HoldLikelihood(gate="answer"),)),
        LLDS.but(name="answers that fell, one by one", penalties=(HeldByLoops(answer=True),)),
        "The gate of whole answers looks at all of their sequences.",
    ),
    Equivalence(
        "llds_without_its_coefficient",
        LLDS.but(name="llds, λ = 0", penalties=(HoldLikelihood(hold_coef=0.0),)),
        OVER_TOKENS,
        "A penalty of coefficient 0 is no penalty.",
    ),
    Equivalence(
        "llds_of_one_update_is_grpo",
        ALONE.but(name="llds without kl, one update", update=Passes()),
        OVER_TOKENS,
        "In the first update of a batch nothing has fallen yet.",
        on_policy=True,
        update=True,
    ),
    Equivalence(
        "kdrl_without_its_coefficient",
        KDRL.but(name="kdrl, β = 0", penalties=(TeacherKL(teacher_coef=0.0),)),
        OVER_TOKENS,
        "KDRL (arXiv:2506.02208) with β = 0 is GRPO.",
    ),
    Equivalence(
        "kdrl_is_a_token_advantage",
        TAUGHT,
        KDRL.but(
            name="A + β (log π_T - log π)",
            credit=TeacherInAdvantage(),
            objective=PolicyGradient(mean="token"),
            penalties=(),
        ),
        "On-policy ½ (log π - log π_T)² is an advantage of β (log π_T - log π) for each token.",
        on_policy=True,
    ),
    Equivalence(
        "kdrl_of_wrong_answers",
        KDRL.but(name="kdrl, right answers masked", penalties=(TeacherKL(0.3, mask="right_answers"),)),
        KDRL.but(name="wrong answers, one by one", penalties=(TaughtByLoops(),)),
        "The teacher speaks where the answer is wrong; the count is that of all tokens.",
    ),
    Equivalence(
        "kdrl_of_unsolved_groups",
        KDRL.but(name="kdrl, solved groups masked", penalties=(TeacherKL(0.3, mask="solved_groups"),)),
        KDRL.but(name="unsolved groups, one by one", penalties=(TaughtByLoops(groups=True),)),
        "The teacher speaks where no answer of the group is right.",
    ),
    Equivalence(
        "chord_by_loops",
        chord("chord, μ = 0.3", 0.3),
        changed(
            CHORD,
            "experts one by one",
            objective=(ClippedSurrogate(mean="token", coef=0.7), ExpertsByLoops()),
            select=(),
        ),
        "CHORD (arXiv:2508.11408): two means, each over its own tokens.",
    ),
    Equivalence(
        "chord_without_experts_is_grpo",
        chord("chord, μ = 0", 0.0),
        OVER_TOKENS,
        "With μ = 0 CHORD is GRPO over tokens.",
    ),
    Equivalence(
        "chord_of_experts_is_sft",
        chord("chord, μ = 1, φ = 1", 1.0, phi="one"),
        changed(CHORD, "sft's objective", objective=Likelihood(mean="token"), select=()),
        "With μ = 1 and φ = 1 experts' answers are learned as SFT learns them.",
        episodes=only_experts,
    ),
    Equivalence(
        "rl_plus_by_loops",
        RL_PLUS.but(name="rl_plus without entropy", penalties=()),
        RL_PLUS.but(name="two rules, token by token", objective=MixedByLoops(), penalties=()),
        "RL-PLUS (arXiv:2508.00222): a mixture of behaviours for the expert, the plain ratio for the rest.",
        episodes=right_expert,
    ),
    Equivalence(
        "rl_plus_alone_is_dr_grpo_unclipped",
        RL_PLUS.but(name="rl_plus without entropy, without experts", penalties=()),
        DR_GRPO.but(name="dr_grpo, no clip", objective=UNCLIPPED),
        "Without an expert RL-PLUS is Dr.GRPO without its clip.",
        episodes=no_experts,
    ),
    Equivalence(
        "rl_plus_alone_on_policy_is_dr_grpo",
        RL_PLUS.but(name="rl_plus, γ = 0, without experts", objective=MixedImportance(explore=0.0), penalties=()),
        DR_GRPO,
        "On-policy no clip binds.",
        episodes=no_experts,
        on_policy=True,
    ),
]
