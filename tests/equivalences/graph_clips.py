"""Equivalences of the methods that clip, bound or leave out single tokens: gppo, bapo, clip_cov, kl_cov."""

import math
from dataclasses import dataclass, replace

import torch
from graph_objective import FREE, NO_CLIP
from sides import DAPO, GRPO_PLAIN, NOW, OLD, REINFORCE, Equivalence, Normalised, whole_terms, whole_value
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods import method
from gruppo.methods.bapo import BalancedClip
from gruppo.methods.cispo import ClippedWeight
from gruppo.methods.clip_cov import ClipCovariance
from gruppo.methods.gppo import GradientPreserving
from gruppo.methods.kl_cov import KlCovariance
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values
from gruppo.stages.objective import ClippedSurrogate, PolicyGradient

GPPO, BAPO, CLIP_COV, KL_COV = (method(n).but(select=()) for n in ("gppo", "bapo", "clip_cov", "kl_cov"))
BY_TOKENS = REINFORCE.but(
    name="policy gradient, token mean", credit=Normalised(), objective=PolicyGradient(mean="token")
)


@dataclass(frozen=True)
class OnlyGood(Occupant):
    """The normalised advantage where it is above 0, else 0."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return {"adv_N": Normalised()(ctx, batch)["adv_N"].clamp(min=0)}


@dataclass(frozen=True)
class Weighed(Occupant):
    """1/T Σ_t w_t log π_t less what `pay` asks, w a number for every token, one after the other."""

    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def weights(self, ctx: Context, batch: Batch, rows: list[int], r: list[float], a: list[float]) -> list[float]:
        raise NotImplementedError

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return whole_terms(batch)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        rows = torch.nonzero(batch.learn_N)[:, 0].tolist()
        logp = stats.logp_N.detach().tolist()
        r = [math.exp(logp[n] - float(batch.logp_old_N[n])) for n in rows]
        w = self.weights(ctx, batch.with_columns(now_N=stats.logp_N.detach()), rows, r, batch.adv_N[rows].tolist())
        total = sum((w_t * stats.logp_N[n] for w_t, n in zip(w, rows, strict=True)), 0.0 * stats.logp_N.sum())
        return whole_value(batch, total / max(len(rows), 1))


@dataclass(frozen=True)
class BoundAsWeight(Weighed):
    """A times the ratio, or times the bound that PPO's clip would have stopped it at; 0 beyond the dual clip."""

    def weights(self, ctx: Context, batch: Batch, rows: list[int], r: list[float], a: list[float]) -> list[float]:
        out = []
        for ratio, adv in zip(r, a, strict=True):
            bound = min(max(ratio, 0.8), 1.28)
            out.append(adv * (0.0 if adv < 0 and ratio > 10 else bound if bound * adv < ratio * adv else ratio))
        return out


@dataclass(frozen=True)
class SearchedByLoops(Weighed):
    """BAPO's search as two while loops, 1.2 up to 1.9, then 0.6 up to 0.9, for a share of 0.55; live tokens have rA."""

    live: bool = True

    def share(self, r: list[float], a: list[float], low: float, high: float) -> float:
        good = bad = 0.0
        for ratio, adv in zip(r, a, strict=True):
            if adv > 0:
                good += adv * (ratio if ratio <= high else 0.0 if self.live else high)
            elif ratio >= low:
                bad -= adv * (ratio if ratio <= 3.0 or not self.live else 0.0)
            else:
                bad -= adv * (0.0 if self.live else low)
        return good / (good + bad) if good + bad else 1.0

    def weights(self, ctx: Context, batch: Batch, rows: list[int], r: list[float], a: list[float]) -> list[float]:
        low, high = 0.6, 1.2
        while self.share(r, a, low, high) < 0.55 and high < 1.85:
            high += 0.1
        while self.share(r, a, low, high) < 0.55 and low < 0.85:
            low += 0.1
        inside = [(x <= high if b > 0 else low <= x <= 3.0) for x, b in zip(r, a, strict=True)]
        return [x * b * float(i) for x, b, i in zip(r, a, inside, strict=True)]


@dataclass(frozen=True)
class CovarianceByLoops(Weighed):
    """Clip-Cov with 10 % of the tokens out of 0 < c < 2 (`clip`), or KL-Cov with β = 1.5 for the first 10 %."""

    clip: bool = True

    def weights(self, ctx: Context, batch: Batch, rows: list[int], r: list[float], a: list[float]) -> list[float]:
        logp = batch.now_N[rows].tolist()
        mean_a, mean_l = math.fsum(a) / len(a), math.fsum(logp) / len(logp)
        cov = [(x - mean_a) * (y - mean_l) for x, y in zip(a, logp, strict=True)]
        count = max(int(0.1 * len(rows)), 1)
        if self.clip:
            caught = [(x > 1.2 and b > 0) or (x < 0.8 and b < 0) for x, b in zip(r, a, strict=True)]
            luck = ctx.uniform("clip_cov", batch.uid_N)[rows].tolist()
            mine = [i for i in range(len(rows)) if 0.0 < cov[i] < 2.0 and not caught[i]]
            out = set(sorted(mine, key=lambda i: luck[i])[:count]) | {i for i, c in enumerate(caught) if c}
            return [0.0 if i in out else r[i] * a[i] for i in range(len(rows))]
        held = set(sorted(range(len(rows)), key=lambda i: -cov[i])[:count])
        return [
            r[i] * a[i] - (1.5 * math.copysign(1.0, math.log(r[i])) if i in held else 0.0) for i in range(len(rows))
        ]


