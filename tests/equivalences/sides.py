"""What an edge of the graph of equivalences is, and the sides that several of them share.

What stands on the right is often written here once more, by loops, so that the two sides share as little code as they
can.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Status, single_turn
from gruppo.lab.laws.episodes import VOCAB
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.methods.disco import Discriminate
from gruppo.stages import Context, Method, Need, Occupant, Stats, Term, Values, need

REINFORCE, PPO, GRPO, DAPO, RLOO, DISCO = (method(n) for n in ("reinforce", "ppo", "grpo", "dapo", "rloo", "disco"))
NOW, OLD = need("logp", when="step"), need("logp", "old")


# The other sides, written by loops


def whole_terms(batch: Batch, name: str = "policy", coef: float = 1.0) -> list[Term]:
    """One number for the optimiser step, added up by hand: a term of the first group alone."""
    return [Term(name, torch.arange(batch.size("G")) == 0, 1.0, coef=coef, at="G", additive=False)]


def whole_value(batch: Batch, total: Tensor, name: str = "policy") -> Values:
    return {name: total.expand(batch.size("G"))}


def members(batch: Batch) -> dict[int, list[int]]:
    """{group: its judged episodes}."""
    out: dict[int, list[int]] = {}
    for i, (g, judged) in enumerate(zip(batch.group_E.tolist(), batch.judged_E.tolist(), strict=True)):
        if judged:
            out.setdefault(g, []).append(i)
    return out


def by_episode(batch: Batch, adv: dict[int, float]) -> dict[str, Tensor]:
    return {"adv_N": torch.tensor([adv.get(e, 0.0) for e in batch.episode_N.tolist()], dtype=torch.float64)}


@dataclass(frozen=True)
class Centred(Occupant):
    """R_i − mean, times n/(n − 1) if `bessel`."""

    bessel: bool = False
    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rewards, adv = batch.reward_E.tolist(), {}
        for rows in members(batch).values():
            mean, n = math.fsum(rewards[i] for i in rows) / len(rows), len(rows)
            factor = n / (n - 1) if self.bessel and n > 1 else 0.0 if self.bessel else 1.0
            adv |= {i: factor * (rewards[i] - mean) for i in rows}
        return by_episode(batch, adv)


@dataclass(frozen=True)
class Normalised(Occupant):
    """(R_i − mean) / (std + 1e-6), std with n − 1; 0 for groups of one."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rewards, adv = batch.reward_E.tolist(), {}
        for rows in members(batch).values():
            mine = [rewards[i] for i in rows]
            mean = math.fsum(mine) / len(mine)
            std = math.sqrt(math.fsum((r - mean) ** 2 for r in mine) / max(len(mine) - 1, 1))
            adv |= {i: (rewards[i] - mean) / (std + 1e-6) for i in rows}
        return by_episode(batch, adv)


@dataclass(frozen=True)
class ClippedByLoops(Occupant):
    """1/B Σ_i 1/T_i Σ_t min(r A, clip(r, .8, 1.2) A), one token after the other; an answer is a sequence."""

    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return whole_terms(batch)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        answers: dict[int, list[Tensor]] = {}
        for n in torch.nonzero(batch.learn_N)[:, 0].tolist():
            r, a = torch.exp(stats.logp_N[n] - batch.logp_old_N[n]), float(batch.adv_N[n])
            size = float(r.detach())
            inside = 0.8 <= size <= 1.2
            clipped = r if inside else torch.full_like(r, min(max(size, 0.8), 1.2))
            value = r * a if size * a <= float(clipped.detach()) * a else clipped * a
            answers.setdefault(int(batch.seq_K[batch.turn_N[n]]), []).append(value)
        zero = 0.0 * stats.logp_N.sum()
        total = sum((sum(v, zero) / len(v) for v in answers.values()), zero) / max(len(answers), 1)
        return whole_value(batch, total)


@dataclass(frozen=True)
class WhitenedReturn(Occupant):
    """The sum of all rewards from a token on, in time order, whitened over the tokens."""

    writes = ("adv_N", "ret_N")

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        order = sorted(range(batch.size("N")), key=lambda n: (int(batch.turn_index_K[batch.turn_N[n]]), n))
        mine = [n for n in order if int(batch.source_N[n]) == Source.POLICY and bool(batch.alive_E[batch.episode_N[n]])]
        judged = batch.judged_E.tolist()
        reward = dict.fromkeys(mine, 0.0)
        for name, home in (("E", batch.episode_N), ("K", batch.turn_N)):
            last = {int(home[n]): n for n in mine}
            for row, n in last.items():
                own = float(torch.nan_to_num(batch.reward_EC[row]).sum()) if name == "E" else float(batch.reward_K[row])
                reward[n] += own if name == "K" or judged[row] else 0.0
        ahead: dict[int, float] = {}
        returns = torch.zeros(batch.size("N"), dtype=torch.float64)
        for n in reversed(mine):
            e = int(batch.episode_N[n])
            ahead[e] = ahead.get(e, 0.0) + reward[n]
            returns[n] = ahead[e]
        open_E = (batch.status_E == Status.OPEN).tolist()
        known = [n for n in mine if judged[int(batch.episode_N[n])] or open_E[int(batch.episode_N[n])]]
        values = [float(returns[n]) for n in known]
        mean = math.fsum(values) / len(values)
        scale = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1) + 1e-8)
        adv, ret = torch.zeros_like(returns), torch.zeros_like(returns)
        for n in known:
            adv[n], ret[n] = (returns[n] - mean) / scale, returns[n]
        return {"adv_N": adv, "ret_N": ret}


