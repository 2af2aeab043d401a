"""Equivalences of the methods whose answers have pieces: steps that are paid, early exits, windows, segments."""

from dataclasses import dataclass, replace

import torch
from sides import GRPO_PLAIN, OLD, REINFORCE, Centred, ClippedByLoops, Equivalence, by_episode, members
from torch import Tensor

from gruppo.data import Batch, Episode, Source
from gruppo.methods import method
from gruppo.stages import Context, Need, Occupant, Stats, Term, need
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.occupant import Noted

OPRL, S_GRPO = (method(n) for n in ("oprl", "s_grpo"))


def second_is_old(batch: Batch) -> Batch:
    return batch.with_columns(logp_prm_N=batch.logp_old_N)


@dataclass(frozen=True)
class PairsByLoops(Occupant):
    """Mean of log σ(β (Σ log π_φ/π_old of the better − of the worse)), one pair after the other."""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("logp", "prm", when="step"), OLD)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
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
        value = sum(found, zero) / max(len(found), 1)
        first = torch.arange(batch.size("G")) == 0
        return [Term("preference", value.expand(batch.size("G")), first, 1.0, at="G", additive=False)]


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

    gives = ("adv_N",)
    notes = {"exit": Noted("E")}

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        right = (batch.reward_E > 0).tolist()
        place, adv = batch.note_exit_E.tolist(), dict[int, float]()
        for rows in members(batch).values():
            worth = {i: 0.5 ** sum(right[j] and place[j] < place[i] for j in rows) if right[i] else 0.0 for i in rows}
            adv |= {i: worth[i] - sum(worth.values()) / len(rows) for i in rows}
        return by_episode(batch, adv)


GRAPH: list[Equivalence] = [
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
