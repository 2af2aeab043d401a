"""Equivalences of methods that look at components of the reward, or at which answers agree."""

import math
from dataclasses import dataclass

from sides import GRPO, GRPO_PLAIN, Equivalence, by_episode, in_one, members, paid, right
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods import method
from gruppo.methods.copo import InsideAndBetween
from gruppo.methods.gdpo import DecoupledNormalised
from gruppo.methods.unlikeliness import Unlikeliness
from gruppo.stages import Context, Occupant
from gruppo.stages.credit import GroupNormalised
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.update import Passes

GDPO, COPO, EMPO, UNLIKELINESS = (method(n) for n in ("gdpo", "copo", "empo", "unlikeliness"))


# The other sides, written by loops


def z_scores(x: list[float], eps: float) -> list[float]:
    """With n − 1; one alone, or equal ones, have 0."""
    mean = math.fsum(x) / len(x)
    if len(x) < 2 or all(v == x[0] for v in x):
        return [0.0] * len(x)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in x) / (len(x) - 1))
    return [(v - mean) / (std + eps) for v in x]


@dataclass(frozen=True)
class OneByOne(Occupant):
    """GDPO: every component of every group by itself, then the sum over the step."""

    weights: tuple[float, ...] = (1.0, 1.0)
    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        total = dict.fromkeys((i for rows in members(batch).values() for i in rows), 0.0)
        for c, weight in enumerate(self.weights):
            for rows in members(batch).values():
                for i, z in zip(rows, z_scores([float(batch.reward_EC[i, c]) for i in rows], 1e-4), strict=True):
                    total[i] += weight * z
        return by_episode(batch, dict(zip(total, z_scores(list(total.values()), 1e-4), strict=True)))


@dataclass(frozen=True)
class Between(Occupant):
    """COPO's second advantage alone: the mean of a group among the means of all."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rewards, groups = batch.reward_E.tolist(), members(batch)
        rates = [math.fsum(rewards[i] for i in rows) / len(rows) for rows in groups.values()]
        scored = zip(groups.values(), z_scores(rates, 1e-6), strict=True)
        return by_episode(batch, {i: z for rows, z in scored for i in rows})


@dataclass(frozen=True)
class BlendedByLoops(Occupant):
    """COPO's three columns, group by group."""

    slope: float = 20.0
    entropy: float = 1.5
    writes = ("adv_N", "adv_global_N", "local_N")

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rewards, answers = batch.reward_E.tolist(), batch.answer_E.tolist()
        inside, weight = dict[int, float](), dict[int, float]()
        for g, rows in members(batch).items():
            inside |= dict(zip(rows, z_scores([rewards[i] for i in rows], 1e-6), strict=True))
            shares = [sum(answers[j] == a for j in rows) / len(rows) for a in {answers[i] for i in rows}]
            h = -math.fsum(p * math.log(p) for p in shares)
            w = 1 / (1 + math.exp(-self.slope * (h - self.entropy)))
            weight |= {i: w for i, group in enumerate(batch.group_E.tolist()) if group == g}
        return {
            "adv_N": by_episode(batch, inside)["adv_N"],
            "adv_global_N": Between()(ctx, batch)["adv_N"],
            "local_N": by_episode(batch, weight)["adv_N"],
        }


@dataclass(frozen=True)
class Shares(Occupant):
    """EMPO: GRPO's advantage of the share of a group that gives the same answer."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        answers, adv = batch.answer_E.tolist(), {}
        for rows in members(batch).values():
            mine = [answers[i] for i in rows]
            reward = [mine.count(a) / len(mine) if a and len(set(mine)) < len(mine) else 0.0 for a in mine]
            adv |= dict(zip(rows, z_scores(reward, 1e-6), strict=True))
        return by_episode(batch, adv)


@dataclass(frozen=True)
class LessTheLikely(Occupant):
    """R (1 − β rank/G), the rank counted by comparing every answer with every other; then GRPO's advantage."""

    beta: float = 0.25
    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rewards, adv = batch.reward_EC[:, batch.components.index("task")].tolist(), {}
        for rows in members(batch).values():
            likely = {i: x for i in rows if (x := _mean_logp(batch, i)) is not None}  # an expert's answer has no rank
            below = {i: sum(x < y for x in likely.values()) for i, y in likely.items()}
            lost = {i: (n + (list(likely.values()).count(likely[i]) - 1) / 2) / len(likely) for i, n in below.items()}
            paid = [rewards[i] * (1 - self.beta * lost.get(i, 0.0)) for i in rows]
            adv |= dict(zip(rows, z_scores(paid, 1e-6), strict=True))
        return by_episode(batch, adv)


