"""SEELE, capability-adaptive hints (Li et al. 2025, arXiv:2509.06923, "Staying in the sweet spot").

    round j = 1 … m:  n answers to (q, y_{1:l}),  l = round(p_j |y|) steps of the solution y
    p_{j+1} = f⁻¹(1/2),   f(p) = b + (1 − b)/(1 + e^{−k (p + μ)}) through the rounds' (p, share of right answers)
    J = 1/(mn) Σ_i [ 1/C Σ_t min(r A, clip(r) A) + γ log π(y_{1:l_i} | q) ] − β k3,      A_i = R_i − mean R

Differs from Dr.GRPO: a group is sampled in rounds, each with the part of the solution that should make half of its
answers right, where an answer teaches most; a small term makes the hint itself likely; β = 0.001. All rounds form one
group of `samples` answers. Log-probabilities are taken under the round's own prompt, and hint tokens are learned by
their own term alone. A task starts with all steps but the last as its hint, later with the hint rate of its last round,
which is remembered. With fewer than three distinct rates the next one is found by bisection. A task that never needs a
hint gets none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Source
from gruppo.methods.dr_grpo import DR_GRPO
from gruppo.pieces.response import next_rate
from gruppo.stages import Context, Memory, Need, Occupant, Prompt, Stats, StepRecord, Term, Values, note, setting
from gruppo.stages.objective import NOW
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.prompting import Hint
from gruppo.stages.requires import InRoom
from gruppo.stages.reward import task_reward
from gruppo.stages.rollout import again, asks_of


@dataclass(frozen=True)
class HintRounds(Occupant):
    """Sample each prompt in `rounds`, each with the hint that should bring the share of right answers to `target`."""

    rounds: int = setting(4, low=1, witness=1)
    target: float = setting(0.5, above=0, below=1, witness=0.9)
    writes = ("note_hint_rate_E",)
    reads = (note("hint_rate"),)
    requires = (InRoom("prompting", ("hint", "hint_in_message")),)

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        asks, before = asks_of(prompts), ctx.memory.get("hint_rate", {})
        steps = {a.group: len(a.task.hints) + 1 for a in asks}
        most = {g: (n - 1) / n for g, n in steps.items()}  # the last step is never given
        rate = {a.group: min(before.get(a.task.uid, 1.0), most[a.group]) for a in asks}
        seen: dict[str, list[tuple[float, float]]] = {g: [] for g in steps}
        out: list[Episode] = []
        for i in range(self.rounds):
            given = {g: min(floor(p * steps[g] + 0.5) / steps[g], most[g]) for g, p in rate.items()}  # whole steps
            count = {a.group: a.samples * (i + 1) // self.rounds - a.samples * i // self.rounds for a in asks}
            drawn = await ctx.draw(
                [
                    again(a, f"round {i}", count[a.group], {"hint": given[a.group]}, {"hint_rate": given[a.group]})
                    for a in asks
                    if count[a.group]
                ]
            )
            for g, points in seen.items():
                mine = [task_reward(e) for e in drawn if e.group == g and e.status.judged]
                points += [(given[g], sum(mine) / len(mine))] if mine else []
                rate[g] = next_rate(points, self.target, most[g]) if points else rate[g]
            out += drawn
        return out

    def observe(self, record: StepRecord, memory: Memory) -> None:
        drawn = [e for e in record.drawn or record.episodes if "hint_rate" in e.notes]  # in the order of the rounds
        last = {e.task: float(e.notes["hint_rate"].values[0]) for e in drawn}
        memory["hint_rate"] = {**memory.get("hint_rate", {}), **last}


@dataclass(frozen=True)
class HintLikelihood(Occupant):
    """hint_coef · log π(hint), summed over the hint's tokens and averaged over all answers, with or without a hint.

    Covers hints of the policy's own answers, not those of an expert.
    """

    hint_coef: float = setting(0.001, low=0, witness=0.5)
    mean: Any = setting("episode_sum", above=0, added=True)
    reads = ("hint",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("hint", hint_N(batch) | batch.learn_N, self.mean, coef=self.hint_coef)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {"hint": batch.weight_N * torch.where(hint_N(batch), stats.logp_N, torch.zeros_like(stats.logp_N))}


def hint_N(batch: Batch) -> Tensor:
    """Tokens of hints in the policy's own answers that selection kept."""
    mine_E = batch.learn_E & (batch.source_E == Source.POLICY)
    return (batch.source_N == Source.HINT) & batch.spread(mine_E, "E", "N") & batch.keep_N


SEELE = DR_GRPO.but(
    name="seele",
    paper="arXiv:2509.06923",
    checked=(
        "Written from sections 3 to 5 of the paper. It prints π(y) for the term with γ, where the log-likelihood "
        "must be meant, and fits the curve with LMFIT; here by a grid and Gauss-Newton (pieces.response). γ = "
        "0.001 and m = 4; n is samples / m."
    ),
    confidence="paper",
    prompting=Hint(),
    rollout=HintRounds(rounds=4, target=0.5),
    objective=(*DR_GRPO.objective, HintLikelihood(hint_coef=0.001)),
    penalties=ReferenceKL(kl_coef=0.001),
    together=("prompting", "rollout", "objective"),
    version=2,  # 1 had the likelihood of hints in penalties
    breaks={"equal_rewards": "Hints are imitated, whatever the rewards of the answers are."},
)
