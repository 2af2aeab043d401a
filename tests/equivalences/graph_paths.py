"""Equivalences of the methods whose answers have pieces: steps that are paid, early exits, windows, segments."""

import math
from dataclasses import dataclass, replace

import torch
from sides import (
    GRPO_PLAIN,
    NOW,
    OLD,
    PPO,
    REINFORCE,
    Centred,
    ClippedByLoops,
    Equivalence,
    by_episode,
    members,
    whole_terms,
    whole_value,
)
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Status
from gruppo.methods import method
from gruppo.methods.t_ppo import WindowGae
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, need, note
from gruppo.stages.objective import ClippedSurrogate

OPRL, S_GRPO, T_PPO, SPO = (method(n) for n in ("oprl", "s_grpo", "t_ppo", "spo_segment"))


def second_is_old(batch: Batch) -> Batch:
    return batch.with_columns(logp_prm_N=batch.logp_old_N)


@dataclass(frozen=True)
class PairsByLoops(Occupant):
    """Mean of log σ(β (Σ log π_φ/π_old of the better − of the worse)), one pair after the other."""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("logp", "prm", when="step"), OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return whole_terms(batch, "preference")

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        size, zero = batch.size("E"), 0.0 * stats.logp_N.sum()
        total: list[Tensor] = [zero] * size
        wrote = [0] * size
        for n, e in enumerate(batch.episode_N.tolist()):
            if int(batch.source_N[n]) == Source.POLICY and bool(batch.learn_E[e]):
                total[e] = total[e] + stats.logp_N[n] - batch.logp_old_N[n]
                wrote[e] += 1
        found: list[Tensor] = []
        for i in range(size):
            for j in range(size):
                same = int(batch.group_E[i]) == int(batch.group_E[j]) and bool(batch.judged_E[i] & batch.judged_E[j])
                learned = bool(batch.learn_E[i] & batch.learn_E[j]) and wrote[i] > 0 and wrote[j] > 0
                if same and learned and float(batch.reward_E[i]) > float(batch.reward_E[j]) + 1e-6:
                    found.append(-torch.log1p(torch.exp(-0.05 * (total[i] - total[j]))))
        return whole_value(batch, sum(found, zero) / max(len(found), 1), "preference")


def one_right(episodes: list[Episode]) -> list[Episode]:
    """At most one right answer a group; nothing but the task is paid."""
    seen: set[str] = set()
    out: list[Episode] = []
    for e in episodes:
        right = e.reward.get("task", 0.0) > 0 and e.group not in seen and e.status.judged
        seen |= {e.group} if right else set()
        turns = [replace(t, reward={}) for t in e.turns]
        out.append(replace(e, reward={"task": float(right)} if e.reward else {}, turns=turns))
    return out


def only_the_task(episodes: list[Episode]) -> list[Episode]:
    return [
        replace(
            e,
            reward={k: v for k, v in e.reward.items() if k == "task"},
            turns=[replace(t, reward={}) for t in e.turns],
        )
        for e in episodes
    ]


@dataclass(frozen=True)
class SerialByLoops(Occupant):
    """R = 2^−(right answers with an earlier exit) if right, else 0, less the mean of the group: one after the other."""

    writes = ("adv_N",)
    reads = (note("exit"),)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        right = (batch.reward_E > 0).tolist()
        place, adv = batch.note_exit_E.tolist(), dict[int, float]()
        for rows in members(batch).values():
            worth = {i: 0.5 ** sum(right[j] and place[j] < place[i] for j in rows) if right[i] else 0.0 for i in rows}
            adv |= {i: worth[i] - sum(worth.values()) / len(rows) for i in rows}
        return by_episode(batch, adv)


def nothing_open(episodes: list[Episode]) -> list[Episode]:
    return [e for e in episodes if e.status != Status.OPEN]


