"""Equivalences of the methods that compare whole answers of a group: nft, dmpo, reg_grpo, drpo_decoupled, poise."""

import math
from dataclasses import dataclass

import torch
from sides import (
    DISCO,
    GRPO_PLAIN,
    NOW,
    OLD,
    REINFORCE,
    Centred,
    ClippedByLoops,
    Equivalence,
    Normalised,
    by_episode,
    even,
    members,
    whole_terms,
    whole_value,
)
from torch import Tensor

from gruppo.data import Batch, Episode, Use
from gruppo.methods import method
from gruppo.methods.dmpo import MatchDistribution
from gruppo.methods.drpo_decoupled import Decoupled
from gruppo.methods.nft import NegativeAware
from gruppo.methods.reg_grpo import Regression
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values
from gruppo.stages.objective import ClippedSurrogate, PolicyGradient
from gruppo.stages.select import RedrawEqualGroups

NFT, DMPO, REG, DRPO, POISE = (method(n) for n in ("nft", "dmpo", "reg_grpo", "drpo_decoupled", "poise"))
REG_PLAIN = REG.but(name="reg_grpo without kl", penalties=())
SUMMED = REINFORCE.but(name="summed", select=RedrawEqualGroups(), objective=PolicyGradient(mean="episode_sum/1000"))


@dataclass(frozen=True)
class NormalisedByN(Occupant):
    """(R_i − mean) / std, std over n; 0 in groups of equal rewards."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rewards, adv = batch.reward_E.tolist(), {}
        for rows in members(batch).values():
            mean = math.fsum(rewards[i] for i in rows) / len(rows)
            std = math.sqrt(math.fsum((rewards[i] - mean) ** 2 for i in rows) / len(rows))
            adv |= {i: (rewards[i] - mean) / std if std else 0.0 for i in rows}
        return by_episode(batch, adv)


@dataclass(frozen=True)
class Nothing(Occupant):
    """No advantage at all: what is left is what does not depend on it."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return {"adv_N": torch.zeros_like(batch.weight_N)}


def together(episodes: list[Episode]) -> list[Episode]:
    """None apart: these are neither right nor wrong, and not in the mean of NFT."""
    return [e for e in episodes if e.use != Use.APART]


@dataclass(frozen=True)
class RightOnly(Occupant):
    """1 − r_q for right answers, 0 for wrong ones."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rewards, adv = batch.reward_E.tolist(), {}
        for rows in members(batch).values():
            rate = sum(rewards[i] > 0 for i in rows) / len(rows)
            adv |= {i: 1.0 - rate if rewards[i] > 0 else 0.0 for i in rows}
        return by_episode(batch, adv)


@dataclass(frozen=True)
class ByAnswers(Occupant):
    """A loop over the groups: the mean of what each is worth, given the tokens of its answers that are learned."""

    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def worth(self, batch: Batch, stats: Stats, answers: dict[int, Tensor]) -> Tensor | None:
        raise NotImplementedError

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return whole_terms(batch, "by_answers")

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        values: list[Tensor] = []
        for rows in members(batch).values():
            tokens = {e: torch.nonzero((batch.episode_N == e) & batch.learn_N)[:, 0] for e in rows}
            found = self.worth(batch, stats, {e: t for e, t in tokens.items() if len(t)})
            values += [] if found is None else [found]
        return whole_value(batch, torch.stack(values).mean(), "by_answers")


@dataclass(frozen=True)
class MatchedByGradient(ByAnswers):
    """DMPO's matching by its gradient: Σ_i c_i l_i, c_i = −λ (2/G) q_i [(q_i − p_i) − Σ_j q_j (q_j − p_j)], α = ½."""

    def worth(self, batch: Batch, stats: Stats, answers: dict[int, Tensor]) -> Tensor | None:
        if not answers:
            return None
        score = {e: stats.logp_N[t].mean() for e, t in answers.items()}
        p = {e: math.exp(float(batch.reward_E[e]) / 0.5) for e in answers}
        q = {e: math.exp(float(s.detach())) for e, s in score.items()}
        p, q = ({e: x / math.fsum(d.values()) for e, x in d.items()} for d in (p, q))
        drag = math.fsum(q[e] * (q[e] - p[e]) for e in answers)
        slope = {e: -3.0 * 2.0 / len(answers) * q[e] * ((q[e] - p[e]) - drag) for e in answers}
        return torch.stack([slope[e] * score[e] for e in answers]).sum()


