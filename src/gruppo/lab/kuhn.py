"""How exploitable a policy is in Kuhn poker, measured in a run: exactly, from the policy's own probabilities.

    σ_t(bold | s) = p(bold) / (p(bold) + p(careful))        the first word, in each of the twelve situations s
    σ̄(s) = Σ_t ρ_t(s) σ_t(s) / Σ_t ρ_t(s)                   over the steps of the last half; ρ_t(s): how likely the
                                                            seat's own actions are to lead there

    gruppo train task=kuhn method=spiral method.update=gruppo.lab.kuhn:KuhnPasses method.update.epochs=2

Self-play by gradients goes round an equilibrium rather than to it, so its average may be good where its last policy is
not. ρ makes σ̄ play as a draw from all these policies, once for each game, would play. Illegal words are left out of σ;
`turns/invalid` has their share.
"""

from dataclasses import dataclass
from typing import Any

from gruppo.data import Batch
from gruppo.envs.kuhn_exact import ALL, exploitability
from gruppo.stages import Context, Memory, StepRecord
from gruppo.stages.update import Passes
from gruppo.train.kuhn import Strategy, strategy_of

PAST = "kuhn"  # in memory: of every situation [Σ ρ, Σ ρ σ]


@dataclass(frozen=True)
class KuhnPasses(Passes):
    """`Passes` that first logs `bold/*`, `exploitability` and, in the last half, `exploitability_average`.

    It learns the same. What is logged is the policy as it is before the update.
    """

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        strategy = strategy_of(learner.models["policy"], ctx.tokenizer)
        for situation, bold in strategy.items():
            learner.tally.add(metric(situation), bold)
        learner.tally.add("exploitability", exploitability(strategy))
        if in_last_half(ctx.step, ctx.steps):
            past = added(ctx.memory.get(PAST, {}), strategy)
            learner.tally.add("exploitability_average", exploitability(average(past)))
        super().__call__(ctx, learner, batch)

    def observe(self, record: StepRecord, memory: Memory) -> None:
        super().observe(record, memory)
        if record.ctx is not None and in_last_half(record.step, record.ctx.steps) and metric(ALL[0]) in record.facts:
            memory[PAST] = added(memory.get(PAST, {}), {s: record.facts[metric(s)] for s in ALL})


def metric(situation: str) -> str:
    return "bold/" + situation.replace(" ", "_")


def in_last_half(step: int, steps: int) -> bool:
    """Whether this step, counted from 0, is in the last half of so many."""
    return 2 * step >= steps


def added(past: Any, strategy: Strategy) -> dict[str, list[float]]:
    """The sums with one more strategy in them."""
    before = {s: list(past[s]) if past else [0.0, 0.0] for s in ALL}
    return {s: [before[s][0] + reach(strategy, s), before[s][1] + reach(strategy, s) * strategy[s]] for s in ALL}


def reach(strategy: Strategy, situation: str) -> float:
    """How likely the seat's own actions are to lead to a situation: only a check of the first seat comes before one."""
    card, *said = situation.split()
    return 1 - strategy[card] if said == ["check", "bet"] else 1.0


def average(past: dict[str, list[float]]) -> Strategy:
    """σ̄; where no policy came to, a half."""
    return {s: bold / weight if weight > 0 else 0.5 for s, (weight, bold) in past.items()}