def _mean_logp(batch: Batch, episode: int) -> float | None:
    mine = [
        float(x)
        for x, e in zip(batch.logp_gen_N.tolist(), batch.episode_N.tolist(), strict=True)
        if e == episode and not math.isnan(x)
    ]
    return math.fsum(mine) / len(mine) if mine else None


# What is changed before the two are compared


in_two = paid(lambda e: {"task": right(e), "style": 10.0 * ((7 * e.uid) % 5)})

GRAPH: list[Equivalence] = [
    Equivalence(
        "gdpo_of_one_component",
        GDPO,
        GRPO.but(name="grpo, eps 1e-4", credit=GroupNormalised(eps=1e-4)),
        "GDPO (arXiv:2601.05242): with one reward there is nothing to decouple.",
        episodes=in_one,
    ),
    Equivalence(
        "gdpo_by_loops",
        GDPO.but(name="gdpo, weight 0.3 for style", credit=DecoupledNormalised(weights={"style": 0.3})),
        GRPO.but(name="each component by itself", credit=OneByOne(weights=(0.3, 1.0))),
        "GDPO: components normalised in their group, added, whitened over the step.",
        episodes=in_two,
    ),
    Equivalence(
        "copo_inside",
        COPO.but(name="copo, ρ → -∞", credit=InsideAndBetween(blend_entropy=-1e9)),
        GRPO_PLAIN.but(
            name="grpo, clips of copo, mean of answers", objective=ClippedSurrogate(0.2, 0.28, mean="episode")
        ),
        "COPO (arXiv:2508.04138): where no group agrees enough, only the comparison inside counts.",
    ),
    Equivalence(
        "copo_between",
        COPO.but(name="copo, ρ → ∞", credit=InsideAndBetween(blend_entropy=1e9)),
        GRPO_PLAIN.but(
            name="groups against groups", credit=Between(), objective=ClippedSurrogate(0.2, 0.28, mean="episode")
        ),
        "COPO: where every group agrees, only its mean reward among the others' counts.",
    ),
    Equivalence(
        "copo_by_loops",
        COPO.but(name="copo, γ = 2, ρ = 0.6", credit=InsideAndBetween(blend_slope=2.0, blend_entropy=0.6)),
        COPO.but(name="copo, group by group", credit=BlendedByLoops(slope=2.0, entropy=0.6)),
        "COPO: the entropy of answers, the weight, and the two advantages, counted one by one.",
    ),
    Equivalence(
        "empo_is_grpo_of_shares",
        EMPO,
        GRPO_PLAIN.but(name="grpo, shares of answers", credit=Shares()),
        "EMPO (arXiv:2504.05812): GRPO of how many of a group give the same answer; no label is read.",
        episodes=in_one,
    ),
    Equivalence(
        "unlikeliness_without_rank",
        UNLIKELINESS.but(name="unlikeliness, β = 0", reward=(Unlikeliness(rank_coef=0.0),)),
        GRPO.but(name="grpo, kl 0.1", penalties=(ReferenceKL(kl_coef=0.1),), update=Passes(epochs=2)),
        "Unlikeliness (arXiv:2506.02355): without the rank it is GRPO with two passes.",
        update=True,
    ),
    Equivalence(
        "unlikeliness_by_loops",
        UNLIKELINESS,
        GRPO.but(name="rewards less the likely", credit=LessTheLikely(), penalties=(ReferenceKL(kl_coef=0.1),)),
        "Unlikeliness: ranks counted one by one.",
        episodes=in_one,
    ),
]
