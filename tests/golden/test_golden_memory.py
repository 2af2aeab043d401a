"""Worked numbers of methods that look back: SSB's odds, PIPO's improvement and attribution."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gruppo.data import Note, Source, Status, Use, pack, single_turn
from gruppo.methods.pipo import LookBack, attributed, improvement
from gruppo.methods.ssb import Selective
from gruppo.stages import Context, Memory, StepRecord


def answer(uid, adv=(1.0, 1.0), reward=1.0, group="g", step=0, **changes):
    prompt, ids = np.array([5, 6]), np.arange(7, 7 + len(adv))
    logp, version = np.full(len(ids), -0.5, np.float32), np.zeros(len(ids), np.int32)
    e = single_turn(uid, "t", group, prompt, ids, logp, version, reward={"task": reward})
    notes = {"adv": Note(np.array(adv, np.float32), "N", step)}
    return replace(e, step=step, notes=notes, **changes)


# ---- ssb


def test_odds_go_with_the_size_of_the_advantage():
    """|A| = (2, 1): two thirds to one third."""
    store = [answer(1, (2.0, -2.0)), answer(2, (1.0, 1.0))]
    ctx = Context(prompts=1, samples=1)
    first = [Selective(share=0.5).get(replace(ctx, step=s), store)[0].uid for s in range(3000)]
    assert np.mean(np.array(first) == 1) == pytest.approx(2 / 3, abs=0.03)
    sharp = [Selective(share=0.5, power=3.0).get(replace(ctx, step=s), store)[0].uid for s in range(3000)]
    assert np.mean(np.array(sharp) == 1) == pytest.approx(8 / 9, abs=0.03)


def test_a_share_of_the_batch_without_repeats():
    store = [answer(i) for i in range(40)]
    ctx = Context(prompts=4, samples=6)
    for share, count in ((0.0, 0), (0.25, 8), (0.5, 24), (0.8, 40)):  # of 24 new ones; the store has 40
        got = [e.uid for e in Selective(share=share).get(ctx, store)]
        assert len(got) == len(set(got)) == count
    assert Selective().get(ctx, []) == []
    with pytest.raises(ValueError, match=r"share=1\.0 .*< 1"):
        Selective(share=1.0)


def test_only_what_says_something_is_kept():
    bad = [
        answer(2, (0.0, 0.0)),
        answer(3, status=Status.ENV_ERROR),
        answer(4, use=Use.BASELINE),
        answer(5, use=Use.APART),
        answer(6, source=Source.EXPERT),
    ]
    kept = Selective(capacity=3, max_age=2).put(Context(step=3), [], [answer(1), *bad, answer(7, (0.0, -0.1))])
    assert [e.uid for e in kept] == [1, 7]
    old = [answer(10, step=1), answer(11, step=2), answer(12, step=2)]
    assert [e.uid for e in Selective(max_age=2).put(Context(step=3), old, [answer(1)])] == [11, 12, 1]
    assert [e.uid for e in Selective(capacity=2, max_age=2).put(Context(step=3), old, [answer(1)])] == [12, 1]


# ---- pipo


@pytest.mark.parametrize(("mean", "factor"), [(0.50, 3.0), (0.45, 1.5), (0.42, 0.0), (0.38, -0.2), (0.30, -0.3)])
def test_improvement_over_the_window(mean, factor):
    """Past means .40, .44, .42: mean .42, deviation .02. 0.50 is +4, bounded by 3; 0.38 is -2, of which a tenth."""
    assert improvement(mean, [0.40, 0.44, 0.42], undo=0.1, limit=3.0) == pytest.approx(factor, abs=1e-5)


def test_a_window_without_spread_is_bounded():
    assert improvement(0.5, [0.4, 0.4], undo=0.1, limit=3.0) == 3.0
    assert improvement(0.4, [0.4, 0.4], undo=0.1, limit=3.0) == 0.0
    assert improvement(0.3, [0.4, 0.4], undo=0.0, limit=3.0) == 0.0


def test_every_group_has_the_size_of_its_number():
    """A = (1.5, -.5, -.5, -.5): Σ|A| = 3, G = 4, so a = (2, -2/3, -2/3, -2/3). A group of zeros stays zero."""
    first = [answer(i, (a, a), group="g") for i, a in enumerate((1.5, -0.5, -0.5, -0.5))]
    second = [answer(10 + i, (0.0, 0.0), group="h") for i in range(2)]
    failed = answer(20, (9.0, 9.0), group="g", status=Status.TIMEOUT)
    batch = pack([*first, *second, failed])
    batch = attributed(batch.with_columns(adv_N=batch.note_adv_N), factor=-0.5)
    adv_E = batch.gather(batch.adv_N, "N", "E", "mean")
    torch.testing.assert_close(adv_E[:6], torch.tensor([-1.0, 1 / 3, 1 / 3, 1 / 3, 0.0, 0.0]))


def test_means_of_the_last_steps_are_remembered():
    update, memory = LookBack(window=2), Memory()
    for step, rewards in enumerate(((1.0, 0.0), (1.0, 1.0), (0.0, 0.0, 1.0, 0.0))):
        batch = pack([answer(i, reward=r) for i, r in enumerate(rewards)])
        with memory.writing():
            update.observe(StepRecord(step, (), batch, {}), memory)
            update.observe(StepRecord(step, (), None, {}), memory)
    assert memory["batch_means"] == pytest.approx([1.0, 0.25])
    failed = pack([answer(i, status=Status.TIMEOUT) for i in range(2)])
    with memory.writing():
        update.observe(StepRecord(3, (), failed, {}), memory)  # nothing was judged: that is no mean
    assert memory["batch_means"] == pytest.approx([1.0, 0.25])
    with pytest.raises(ValueError, match=r"window=1 .*>= 2"):
        LookBack(window=1)