def older_windows(batch: Batch) -> Batch:
    """Of every sequence the first half was sampled by older weights."""
    place_N = batch.scan(torch.ones_like(batch.weight_N), 1.0, "N", "S")
    half_N = batch.spread(batch.gather(batch.keep_N, "N", "S", "count"), "S", "N") / 2
    return batch.with_columns(version_N=torch.where(place_N > half_N, -1, batch.version_N))


@dataclass(frozen=True)
class WindowByLoops(Occupant):
    """EGAE of each answer, one token after the other, whitened over the tokens of version 0."""

    writes = ("adv_N", "ret_N")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("value", "critic"),)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        order = sorted(range(batch.size("N")), key=lambda n: (int(batch.turn_index_K[batch.turn_N[n]]), n))
        answers: dict[int, list[int]] = {}
        for n in order:
            if int(batch.source_N[n]) == Source.POLICY and bool(batch.alive_E[batch.episode_N[n]]):
                answers.setdefault(int(batch.episode_N[n]), []).append(n)
        adv, ret, known = {}, {}, list[int]()
        for e, rows in answers.items():
            judged, is_open = bool(batch.judged_E[e]), int(batch.status_E[e]) == Status.OPEN
            value = [float(batch.value_critic_N[n]) for n in rows]
            after = [*value[1:], value[-1] if is_open else 0.0]
            total, ahead = 0.0, value[-1] if is_open else 0.0
            for i in reversed(range(len(rows))):
                turn = int(batch.turn_N[rows[i]])
                last_of_turn = i + 1 == len(rows) or int(batch.turn_N[rows[i + 1]]) != turn
                reward = float(batch.reward_K[turn]) if last_of_turn else 0.0
                if i + 1 == len(rows) and judged:
                    reward += float(torch.nan_to_num(batch.reward_EC[e]).sum())
                total = reward + after[i] - value[i] + 0.95 * total
                ahead = reward + ahead
                adv[rows[i]], ret[rows[i]] = total, ahead
            known += [n for n in rows if (judged or is_open) and int(batch.version_N[n]) == 0]
        mean = math.fsum(adv[n] for n in known) / len(known)
        scale = math.sqrt(math.fsum((adv[n] - mean) ** 2 for n in known) / (len(known) - 1) + 1e-8)
        adv_N, ret_N = torch.zeros_like(batch.weight_N), torch.zeros_like(batch.weight_N)
        for n in known:
            adv_N[n] = (adv[n] - mean) / scale
        for n, x in ret.items():
            ret_N[n] = x
        return {"adv_N": adv_N, "ret_N": ret_N}


@dataclass(frozen=True)
class WindowSurrogate(Occupant):
    """min(r A, clip(r, .8, 1.2) A), one token of version 0 after the other, over those of ended and open answers."""

    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return whole_terms(batch)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        zero, found = 0.0 * stats.logp_N.sum(), list[Tensor]()
        for n, e in enumerate(batch.episode_N.tolist()):
            learned = bool(batch.learn_E[e]) or (bool(batch.alive_E[e]) and int(batch.status_E[e]) == Status.OPEN)
            if learned and int(batch.source_N[n]) == Source.POLICY and int(batch.version_N[n]) == 0:
                r, a = torch.exp(stats.logp_N[n] - batch.logp_old_N[n]), float(batch.adv_N[n])
                bound = min(max(float(r.detach()), 0.8), 1.2)
                found.append(r * a if float(r.detach()) * a <= bound * a else torch.full_like(r, bound * a))
        return whole_value(batch, sum(found, zero) / max(len(found), 1))


def unsure_rows(batch: Batch, everything: bool = False) -> list[int]:
    return [
        n
        for n, e in enumerate(batch.episode_N.tolist())
        if int(batch.source_N[n]) == Source.POLICY
        and bool(batch.judged_E[e])
        and (everything or float(batch.note_unsure_N[n]) > 0)
    ]


