"""Learning from pairs (design 3.13): who is compared with whom, and the pieces that preference objectives share.

An objective of preferences has `implicit_E(batch, stats)`, the reward of an answer that its policy implies. Training
compares these inside pairs; so does the accuracy on held-out pairs (`train/winrate.py`). Two episodes of a pair may
lie in different micro-batches, so its terms are not additive: the learner gives them the whole optimiser step.
"""

from dataclasses import dataclass

from torch import Tensor

from gruppo.data import Batch
from gruppo.data.pairs import inside, widest
from gruppo.stages.context import Context
from gruppo.stages.occupant import Occupant
from gruppo.stages.recorded import answer_N
from gruppo.stages.terms import Term


@dataclass(frozen=True)
class PairUp(Occupant):
    """Pairs of answers to one prompt, the higher reward first, if it is higher by more than `min_gap`.

    The `most` widest gaps of a group (0: all pairs); among equal ones a keyed draw decides. So a recorded chosen and
    rejected answer are a pair, and of a sampled group the best is put against the worst.
    """

    most: int = 1
    min_gap: float = 0.0
    gives = ("win_P", "lose_P", "margin_P")
    ignores = ("shift",)
    expects = ("pairs",)
    min_samples = 2
    alone = "A pair takes two answers to one prompt."
    witness = {"most": 0, "min_gap": 2.0}

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        pairs = inside(batch.level("E", "G"), batch.reward_E, batch.judged_E & batch.learn_E, self.min_gap)
        luck_P = ctx.uniform("pair", batch.uid_E[pairs.win_P], batch.uid_E[pairs.lose_P])
        return widest(pairs, batch.group_E[pairs.win_P], self.most, luck_P).columns()


def summed(batch: Batch, x_N: Tensor) -> Tensor:
    """Σ_t of an answer's tokens; 0 for an answer without tokens."""
    return batch.gather(batch.weight_N * x_N, "N", "E", "sum", where=answer_N(batch))


def averaged(batch: Batch, x_N: Tensor) -> Tensor:
    """1/|y| Σ_t of an answer's tokens; 0 for an answer without tokens."""
    return batch.gather(batch.weight_N * x_N, "N", "E", "mean", where=answer_N(batch))


def answered_E(batch: Batch) -> Tensor:
    """Episodes with a token to learn: an answer without one is no answer, and its pairs leave the count."""
    return batch.gather(answer_N(batch), "N", "E", "any")


def told(batch: Batch, implicit_E: Tensor, live_P: Tensor) -> list[Term]:
    """For the log: the mean gap of the implicit rewards, and the share of pairs that have it the right way round."""
    gap_P = batch.pairs.gap(implicit_E.detach())
    right_P = (gap_P > 0).to(gap_P.dtype) + 0.5 * (gap_P == 0).to(gap_P.dtype)
    return [
        Term("margin", gap_P, live_P, "token", coef=0.0, at="P", additive=False),
        Term("preferred", right_P, live_P, "token", coef=0.0, at="P", additive=False),
    ]
