"""Learning from pairs: which answers are compared, and what preference objectives share.

A preference objective has `implicit_E(batch, stats)`, the implicit reward of each answer. Training compares these in
pairs, and so does the accuracy on held-out pairs (`train/winrate.py`). The two episodes of a pair may be in different
micro-batches, so the terms are not additive, and the learner evaluates them on the whole optimiser step.
"""

from dataclasses import dataclass

from torch import Tensor

from gruppo.data import Batch
from gruppo.data.pairs import inside, widest
from gruppo.stages.context import Context
from gruppo.stages.occupant import Occupant, setting
from gruppo.stages.recorded import answer_N
from gruppo.stages.requires import PAIRS, Samples
from gruppo.stages.terms import Term, Values


@dataclass(frozen=True)
class PairUp(Occupant):
    """Pairs of answers to one prompt, the better one first, if their rewards differ by more than `min_gap`.

    The `most` widest gaps of a group (0: all pairs), ties broken at random. So a recorded chosen and a rejected answer
    form a pair, and in a sampled group the best answer is compared with the worst.
    """

    most: int = setting(1, low=0, witness=0)
    min_gap: float = setting(0.0, low=0, witness=2.0)
    writes = ("win_P", "lose_P", "margin_P")
    ignores = ("shift",)
    requires = (Samples(2, "A pair takes two answers to one prompt."), PAIRS)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        pairs = inside(batch.level("E", "G"), batch.reward_E, batch.judged_E & batch.learn_E, self.min_gap)
        noise_P = ctx.uniform("pair", batch.uid_E[pairs.win_P], batch.uid_E[pairs.lose_P])
        return widest(pairs, batch.group_E[pairs.win_P], self.most, noise_P).columns()


def summed(batch: Batch, x_N: Tensor) -> Tensor:
    """Σ_t x_t over an answer's tokens; 0 for an answer without tokens."""
    return batch.gather(batch.weight_N * x_N, "N", "E", "sum", where=answer_N(batch))


def averaged(batch: Batch, x_N: Tensor) -> Tensor:
    """1/|y| Σ_t x_t over an answer's tokens; 0 for an answer without tokens."""
    return batch.gather(batch.weight_N * x_N, "N", "E", "mean", where=answer_N(batch))


def answered_E(batch: Batch) -> Tensor:
    """Episodes with a token to learn; pairs with an empty answer are not counted."""
    return batch.gather(answer_N(batch), "N", "E", "any")


def pair_terms(live_P: Tensor, mean: str | float = "token", coef: float = 1.0) -> list[Term]:
    """The preference term and, for the log, the gap between implicit rewards and the share in the right order."""
    return [
        Term("preference", live_P, mean, coef, at="P", additive=False),
        Term("margin", live_P, coef=0.0, at="P", additive=False),
        Term("preferred", live_P, coef=0.0, at="P", additive=False),
    ]


def pair_values(batch: Batch, preference_P: Tensor, implicit_E: Tensor) -> Values:
    """The values of `pair_terms`."""
    gap_P = batch.pairs.gap(implicit_E.detach())
    right_P = (gap_P > 0).to(gap_P.dtype) + 0.5 * (gap_P == 0).to(gap_P.dtype)
    return {"preference": preference_P, "margin": gap_P, "preferred": right_P}