SEARCH = BalancedClip(clip_high_most=0.9, clip_step=0.1, positive_share=0.55)
GRAPH: list[Equivalence] = [
    Equivalence(
        "gppo_by_loops",
        GPPO.but(name="gppo, no redraw"),
        GRPO_PLAIN.but(name="bound as weight, by loops", credit=Normalised(), objective=BoundAsWeight()),
        "GPPO (arXiv:2508.07629): a clipped token has the gradient of its bound, (1 ± ε) A ∇ log π.",
    ),
    Equivalence(
        "gppo_of_good_tokens_is_cispo",
        GPPO.but(name="gppo, good tokens", credit=OnlyGood()),
        method("cispo").but(name="cispo, good tokens", credit=OnlyGood(), objective=ClippedWeight(1.0, 0.28)),
        "Where A > 0 the ratio is a weight that is bounded above by 1 + ε_high in both.",
    ),
    Equivalence(
        "gppo_without_clip",
        GPPO.but(name="gppo, no clip", objective=GradientPreserving(1.0, FREE, 0.0, "sequence")),
        NO_CLIP,
        "Bounds that nothing meets.",
    ),
    Equivalence(
        "gppo_on_policy_is_dapo",
        GPPO,
        DAPO.but(name="dapo, no redraw, no shaping", select=(), reward=()),
        "On-policy every ratio is 1, and no clip binds.",
        on_policy=True,
    ),
    Equivalence(
        "bapo_without_search",
        BAPO.but(name="bapo, share 0", objective=BalancedClip(positive_share=0.0)),
        GRPO_PLAIN.but(name="grpo, clips .4/.2/3", objective=ClippedSurrogate(0.4, 0.2, 3.0, "token")),
        "BAPO (arXiv:2510.18927): any share is at least 0, so the bounds stay where they begin.",
    ),
    Equivalence(
        "bapo_on_policy_is_reinforce",
        BAPO,
        BY_TOKENS,
        "At r = 1 every bound is far: the search changes nothing.",
        on_policy=True,
    ),
    Equivalence(
        "bapo_by_loops",
        BAPO.but(name="bapo, short way", objective=SEARCH),
        GRPO_PLAIN.but(name="search by while loops", credit=Normalised(), objective=SearchedByLoops()),
        "The first rung of the ladder that is enough, found without a loop.",
    ),
    Equivalence(
        "bapo_by_value_by_loops",
        BAPO.but(name="bapo by value, short way", objective=replace(SEARCH, contribution="value")),
        GRPO_PLAIN.but(name="search by value", credit=Normalised(), objective=SearchedByLoops(live=False)),
        "The published form: a token beyond its bound counts with the bound.",
    ),
    Equivalence(
        "clip_cov_of_nothing",
        CLIP_COV.but(name="clip_cov, share 0", objective=ClipCovariance(chosen_share=0.0)),
        GRPO_PLAIN.but(name="grpo, token mean", objective=ClippedSurrogate(mean="token")),
        "Clip-Cov (arXiv:2505.22617): with no token left out it is PPO's clip.",
    ),
    Equivalence(
        "clip_cov_of_no_band",
        CLIP_COV.but(name="clip_cov, empty band", objective=ClipCovariance(0.5, cov_low=1.0, cov_high=1.0)),
        CLIP_COV.but(name="clip_cov, nothing left out", objective=ClippedSurrogate(mean="token")),
        "No covariance lies between 1 and 1.",
    ),
    Equivalence(
        "clip_cov_by_loops",
        CLIP_COV.but(name="clip_cov, 10 %", objective=ClipCovariance(0.1, cov_low=0.0, cov_high=2.0)),
        GRPO_PLAIN.but(name="left out by loops", credit=Normalised(), objective=CovarianceByLoops()),
        "Those with the least luck of the candidates are out, and stay in the count.",
    ),
    Equivalence(
        "kl_cov_without_price",
        KL_COV.but(name="kl_cov, β = 0", objective=KlCovariance(trust_coef=0.0)),
        GRPO_PLAIN.but(name="grpo, no clip, token mean", objective=ClippedSurrogate(1.0, FREE, mean="token")),
        "KL-Cov (arXiv:2505.22617) has no clip: without its price it is the plain ratio.",
    ),
    Equivalence(
        "kl_cov_on_policy_is_reinforce",
        KL_COV,
        BY_TOKENS,
        "The size of log π - log π_old has no slope at 0.",
        on_policy=True,
    ),
    Equivalence(
        "kl_cov_by_loops",
        KL_COV.but(name="kl_cov, 10 %", objective=KlCovariance(0.1, trust_coef=1.5)),
        GRPO_PLAIN.but(name="held by loops", credit=Normalised(), objective=CovarianceByLoops(clip=False)),
        "The tokens with the largest covariance pay, the others do not.",
    ),
]
