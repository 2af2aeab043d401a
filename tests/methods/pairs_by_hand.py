"""Five answers in three groups, two pairs among them: for methods that compare answers."""

import math

import pytest
from hand import answer, batch_of

from gruppo.data import Batch, Source

LENGTHS = [2, 3, 1, 2, 2]


REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0]  # two pairs: 0 over 1, and 3 over 2; the last answer is alone


GROUPS = ["p", "p", "q", "q", "r"]


LOGP = [-4.0, -6.0, -3.0, -4.0, -4.0, -1.5, -0.7, -0.2, -1.0, -0.3]


REF = [-5.0, -7.0, -3.0, -3.0, -4.0, -1.1, -0.9, -0.6, -0.8, -0.9]


def close(a: object, b: object, accuracy: float = 1e-10) -> None:
    assert a == pytest.approx(b, abs=accuracy, rel=accuracy)


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def hand_batch(author: Source = Source.EXPERT, rows: int = 5, **columns: list[float]) -> Batch:
    made = [
        answer(i, GROUPS[i], LENGTHS[i], REWARDS[i], source=author)
        for i in range(rows)
    ]  # fmt: skip
    tokens = sum(LENGTHS[:rows])
    return batch_of(made, logp_ref_N=REF[:tokens], **{k: v[:tokens] for k, v in columns.items()})
