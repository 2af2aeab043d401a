"""Evidence for ssb: laws, mistakes, equivalences, resume, and numbers worked by hand."""

from dataclasses import replace

import evidence
import numpy as np
import pytest
from hand import answer
from looking_back import credited

from gruppo.data import Note, Source, Status, Use
from gruppo.methods.ssb import Selective
from gruppo.stages import Context

test_laws = evidence.laws("ssb")
test_asks = evidence.asks("ssb")
test_planted_mistakes = evidence.planted("ssb")
test_resume = evidence.resume("ssb")


def test_odds_go_with_the_size_of_the_advantage():
    """|A| = (2, 1): two thirds to one third."""
    store = [credited(1, (2.0, -2.0)), credited(2, (1.0, 1.0))]
    ctx = Context(prompts=1, samples=1)
    first = [Selective(share=0.5).get(replace(ctx, step=s), store)[0].uid for s in range(3000)]
    assert np.mean(np.array(first) == 1) == pytest.approx(2 / 3, abs=0.03)
    sharp = [Selective(share=0.5, power=3.0).get(replace(ctx, step=s), store)[0].uid for s in range(3000)]
    assert np.mean(np.array(sharp) == 1) == pytest.approx(8 / 9, abs=0.03)


def test_a_share_of_the_batch_without_repeats():
    store = [credited(i) for i in range(40)]
    ctx = Context(prompts=4, samples=6)
    for share, count in ((0.0, 0), (0.25, 8), (0.5, 24), (0.8, 40)):  # of 24 new ones; the store has 40
        got = [e.uid for e in Selective(share=share).get(ctx, store)]
        assert len(got) == len(set(got)) == count
    assert Selective().get(ctx, []) == []
    with pytest.raises(ValueError, match=r"share=1\.0 .*< 1"):
        Selective(share=1.0)


def test_only_what_says_something_is_kept():
    bad = [
        credited(2, (0.0, 0.0)),
        credited(3, status=Status.ENV_ERROR),
        credited(4, use=Use.BASELINE),
        credited(5, use=Use.APART),
        credited(6, source=Source.EXPERT),
    ]
    kept = Selective(capacity=3, max_age=2).put(Context(step=3), [], [credited(1), *bad, credited(7, (0.0, -0.1))])
    assert [e.uid for e in kept] == [1, 7]
    old = [credited(10, step=1), credited(11, step=2), credited(12, step=2)]
    assert [e.uid for e in Selective(max_age=2).put(Context(step=3), old, [credited(1)])] == [11, 12, 1]
    assert [e.uid for e in Selective(capacity=2, max_age=2).put(Context(step=3), old, [credited(1)])] == [12, 1]


def test_ssb_an_answer_that_was_not_credited_is_not_kept() -> None:
    kept = answer(0, "g", 2, 1.0, notes={"adv": Note(np.array([0.5, -0.5], np.float32), "N")}, step=1)
    assert Selective().put(Context(step=1), [], [answer(1, "g", 2, 1.0, step=1), kept]) == [kept]