@dataclass(frozen=True)
class DifferenceOfMeans(Discriminate):
    """DisCO-b: mean score of right answers less that of wrong ones; the trust region as it is."""

    def parted(self, batch: Batch) -> dict[int, dict[bool, list[Tensor]]]:
        """{group: the rows of each right and of each wrong answer}, of groups that have both."""
        out: dict[int, dict[bool, list[Tensor]]] = {}
        for g, rows in members(batch).items():
            sides: dict[bool, list[Tensor]] = {True: [], False: []}
            for e in rows:
                tokens = torch.nonzero((batch.episode_N == e) & batch.learn_N)[:, 0]
                if len(tokens):
                    sides[bool(batch.right_N[tokens[0]] > 0)].append(tokens)
            out |= {g: sides} if sides[True] and sides[False] else {}
        return out

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        both = torch.tensor([g in self.parted(batch) for g in range(batch.size("G"))])
        return [Term("separate", both, "drawn_group", at="G", additive=False), super().terms(ctx, batch)[1]]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        value_G = [torch.zeros((), dtype=torch.float64) for _ in range(batch.size("G"))]
        for g, sides in self.parted(batch).items():
            up, down = (torch.stack([stats.logp_N[t].mean() for t in sides[right]]).mean() for right in (True, False))
            value_G[g] = up - down
        return {"separate": torch.stack(value_G), "trust": super().__call__(ctx, batch, stats)["trust"]}


@dataclass(frozen=True)
class RatioAsWeight(Occupant):
    """Weighs tokens by π/π_old of the model being trained, without gradient."""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        return torch.ones_like(batch.keep_N), torch.exp(stats.logp_N - batch.logp_old_N)


@dataclass(frozen=True)
class OneStep(Occupant):
    """A gradient and a step of each role, by the learner's smaller verbs."""

    times: int = 1

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        for _ in range(self.times):
            for role in learner.trained:
                learner.grad(role, batch)
                learner.apply(role, learner.lr(role))


# What is changed before the two are compared


def one_group(episodes: list[Episode]) -> list[Episode]:
    return [replace(e, group="g") for e in episodes]


def even(episodes: list[Episode]) -> list[Episode]:
    """Answers of four tokens each, in groups of three."""
    rng = np.random.default_rng(len(episodes))
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    return [
        replace(
            single_turn(
                i, "t", f"g{i // 3}", np.array([1, 2]), rng.integers(2, VOCAB, 4), np.full(4, -1.0, np.float32), 0
            ),
            reward={"task": r},
        )
        for i, r in enumerate(rewards)
    ]


def no_value(batch: Batch) -> Batch:
    return batch.with_columns(value_critic_N=torch.zeros_like(batch.weight_N))


def exact_sampler(batch: Batch) -> Batch:
    return batch.with_columns(logp_gen_N=torch.where(torch.isnan(batch.logp_gen_N), batch.logp_gen_N, batch.logp_old_N))


class Equivalence(NamedTuple):
    """left and right have the same gradient, under the conditions that `note` tells."""

    name: str
    left: Method
    right: Method
    note: str
    on_policy: bool = False
    episodes: Callable[[list[Episode]], list[Episode]] = list
    batch: Callable[[Batch], Batch] = lambda b: b
    limit: float = 1e-9
    update: bool = False  # compare the weights after the update instead of the gradients
    roles: tuple[str, ...] = ("policy",)
    before: Callable[[World], None] = lambda w: None  # what has happened before the step


GRPO_PLAIN = GRPO.but(name="grpo without kl", penalties=())


def paid(pay: Callable[[Episode], dict[str, float]]) -> Callable[[list[Episode]], list[Episode]]:
    """Episodes with other components, and none of their turns."""

    def change(episodes: list[Episode]) -> list[Episode]:
        calm = [[replace(t, reward={}) for t in e.turns] for e in episodes]
        return [replace(e, reward=pay(e) if e.reward else {}, turns=t) for e, t in zip(episodes, calm, strict=True)]

    return change


def right(e: Episode) -> float:
    return float(sum(e.reward.values()) > 0)


in_one = paid(lambda e: {"task": right(e)})  # one component, right or wrong
