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

import numpy as np
import torch

from gruppo.data import Batch
from gruppo.envs.kuhn import CARDS, SEATS, Kuhn, allowed
from gruppo.envs.kuhn_exact import ALL, exploitability
from gruppo.policies import packed
from gruppo.stages import Context, Memory, StepRecord
from gruppo.stages.update import Passes

PAST = "kuhn"  # in memory: of every situation [Σ ρ, Σ ρ σ]
Strategy = dict[str, float]


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


def strategy_of(policy: Any, tokenizer: Any) -> Strategy:
    """The probability of the bold action in every situation, of the two that are allowed."""
    dialogues = [dialogue(tokenizer, s) for s in ALL]
    ends = np.cumsum([len(ids) for ids in dialogues]) - 1
    with torch.no_grad():
        hidden_MD, _ = policy(packed(dialogues, policy.device))
        logits_SV = policy.head(hidden_MD[torch.from_numpy(ends).to(hidden_MD.device)]).double()
    out: Strategy = {}
    for s, logits_V in zip(ALL, logits_SV, strict=True):
        words = [int(tokenizer.encode(word)[0]) for word in allowed(s.split()[1:])]
        out[s] = float(torch.softmax(logits_V[words], 0)[1])
    return out


def dialogue(tokenizer: Any, situation: str) -> Any:
    """The ids that the policy goes on from in a situation, as the world and `stages/converse.py` write them."""
    card, *said = situation.split()
    seat = len(said) % 2
    cards = [CARDS[CARDS.index(card) - 1]] * 2  # the other one holds any other card
    cards[seat] = card
    ids: Any = np.zeros(0, np.int64)
    world = Kuhn()
    for turn in range(len(said) + 1):
        state = (CARDS.index(cards[0]), CARDS.index(cards[1]), tuple(said[:turn]))
        if world.seat(state) != SEATS[seat]:
            continue
        seen = {"role": "user", "content": world.view(state)}
        if not len(ids):
            ids = tokenizer.chat([{"role": "user", "content": world.asked({})}, seen])
        else:
            ids = np.concatenate([ids, tokenizer.follow([seen], int(ids[-1]))])
        if turn < len(said):
            ids = np.concatenate([ids, tokenizer.encode(said[turn]), [tokenizer.eos]])
    return ids
