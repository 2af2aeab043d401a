"""Equivalences of the methods that weigh rewards, groups or tokens in another way: ngrpo, adora, bnpo, g2rpo,
forking_tokens, d3s."""

import math
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist
from typing import Any

import torch
from sides import (
    DAPO,
    GRPO,
    GRPO_PLAIN,
    Centred,
    Equivalence,
    Normalised,
    by_episode,
    even,
    in_one,
    members,
    one_group,
)
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Status
from gruppo.methods import method
from gruppo.methods.adora import LongerIsRight
from gruppo.methods.bnpo import BetaNormalised
from gruppo.methods.d3s import DownSample
from gruppo.methods.ngrpo import VirtualBest
from gruppo.stages import Context, Need, Occupant, Stats, need
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.select import TopEntropy

NGRPO, ADORA, BNPO, G2RPO, FORKING, D3S = (
    method(n) for n in ("ngrpo", "adora", "bnpo", "g2rpo", "forking_tokens", "d3s")
)


# The other sides, written by loops


@dataclass(frozen=True)
class Joined(Occupant):
    """(R_i − mean) / (std + 1e-6) of the group's rewards and one more of 1, put together in a list."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rewards, adv = batch.reward_E.tolist(), {}
        for rows in members(batch).values():
            seen = [*(rewards[i] for i in rows), 1.0]
            mean = math.fsum(seen) / len(seen)
            std = math.sqrt(math.fsum((r - mean) ** 2 for r in seen) / (len(seen) - 1))
            adv |= {i: (rewards[i] - mean) / (std + 1e-6) for i in rows}
        return by_episode(batch, adv)


def written(batch: Batch, e: int) -> int:
    """Tokens that the policy wrote in an episode."""
    rows = [n for n, i in enumerate(batch.episode_N.tolist()) if i == e]
    return sum(int(batch.source_N[n]) == Source.POLICY for n in rows)


@dataclass(frozen=True)
class WeighedByLength(Normalised):
    """GRPO's advantages, a tenth in groups whose longest right answer is not longer than the mean wrong one."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        plain, rewards, weight = super().__call__(ctx, batch)["adv_N"], batch.reward_E.tolist(), {}
        for rows in members(batch).values():
            right = [written(batch, i) for i in rows if rewards[i] > 0.5]
            whole = [i for i in rows if int(batch.status_E[i]) != Status.TRUNCATED]
            wrong = [written(batch, i) for i in whole if rewards[i] <= 0.5]
            good = bool(right) and (not wrong or max(right) > sum(wrong) / len(wrong))
            weight |= {i: 1.0 if good else 0.1 for i in rows}
        return {"adv_N": plain * by_episode(batch, weight)["adv_N"]}


