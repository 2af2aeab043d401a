"""Evidence for unlikeliness: laws, mistakes, equivalences, resume, and numbers worked by hand."""

from collections.abc import Sequence

import evidence
import numpy as np
import pytest
from hand import answer, close
from small_batches import adv, worth

from gruppo.data import Episode, Status
from gruppo.methods import method
from gruppo.methods.unlikeliness import Unlikeliness, likelihood, ranks
from gruppo.stages import Context

test_laws = evidence.laws("unlikeliness")
test_asks = evidence.asks("unlikeliness")
test_planted_mistakes = evidence.planted("unlikeliness")
test_equivalences = evidence.equivalences("unlikeliness")
test_resume = evidence.resume("unlikeliness")


def likely(logps: Sequence[float], rewards: Sequence[float]) -> list[Episode]:
    made = [answer(i, "g", 2, r) for i, r in enumerate(rewards)]
    for e, x in zip(made, logps, strict=True):
        e.sequences[0].logp[-2:] = np.array([x - 0.1, x + 0.1], np.float32)
    return made


def test_unlikeliness_card() -> None:
    """Card: ranks 3, 0, 1, 2 of R = (1, 1, 0, 0): R̃ = (0.8125, 1, 0, 0), A = (0.680, 1.034, −0.857, −0.857)."""
    group = likely([-0.5, -2.0, -1.5, -1.0], [1, 1, 0, 0])
    assert worth(Unlikeliness(), group) == [0.8125, 1, 0, 0]
    assert [round(x, 3) for x in adv(method("unlikeliness").credit, group)] == [0.680, 1.034, -0.857, -0.857]


def test_unlikeliness_edges() -> None:
    close([likelihood(e) for e in likely([-0.5, -2.0], [1, 1])], [-0.5, -2.0], 1e-6)
    right = likely([-1.0, -2.0, -3.0], [1, 1, 1])
    assert worth(Unlikeliness(rank_coef=0.3), right) == pytest.approx([0.8, 0.9, 1.0])
    falls = adv(method("unlikeliness").credit, right)
    assert falls[0] < falls[1] < falls[2], "all right: the rarest has the highest advantage"
    assert worth(Unlikeliness(), likely([-1.0, -2.0], [-1.0, 1.0])) == [-1.0, 1.0], "a wrong answer loses nothing"
    assert worth(Unlikeliness(), likely([-1.0], [1.0])) == [1.0]
    failed = likely([-1.0, -2.0, -0.1], [1, 1, 1])
    failed[1].status, failed[1].reward = Status.TIMEOUT, {}
    assert worth(Unlikeliness(), failed)[::2] == [1.0, 0.875], "ranks and G after failures"


def test_unlikeliness_of_equal_answers_is_equal() -> None:
    """One answer drawn twice holds two places and has the mean of them, also when a sampler's rows differ a little."""
    group = likely([-1.0, -1.0 + 1e-7, -2.0, -0.5], [1, 1, 1, 1])
    assert worth(Unlikeliness(), group) == pytest.approx([1 - 0.25 * 1.5 / 4] * 2 + [1.0, 1 - 0.25 * 3 / 4])
    assert worth(Unlikeliness(), likely([-1.0] * 3, [1, 1, 1])) == pytest.approx([1 - 0.25 / 3] * 3)


def test_unlikeliness_ranks_are_of_a_group() -> None:
    """Two answers that are as likely, in different groups: the one is the likelier of two, the other the rarer."""
    group, likely = np.array([0, 0, 1, 1]), np.array([-2.0, -1.0, -1.0, -0.5])
    assert ranks(group, likely).tolist() == [0, 1, 0, 1]
    assert ranks(np.zeros(3, np.int64), np.array([-1.0, -2.0, -1.0])).tolist() == [1.5, 0, 1.5]


def test_unlikeliness_of_nobody() -> None:
    assert len(Unlikeliness()(Context(), [])["unlikely"]) == 0