@dataclass(frozen=True)
class RegressedByLoops(ByAnswers):
    """−mean_i (A_i − (ρ_i − mean ρ) / (std ρ + .1))², for groups with two answers or more."""

    def worth(self, batch: Batch, stats: Stats, answers: dict[int, Tensor]) -> Tensor | None:
        if len(answers) < 2:
            return None
        rho = torch.stack([(stats.logp_N[t] - batch.logp_old_N[t]).sum() for t in answers.values()])
        adv = torch.stack([batch.adv_N[t[0]] for t in answers.values()])
        return -((adv - (rho - rho.mean()) / (rho.std() + 0.1)) ** 2).mean()


@dataclass(frozen=True)
class Push(Occupant):
    """2/ε Σ_t A log π of an answer, the mean over answers."""

    eps: float = 1e7
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_N, "episode_sum", coef=2.0 / self.eps)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {"policy": batch.adv_N * stats.logp_N}


GRAPH: list[Equivalence] = [
    Equivalence(
        "nft_on_policy_is_dr_grpo",
        NFT,
        method("dr_grpo").but(
            name="dr_grpo, C = 1000, redraw",
            objective=ClippedSurrogate(mean="episode_sum/1000"),
            select=RedrawEqualGroups(),
        ),
        "NFT (arXiv:2505.18116): at R = 1 the slopes are 1 - r_q of right and -r_q of wrong answers.",
        episodes=together,
        on_policy=True,
    ),
    Equivalence(
        "nft_on_policy_is_grpo",
        NFT.but(name="nft, normalised", objective=NegativeAware(prompt_weight="normalised")),
        SUMMED.but(name="normalised by the deviation over n", credit=NormalisedByN()),
        "With √((1 - r)/r) the slopes are GRPO's advantages.",
        episodes=together,
        on_policy=True,
    ),
    Equivalence(
        "nft_without_wrong_answers",
        NFT.but(name="nft, bad_coef 0", objective=NegativeAware(bad_coef=0.0)),
        SUMMED.but(name="likelihood of right answers, weighed", credit=RightOnly()),
        "What is left is rejection-sampling fine-tuning, prompts weighed by 1 - r_q.",
        episodes=together,
    ),
    Equivalence(
        "dmpo_without_matching",
        DMPO.but(name="dmpo, λ = 0", objective=(ClippedSurrogate(), MatchDistribution(match_coef=0.0))),
        GRPO_PLAIN,
        "DMPO (arXiv:2605.19461) adds one term to GRPO.",
    ),
    Equivalence(
        "dmpo_is_grpo_and_matching",
        DMPO.but(name="dmpo, λ = 3, α = ½", objective=(ClippedSurrogate(), MatchDistribution(3.0, 0.5))),
        GRPO_PLAIN.but(
            name="grpo and matching by loops", credit=Normalised(), objective=(ClippedByLoops(), MatchedByGradient())
        ),
        "A chain is the sum of its objectives, in whatever way each is made.",
    ),
    Equivalence(
        "dmpo_by_its_gradient",
        DMPO.but(
            name="matching, λ = 3, α = ½", objective=(ClippedSurrogate(), MatchDistribution(3.0, 0.5)), credit=Nothing()
        ),
        DMPO.but(name="matching by its gradient", objective=MatchedByGradient(), credit=Nothing()),
        "The slope of a squared distance by a softmax.",
    ),
    Equivalence(
        "reg_grpo_by_loops",
        REG_PLAIN.but(name="reg_grpo, ε = .1", objective=Regression(eps=0.1)),
        GRPO_PLAIN.but(name="regression by loops", credit=Normalised(), objective=RegressedByLoops()),
        "Reg-GRPO (arXiv:2506.07464): gradient through mean and deviation of the log-ratios.",
    ),
    Equivalence(
        "reg_grpo_far_from_scale",
        REG_PLAIN.but(name="reg_grpo, ε = 1e7", objective=Regression(eps=1e7)),
        GRPO_PLAIN.but(name="policy gradient, 2/ε", credit=Normalised(), objective=Push()),
        "A large ε leaves 2/ε Σ A ρ: advantages of a group add up to 0, so its mean of ρ does not matter.",
        episodes=even,
        limit=1e-5,
    ),
    Equivalence(
        "drpo_of_any_length_is_disco",
        DRPO.but(name="drpo, λ → ∞", objective=Decoupled(length_temperature=1e9)),
        DISCO,
        "DRPO (arXiv:2510.04474): without a preference for short answers all right ones weigh the same.",
        limit=1e-6,
    ),
    Equivalence(
        "drpo_of_even_lengths_is_disco",
        DRPO,
        DISCO,
        "Answers of one length have one weight.",
        episodes=even,
    ),
    Equivalence(
        "poise_before_its_probe",
        POISE,
        POISE.but(name="n/(n-1) · centred, clip higher", credit=Centred(bessel=True)),
        "POISE (arXiv:2605.07579): what the others got is the baseline until a probe is fitted.",
    ),
]
