"""The graph of equivalences, as data: which method is which other one when some of its furniture is changed.

`GRAPH` is a list of (name, left, right, note, …); the labels of a drawing are the names of left and right. What stands
on the right is often written here once more, by loops, so that the two sides share as little code as they can.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Status, single_turn
from gruppo.lab.world import VOCAB
from gruppo.methods import method
from gruppo.methods.disco import Discriminate
from gruppo.stages import Context, Method, Need, Occupant, Schedule, Stats, Term, need
from gruppo.stages.credit import Gae, GroupNormalised, LeaveOneOut
from gruppo.stages.objective import ClippedSurrogate, PolicyGradient
from gruppo.stages.penalties import EntropyBonus, ReferenceKL
from gruppo.stages.select import TopEntropy, TruncatedImportance
from gruppo.stages.update import Passes

REINFORCE, PPO, GRPO, DAPO, RLOO, DISCO = (method(n) for n in ("reinforce", "ppo", "grpo", "dapo", "rloo", "disco"))
NOW, OLD = need("logp", when="step"), need("logp", "old")


# The other sides, written by loops


def _members(batch: Batch) -> dict[int, list[int]]:
    """{group: its judged episodes}."""
    out: dict[int, list[int]] = {}
    for i, (g, judged) in enumerate(zip(batch.group_E.tolist(), batch.judged_E.tolist(), strict=True)):
        if judged:
            out.setdefault(g, []).append(i)
    return out


def _to_tokens(batch: Batch, adv: dict[int, float]) -> dict[str, Tensor]:
    return {"adv_N": torch.tensor([adv.get(e, 0.0) for e in batch.episode_N.tolist()], dtype=torch.float64)}


@dataclass(frozen=True)
class Centred(Occupant):
    """R_i − mean, times n/(n − 1) if `bessel`."""

    bessel: bool = False
    gives = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rewards, adv = batch.reward_E.tolist(), {}
        for rows in _members(batch).values():
            mean, n = math.fsum(rewards[i] for i in rows) / len(rows), len(rows)
            factor = n / (n - 1) if self.bessel and n > 1 else 0.0 if self.bessel else 1.0
            adv |= {i: factor * (rewards[i] - mean) for i in rows}
        return _to_tokens(batch, adv)


@dataclass(frozen=True)
class Normalised(Occupant):
    """(R_i − mean) / (std + 1e-6), std with n − 1; 0 for groups of one."""

    gives = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rewards, adv = batch.reward_E.tolist(), {}
        for rows in _members(batch).values():
            mine = [rewards[i] for i in rows]
            mean = math.fsum(mine) / len(mine)
            std = math.sqrt(math.fsum((r - mean) ** 2 for r in mine) / max(len(mine) - 1, 1))
            adv |= {i: (rewards[i] - mean) / (std + 1e-6) for i in rows}
        return _to_tokens(batch, adv)


@dataclass(frozen=True)
class ClippedByLoops(Occupant):
    """1/B Σ_i 1/T_i Σ_t min(r A, clip(r, .8, 1.2) A), one token after the other; an answer is a sequence."""

    takes = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
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
        first = torch.arange(batch.size("G")) == 0
        return [Term("policy", total.expand(batch.size("G")), first, 1.0, at="G", additive=False)]


@dataclass(frozen=True)
class WhitenedReturn(Occupant):
    """The sum of all rewards from a token on, in time order, whitened over the tokens."""

    gives = ("adv_N", "ret_N")

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

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        value_G = [torch.zeros((), dtype=torch.float64) for _ in range(batch.size("G"))]
        both = [False] * batch.size("G")
        for g, rows in _members(batch).items():
            sides: dict[bool, list[Tensor]] = {True: [], False: []}
            for e in rows:
                tokens = torch.nonzero((batch.episode_N == e) & batch.learn_N)[:, 0]
                if len(tokens):
                    sides[bool(batch.right_N[tokens[0]] > 0)].append(stats.logp_N[tokens].mean())
            both[g] = bool(sides[True] and sides[False])
            if both[g]:
                value_G[g] = torch.stack(sides[True]).mean() - torch.stack(sides[False]).mean()
        separate = Term("separate", torch.stack(value_G), torch.tensor(both), "drawn_group", at="G", additive=False)
        return [separate, super().__call__(ctx, batch, stats)[1]]


@dataclass(frozen=True)
class RatioAsWeight(Occupant):
    """Weighs tokens by π/π_old of the model being trained, without gradient."""

    current = True

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


GRPO_PLAIN = GRPO.but(name="grpo without kl", penalties=())
GRAPH: list[Equivalence] = [
    Equivalence(
        "dapo_is_grpo",
        DAPO.but(
            name="dapo, equal clips, sequence mean, no shaping, no redraw",
            objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="sequence"),
            reward=(),
            select=(),
        ),
        GRPO_PLAIN.but(name="grpo without kl, by loops", credit=Normalised(), objective=ClippedByLoops()),
        "With equal clips, no filter and the mean per sequence DAPO is GRPO; the KL is off on both sides.",
    ),
    Equivalence(
        "rloo_is_centred",
        RLOO.but(name="rloo, kl 0", credit=LeaveOneOut(kl_coef=0.0)),
        REINFORCE.but(name="n/(n-1) · centred", credit=Centred(bessel=True)),
        "RLOO (arXiv:2402.14740): leaving one out is the centred reward, times n/(n-1) of each group.",
    ),
    Equivalence(
        "grpo_is_policy_gradient",
        GRPO_PLAIN,
        REINFORCE.but(
            name="policy gradient, normalised advantage", credit=Normalised(), objective=PolicyGradient(mean="sequence")
        ),
        "On-policy, in the first step of a batch, every ratio is 1 and no clip binds.",
        on_policy=True,
    ),
    Equivalence(
        "ppo_is_whitened_return",
        PPO.but(name="ppo, γ = λ = 1", credit=Gae(gamma=1.0, lam=1.0)),
        PPO.but(name="whitened return", credit=WhitenedReturn()),
        "PPO (arXiv:1707.06347, verl core_algos): λ = 1 gives Â_t + V_t = G_t; with V = 0 that is the return itself.",
        batch=no_value,
        roles=("policy", "critic"),
    ),
    Equivalence(
        "disco_is_disco_b",
        DISCO.but(name="disco, τ → ∞", objective=Discriminate(tau=1e7)),
        DISCO.but(name="disco-b", objective=DifferenceOfMeans()),
        "DisCO (arXiv:2505.12366): the log-mean-exp of wrong answers becomes their mean.",
        limit=1e-6,
    ),
    Equivalence(
        "no_clip_is_importance_weighted",
        GRPO_PLAIN.but(name="grpo, clips of 1e9", objective=ClippedSurrogate(clip_low=1e9, clip_high=1e9)),
        GRPO_PLAIN.but(
            name="importance-weighted policy gradient",
            objective=PolicyGradient(mean="sequence"),
            select=RatioAsWeight(),
        ),
        "∇(rA) = r A ∇ log π: a weight on the score function, here by the second door of select.",
    ),
    Equivalence(
        "dual_clip_far_away",
        DAPO.but(
            name="dapo, dual clip 1e9",
            objective=ClippedSurrogate(clip_low=0.2, clip_high=0.28, clip_dual=1e9, mean="token"),
            reward=(),
        ),
        DAPO.but(name="dapo without shaping", reward=()),
        "A bound that never binds.",
    ),
    Equivalence(
        "token_mean_of_even_lengths",
        GRPO_PLAIN.but(name="grpo, token mean", objective=ClippedSurrogate(mean="token")),
        GRPO_PLAIN,
        "GRPO (arXiv:2402.03300): the mean over tokens and the mean per sequence differ by the lengths only.",
        episodes=even,
    ),
    Equivalence(
        "reinforce_is_centred",
        REINFORCE,
        REINFORCE.but(name="centred", credit=Centred()),
        "At the first step the baseline is the mean of the batch: with one group, its centred reward.",
        episodes=one_group,
    ),
    Equivalence(
        "no_kl_coefficient",
        GRPO.but(name="grpo, kl_coef 0", penalties=(ReferenceKL(kl_coef=0.0), EntropyBonus(entropy_coef=0.0))),
        GRPO_PLAIN,
        "A penalty of coefficient 0 is no penalty.",
    ),
    Equivalence(
        "flat_schedule",
        GRPO.but(name="grpo, flat schedule", penalties=(ReferenceKL(kl_coef=Schedule("linear(0.04, 0.04, steps=9)")),)),
        GRPO,
        "A schedule that does not move is a number.",
    ),
    Equivalence(
        "all_tokens_kept",
        GRPO.but(name="grpo, top entropy 100 %", select=TopEntropy(share=1.0)),
        GRPO,
        "All of the tokens are the top of them.",
    ),
    Equivalence(
        "exact_sampler",
        GRPO.but(name="grpo, truncated importance", select=TruncatedImportance(cap=2.0)),
        GRPO,
        "TIS: a sampler that computes what the trainer computes needs no correction.",
        batch=exact_sampler,
    ),
    Equivalence(
        "scaled_rewards",
        GRPO_PLAIN.but(name="grpo, ε = 0", credit=GroupNormalised(eps=0.0)),
        GRPO_PLAIN,
        "ε = 1e-6 matters by 1e-6 only.",
        limit=1e-5,
    ),
    Equivalence(
        "one_pass_is_one_step",
        GRPO,
        GRPO.but(name="one gradient, one step", update=OneStep()),
        "One epoch of one minibatch is one optimiser step on the whole batch.",
        update=True,
    ),
    Equivalence(
        "two_epochs_are_two_steps",
        PPO.but(name="ppo, two epochs", update=Passes(epochs=2, minibatches=1)),
        PPO.but(name="two gradients, two steps", update=OneStep(times=2)),
        "Epochs over one minibatch are steps on the same batch, with logp_old held.",
        update=True,
        roles=("policy", "critic"),
    ),
]