@dataclass(frozen=True)
class GainByLoops(Occupant):
    """Gains of the unsure tokens less their mean, over their deviation, one after the other."""

    everything: bool = False
    writes = ("adv_N",)
    reads = SPO.credit.reads

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        gain = {n: float(batch.note_gain_N[n]) for n in unsure_rows(batch, self.everything)}
        mean = math.fsum(gain.values()) / len(gain)
        scale = math.sqrt(math.fsum((x - mean) ** 2 for x in gain.values()) / (len(gain) - 1) + 1e-8)
        adv_N = torch.zeros_like(batch.weight_N)
        for n, x in gain.items():
            adv_N[n] = (x - mean) / scale
        return {"adv_N": adv_N}


@dataclass(frozen=True)
class UnsureByLoops(Occupant):
    reads = SPO.credit.reads

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        keep = [x > 0 for x in batch.note_unsure_N.tolist()]
        return torch.tensor(keep), torch.ones_like(batch.weight_N)


def unsure_of_all(batch: Batch) -> Batch:
    return batch.with_columns(note_unsure_N=torch.ones_like(batch.note_unsure_N))


GRAPH: list[Equivalence] = [
    Equivalence(
        "spo_segment_by_loops",
        SPO,
        SPO.but(name="gains by loops", credit=GainByLoops(), select=(UnsureByLoops(),)),
        "SPO (arXiv:2505.23564): gains are whitened over the tokens the policy was unsure of; these alone count.",
    ),
    Equivalence(
        "spo_segment_unsure_of_all",
        SPO.but(name="spo_segment, no KL", penalties=()),
        GRPO_PLAIN.but(
            name="whitened gains of all tokens",
            credit=GainByLoops(everything=True),
            objective=ClippedSurrogate(mean="token"),
        ),
        "Where the policy was sure of nothing, no token is masked.",
        batch=unsure_of_all,
    ),
    Equivalence(
        "t_ppo_of_finished_answers_is_ppo",
        T_PPO.but(name="t_ppo, one λ", credit=WindowGae(lam=0.95, lam_value=0.95)),
        PPO,
        "T-PPO (arXiv:2506.15050): with windows as long as answers nothing is open, and it is PPO.",
        episodes=nothing_open,
        roles=("policy", "critic"),
    ),
    Equivalence(
        "t_ppo_by_loops",
        T_PPO,
        T_PPO.but(
            name="windows by loops",
            credit=WindowByLoops(),
            select=(),
            objective={**T_PPO.objectives, "policy": WindowSurrogate()},
        ),
        "Open answers go on from their last value; only tokens of this window are learned and whitened over.",
        batch=older_windows,
        roles=("policy", "critic"),
    ),
    Equivalence(
        "s_grpo_of_one_right_answer",
        S_GRPO,
        GRPO_PLAIN.but(name="grpo, centred", credit=Centred()),
        "S-GRPO (arXiv:2505.07686): where one answer of a group is right, it is the first, and nothing decays.",
        episodes=one_right,
    ),
    Equivalence(
        "s_grpo_by_loops",
        S_GRPO,
        GRPO_PLAIN.but(
            name="halved by earlier right exits, by loops", credit=SerialByLoops(), objective=ClippedByLoops()
        ),
        "The n-th right answer by its exit is worth 2 to the power of 1 - n, centred, not divided.",
        episodes=only_the_task,
    ),
    Equivalence(
        "oprl_at_the_old_policy_is_rloo",
        OPRL,
        REINFORCE.but(
            name="n/(n-1) · centred, clipped",
            credit=Centred(bessel=True),
            objective=ClippedSurrogate(mean="token"),
        ),
        "OPRL (arXiv:2509.19199): where the second model is the old policy, no step is paid.",
        batch=second_is_old,
    ),
    Equivalence(
        "oprl_learns_from_all_pairs",
        OPRL,
        OPRL.but(name="oprl, pairs by loops", objective={**OPRL.objectives, "prm": PairsByLoops()}),
        "The second model's objective is DPO on all pairs of a group, against the policy that wrote them.",
        roles=("prm",),
    ),
]
