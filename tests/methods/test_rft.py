"""Evidence for rft: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import evidence
from hand import answer

from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.stages.recorded import Accepted

test_laws = evidence.laws("rft")
test_asks = evidence.asks("rft")
test_terms = evidence.terms("rft")
test_equivalences = evidence.equivalences("rft")
test_resume = evidence.resume("rft")


def test_rft_keeps_right_answers_once() -> None:
    """B19: R ≥ 1, each text once a prompt; what failed or is unknown is not accepted."""
    made = [answer(0, "p", 2, 1.0), answer(1, "p", 2, 1.0), answer(2, "p", 3, 1.0), answer(3, "p", 2, 0.9)]
    made += [answer(4, "q", 2, 1.0), answer(5, "q", 2, None), answer(6, "q", 2, float("nan"))]
    ctx = World(method("rft"), 0).ctx
    assert Accepted().episodes(ctx, made) == ([True, False, True, False, True, False, False], [])
    assert sum(Accepted(most=1).episodes(ctx, made)[0]) == 2
    assert Accepted(threshold=0.5).episodes(ctx, made)[0][3] is False  # the same text as the first
    best = [answer(0, "p", 1, 1.0), answer(1, "p", 2, 3.0), answer(2, "p", 3, 2.0)]
    assert Accepted(most=2).episodes(ctx, best)[0] == [False, True, True]


def test_rft_nothing_accepted() -> None:
    """B19, edge: a prompt without a right answer is skipped."""
    ctx = World(method("rft"), 0).ctx
    assert Accepted().episodes(ctx, [answer(0, "p", 2, 0.0), answer(1, "p", 1, 0.0)]) == ([False, False], [])
