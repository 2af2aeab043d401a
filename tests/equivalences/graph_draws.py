"""Equivalences of methods that draw more than a group; what they make of a batch, by loops.

That without their extra draws they are GRPO bit for bit is in the methods' files of tests/methods.
"""

from dataclasses import dataclass

import torch
from sides import NOW, REINFORCE, Centred, ClippedByLoops, Equivalence, Normalised, whole_terms, whole_value
from torch import Tensor

from gruppo.data import Batch, Source
from gruppo.methods import method
from gruppo.methods.aepo import AT_ONE, HeatedLikelihood
from gruppo.methods.seele import HintLikelihood
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, note
from gruppo.stages.objective import ClippedSurrogate

AEPO, IGRPO, SCAF, SEELE, DR_GRPO = (method(n) for n in ("aepo", "igrpo", "scaf_grpo", "seele", "dr_grpo"))
BY_LOOPS = REINFORCE.but(name="grpo by loops", credit=Normalised(), objective=ClippedByLoops())
HEATED = note("heated", among=(0.0, 1.0))
CONSTANT = ClippedSurrogate(mean="episode_sum/max_tokens")


def is_heated(batch: Batch, n: int) -> bool:
    return float(batch.note_heated_E[batch.episode_N[n]]) == 1 and int(batch.source_N[n]) == Source.POLICY


@dataclass(frozen=True)
class WithoutHeated(Occupant):
    """Keep what is not heated, token by token."""

    reads = (HEATED,)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        keep = [not is_heated(batch, n) for n in range(batch.size("N"))]
        return torch.tensor(keep), torch.ones_like(batch.weight_N)


@dataclass(frozen=True)
class HeatedByLoops(Occupant):
    """coef/B Σ_o 1/|o| Σ_t log π(o_t): a heated sequence after the other; B counts all sequences to learn from."""

    coef: float = 1.0
    reads = (HEATED, "dropped")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (AT_ONE,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return whole_terms(batch, "heated", self.coef)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        answers: dict[int, list[Tensor]] = {}
        logp, zero = stats[AT_ONE.column], 0.0 * stats[AT_ONE.column].sum()
        for n in torch.nonzero(batch.policy_N)[:, 0].tolist():
            value = logp[n] if is_heated(batch, n) else zero
            answers.setdefault(int(batch.seq_K[batch.turn_N[n]]), []).append(value)
        total = sum((sum(v, zero) / len(v) for v in answers.values()), zero) / max(len(answers), 1)
        return whole_value(batch, total, "heated")


@dataclass(frozen=True)
class HintsByLoops(Occupant):
    """coef/B Σ_i Σ_t log π(hint_it), B the episodes to learn from that have a token."""

    coef: float = 0.3
    reads = ("hint",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return whole_terms(batch, "hint", self.coef)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        written = (batch.source_E == Source.POLICY) & batch.learn_E
        learned = written.tolist()
        total, seen = 0.0 * stats.logp_N.sum(), set[int]()
        for n in range(batch.size("N")):
            e, source = int(batch.episode_N[n]), int(batch.source_N[n])
            if learned[e] and source in (Source.HINT, Source.POLICY):
                seen.add(e)
                total = total + (stats.logp_N[n] if source == Source.HINT else 0.0)
        return whole_value(batch, total / max(len(seen), 1), "hint")


GRAPH = [
    Equivalence(
        "igrpo_learns_as_grpo", IGRPO, BY_LOOPS, "Drafts are of use none: what is left is GRPO without KL, by loops."
    ),
    Equivalence(
        "scaf_grpo_learns_as_grpo", SCAF, BY_LOOPS, "Who is in the group is all that differs: hints are not learned."
    ),
    Equivalence(
        "aepo_by_loops",
        AEPO.but(objective=(ClippedSurrogate(), HeatedLikelihood(heated_coef=0.7))),
        BY_LOOPS.but(
            name="grpo and heated by loops", select=WithoutHeated(), objective=(ClippedByLoops(), HeatedByLoops(0.7))
        ),
        "GRPO over the answers that are not heated, and the likelihood of those that are.",
    ),
    Equivalence(
        "aepo_heats_beside",
        AEPO,
        AEPO.but(name="heated likelihood as a penalty", objective=ClippedSurrogate(), penalties=HeatedLikelihood()),
        "What reads tokens that selection dropped is the same in both rooms.",
    ),
    Equivalence(
        "seele_by_loops",
        SEELE.but(objective=(CONSTANT, HintLikelihood(hint_coef=0.3)), penalties=()),
        DR_GRPO.but(
            name="dr_grpo and hints by loops", credit=Centred(), objective=(*DR_GRPO.objective, HintsByLoops(0.3))
        ),
        "Dr.GRPO over the policy's tokens, and the likelihood of the hints.",
    ),
    Equivalence(
        "seele_is_dr_grpo",
        SEELE.but(objective=CONSTANT, penalties=()),
        DR_GRPO,
        "Without hints to learn and without its penalty it learns as Dr.GRPO.",
    ),
]
