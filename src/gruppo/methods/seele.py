"""SEELE, capability-adaptive hints (Li et al. 2025, arXiv:2509.06923, "Staying in the sweet spot").

    round j = 1 … m:  n answers to (q, y_{1:l}),  l = round(p_j |y|) steps of the solution y
    p_{j+1} = f⁻¹(1/2),   f(p) = b + (1 − b)/(1 + e^{−k (p + μ)}) through the rounds' (p, share of right answers)
    J = 1/(mn) Σ_i [ 1/C Σ_t min(r A, clip(r) A) + γ log π(y_{1:l_i} | q) ] − β k3,      A_i = R_i − mean R

An answer teaches most where half of the answers are right, so each round gives as much of the solution as should make
it so. Differs from Dr.GRPO: a group is drawn in rounds, each with its own hint; a small term makes the hint itself
likely; β = 0.001. All rounds are one group; log-probabilities are under the round's own prompt; tokens of a hint are
learned by their term alone. A problem begins with all steps but the last, later with the help of its last round, which
is kept. With fewer than three amounts of help the next one halves what lies between; where help is never needed it is
0. Written from the paper (sections 3 to 5), which prints π(y) for γ's term where the log-likelihood must be meant, and
fits by LMFIT; here a grid and Gauss-Newton (`pieces.response`). γ = 0.001, m = 4; n is samples/m.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import torch

from gruppo.data import Batch, Episode, Source
from gruppo.methods.dr_grpo import DR_GRPO
from gruppo.pieces.response import next_rate
from gruppo.stages import Context, Memory, Need, Noted, Occupant, Prompt, Stats, StepRecord, Term
from gruppo.stages.objective import NOW
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.prompting import Hint
from gruppo.stages.rollout import anew, asks_of


@dataclass(frozen=True)
class HintRounds(Occupant):
    """The samples of a prompt in `rounds`, each with the hint that should bring the share of right ones to `target`."""

    rounds: int = 4
    target: float = 0.5
    gives = ("note_hint_rate_E",)
    notes = {"hint_rate": Noted("E")}
    beside = {"prompting": ("hint", "hint_in_message")}
    witness = {"rounds": 1, "target": 0.9}

    def __post_init__(self) -> None:
        if self.rounds < 1 or not 0 < self.target < 1:
            raise ValueError(
                f"rounds={self.rounds}, target={self.target}: nothing would be drawn, or no hint would do. Use rounds "
                ">= 1 and a target between 0 and 1."
            )

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
                    anew(a, f"round {i}", count[a.group], {"hint": given[a.group]}, {"hint_rate": given[a.group]})
                    for a in asks
                    if count[a.group]
                ]
            )
            for g, points in seen.items():
                mine = [e.reward["task"] for e in drawn if e.group == g and e.status.judged]
                points += [(given[g], sum(mine) / len(mine))] if mine else []
                rate[g] = next_rate(points, self.target, most[g]) if points else rate[g]
            out += drawn
        return out

    def observe(self, record: StepRecord, memory: Memory) -> None:
        told = [e for e in record.drawn or record.episodes if "hint_rate" in e.notes]  # in the order of the rounds
        last = {e.task: float(e.notes["hint_rate"].values[0]) for e in told}
        memory["hint_rate"] = {**memory.get("hint_rate", {}), **last}


@dataclass(frozen=True)
class HintLikelihood(Occupant):
    """hint_coef · log π(hint), summed over the hint's tokens, the mean over answers, those without a hint included.

    Hints of the policy's own answers; an expert's are not its concern.
    """

    hint_coef: float = 0.001
    handles = frozenset({"hint"})
    witness = {"hint_coef": 0.5}

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        mine_E = batch.learn_E & (batch.source_E == Source.POLICY)
        hint_N = (batch.source_N == Source.HINT) & batch.spread(mine_E, "E", "N")
        value_N = torch.where(hint_N, stats.logp_N, torch.zeros_like(stats.logp_N))
        return [Term("hint", value_N, hint_N | batch.policy_N, "episode_sum", coef=self.hint_coef)]


SEELE = DR_GRPO.but(
    name="seele",
    paper="arXiv:2509.06923",
    prompting=Hint(),
    rollout=HintRounds(rounds=4, target=0.5),
    penalties=(HintLikelihood(hint_coef=0.001), ReferenceKL(kl_coef=0.001)),
    together=("prompting", "rollout", "penalties"),
)