@dataclass(frozen=True)
class BetaByLoops(Occupant):
    """(R_i − p) over the density of the Beta distribution that the moments of all p give, one group after the other."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rewards, adv = batch.reward_E.tolist(), {}
        groups = list(members(batch).values())
        p = [math.fsum(rewards[i] for i in rows) / len(rows) for rows in groups]
        m = math.fsum(p) / len(p)
        v = math.fsum((x - m) ** 2 for x in p) / (len(p) - 1)
        a, b = (1 + max((m * (1 - m) / v - 1) * share / 3, 0.0) for share in (m, 1 - m))
        log_b = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
        for x, rows in zip(p, groups, strict=True):
            if 0 < x < 1:
                density = math.exp((a - 1) * math.log(x) + (b - 1) * math.log(1 - x) - log_b)
                adv |= {i: (rewards[i] - x) / density for i in rows}
        return by_episode(batch, adv)


@dataclass(frozen=True)
class FixedBeta(BetaNormalised):
    """BNPO's credit with the divisor of α = β = 3/2, whatever the rates are."""

    def shape(self, rate_X: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tensor(1.5).to(rate_X), torch.tensor(1.5).to(rate_X)


@dataclass(frozen=True)
class EighthsOfPi(Occupant):
    """π/8 (R_i − mean) / √(mean (R − mean)²)."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rewards, adv = batch.reward_E.tolist(), {}
        for rows in members(batch).values():
            mean = math.fsum(rewards[i] for i in rows) / len(rows)
            std = math.sqrt(math.fsum((rewards[i] - mean) ** 2 for i in rows) / len(rows))
            adv |= {i: math.pi / 8 * (rewards[i] - mean) / std for i in rows if std > 0}
        return by_episode(batch, adv)


@dataclass(frozen=True)
class QuantilesByLoops(Occupant):
    """The mean of the normal quantiles of all ranks that an answer could have among its equals."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rewards, adv = batch.reward_E.tolist(), {}
        for rows in members(batch).values():
            for i in rows:
                below = sum(rewards[j] < rewards[i] - 1e-6 for j in rows)
                equal = sum(abs(rewards[j] - rewards[i]) < 1e-6 for j in rows)
                ranks = range(below + 1, below + equal + 1)
                adv[i] = math.fsum(NormalDist().inv_cdf((k - 0.5) / len(rows)) for k in ranks) / equal
        return by_episode(batch, adv)


@dataclass(frozen=True)
class TopByLoops(Occupant):
    """Tokens sorted by entropy: those down to the last of ceil(20 %), and its equals."""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("entropy", "old"),)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        entropy, mine = batch.entropy_old_N.tolist(), batch.policy_N.tolist()
        ranked = sorted((h for h, m in zip(entropy, mine, strict=True) if m), reverse=True)
        bar = ranked[-(-len(ranked) // 5) - 1]
        return torch.tensor([h >= bar for h in entropy]), torch.ones_like(batch.weight_N)


@dataclass(frozen=True)
class WidestByLoops(Occupant):
    """Half of each group, of all sets the one with the largest variance; no other choice."""

    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("entropy", "old"),)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        learn, home = batch.learn_N.tolist(), batch.episode_N.tolist()
        adv = {e: float(batch.adv_N[n]) for n, e in enumerate(home) if learn[n]}
        luck = dict(enumerate(ctx.uniform("d3s", batch.uid_E).tolist()))
        kept: set[int] = set()
        for g in range(batch.size("G")):
            rows = [e for e in adv if int(batch.group_E[e]) == g]
            rows.sort(key=lambda e: (round(adv[e], 9), luck[e]))
            size = -(-len(rows) // 2)
            best: tuple[float, list[int]] = (-1.0, [])
            for low in range(size, -1, -1):  # the largest ones first go in one by one
                some = rows[:low] + (rows[low - size :] if low < size else [])
                mean = math.fsum(adv[e] for e in some) / max(len(some), 1)
                variance = math.fsum((adv[e] - mean) ** 2 for e in some) / max(len(some), 1)
                best = (variance, some) if variance > best[0] + 1e-9 else best
            widest = max((_variance([adv[e] for e in s]) for s in combinations(rows, size)), default=0.0)
            assert not rows or abs(widest - best[0]) < 1e-9, "the extremes are the widest of all sets"
            kept |= set(best[1])
        return torch.tensor([e in kept for e in home]), torch.ones_like(batch.weight_N)


def _variance(x: list[float]) -> float:
    mean = math.fsum(x) / len(x)
    return math.fsum((v - mean) ** 2 for v in x) / len(x)


# What is changed before the two are compared


def curved(episodes: list[Episode]) -> list[Episode]:
    """Rewards that differ all, and are far apart."""
    out = [replace(e, turns=[replace(t, reward={}) for t in e.turns]) for e in episodes]
    return [replace(e, reward={"task": math.exp(i % 7)} if e.reward else {}) for i, e in enumerate(out)]


def changed(m: Any, name: str, **rooms: Any) -> Any:
    return m.but(name=name, breaks={}, **rooms)


PLAIN = ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="sequence")
SUMMED = BNPO.objective
ALL = DownSample(group_share=1.0, batch_share=1.0, token_share=1.0, token_share_last=1.0)
HALF = DownSample(group_share=0.5, group_share_last=0.5, batch_share=1.0, token_share=1.0, token_share_last=1.0)
OVER_TOKENS = GRPO.but(name="grpo over tokens", objective=ClippedSurrogate(mean="token"))

GRAPH: list[Equivalence] = [
    Equivalence(
        "ngrpo_is_one_more_reward",
        NGRPO,
        changed(NGRPO, "ngrpo, rewards in a list", credit=Joined()),
        "NGRPO (arXiv:2509.18851): mean and deviation of the group's rewards and one more of 1.",
    ),
    Equivalence(
        "ngrpo_without_the_virtual_one",
        changed(NGRPO, "ngrpo, no copy, grpo's clip", credit=VirtualBest(copies=0), objective=PLAIN, select=()),
        GRPO_PLAIN.but(name="grpo without kl, by loops", credit=Normalised()),
        "Without the virtual answer NGRPO's statistics are GRPO's.",
    ),
    Equivalence(
        "adora_by_loops",
        ADORA,
        ADORA.but(name="adora, one group after the other", credit=WeighedByLength()),
        "ADORA (arXiv:2602.10019): a group counts a tenth unless its longest right answer beats the mean wrong one.",
    ),
    Equivalence(
        "adora_with_factor_1",
        ADORA.but(name="adora, λ = 1", credit=LongerIsRight(factor=1.0)),
        GRPO.but(name="grpo, kl 0.001", penalties=ReferenceKL(kl_coef=0.001, mean="sequence")),
        "With λ = 1 every group counts in full: GRPO.",
    ),
    Equivalence(
        "adora_of_even_lengths",
        ADORA.but(name="adora without kl, λ = 0.1", credit=LongerIsRight(eps=0.0), penalties=()),
        ADORA.but(name="all groups at a tenth", credit=LongerIsRight(threshold=9.0, eps=0.0), penalties=()),
        "Of answers of one length none is longer: every group counts λ.",
        episodes=even,
    ),
    Equivalence(
        "bnpo_by_loops",
        BNPO,
        BNPO.but(name="bnpo, one group after the other", credit=BetaByLoops()),
        "BNPO (arXiv:2506.02864): the divisor is the density that the moments of all rates give.",
        episodes=in_one,
    ),
    Equivalence(
        "bnpo_of_one_group_is_centred",
        BNPO,
        BNPO.but(name="bnpo, centred", credit=Centred()),
        "With one group nothing is fitted, α = β = 1: the mean as a baseline.",
        episodes=lambda episodes: in_one(one_group(episodes)),
    ),
    Equivalence(
        "bnpo_of_three_halves_is_grpo",
        BNPO.but(name="bnpo, α = β = 3/2", credit=FixedBeta()),
        BNPO.but(name="π/8 · grpo's advantage", credit=EighthsOfPi()),
        "The density of (3/2, 3/2) is 8/π √(p (1 - p)), of 0 and 1 the deviation with n.",
        episodes=in_one,
    ),
    Equivalence(
        "g2rpo_by_loops",
        G2RPO,
        G2RPO.but(name="g2rpo, rank by rank", credit=QuantilesByLoops()),
        "G²RPO (arXiv:2604.08539): the quantile of the rank, and its mean over ties.",
        episodes=curved,
    ),
    Equivalence(
        "g2rpo_ties_by_loops",
        G2RPO.but(name="g2rpo of 0 and 1"),
        G2RPO.but(name="g2rpo of 0 and 1, rank by rank", credit=QuantilesByLoops()),
        "Of right and wrong answers all are ties.",
    ),
    Equivalence(
        "forking_tokens_by_loops",
        FORKING,
        FORKING.but(name="dapo, sorted by entropy", select=(*DAPO.select, TopByLoops())),
        "Forking tokens (arXiv:2506.01939): the top 20 % by entropy, in the sum and in the count.",
    ),
    Equivalence(
        "forking_tokens_of_all_is_dapo",
        FORKING.but(name="forking tokens, ρ = 1", select=TopEntropy(share=1.0)),
        DAPO,
        "All tokens are the top of them.",
    ),
    Equivalence(
        "d3s_of_all_is_grpo",
        D3S.but(name="d3s, all shares 1", select=ALL),
        OVER_TOKENS,
        "D³S (arXiv:2509.22115): what chooses everything chooses nothing.",
    ),
    Equivalence(
        "d3s_takes_the_widest",
        D3S.but(name="d3s, half of each group", select=HALF),
        D3S.but(name="of all halves the one of the largest variance", select=(WidestByLoops(),)),
        "The set of the largest variance is made of both ends.",
    ),
]
