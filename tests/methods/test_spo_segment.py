"""Evidence for spo_segment: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math
import warnings

import evidence
import numpy as np
import pytest
from drawing import rolled
from hand import answer, batch_of, mean, objective
from scripted import TASKS, cutting
from six_answers import clip_term, close

from gruppo.data import Episode, Note, Status, Use
from gruppo.methods import method
from gruppo.methods.spo_segment import SPO_SEGMENT, Segments, gains
from gruppo.stages import Context

test_laws = evidence.laws("spo_segment")
test_asks = evidence.asks("spo_segment")
test_planted_mistakes = evidence.planted("spo_segment")
test_equivalences = evidence.equivalences("spo_segment")
test_resume = evidence.resume("spo_segment")


def segmented(
    uid: int, gain: list[float], unsure: list[int], reward: float | None = 1.0, group: str = "g", **fields: object
) -> Episode:
    notes = {"gain": Note(np.array(gain, np.float32), "N"), "unsure": Note(np.array(unsure, np.float32), "N")}
    e = answer(uid, group, len(gain), reward, notes={} if reward is None else notes, **fields)
    e.status = Status.ENV_ERROR if reward is None else e.status
    return e


def test_spo_cuts_before_every_fifth_unsure_token() -> None:
    """Probabilities by hand: unsure are those below .9. The second and the fourth unsure token begin a segment."""
    path = answer(0, "g", 8, 1.0)
    path.sequences[0].logp[2:] = np.log([0.5, 0.95, 0.6, 0.89, 0.91, 0.9, 0.3, 0.2])
    assert Segments(interval=2).cuts(path) == [2, 4, 8]
    assert Segments(interval=3).cuts(path) == [2, 5]
    assert Segments(interval=5).cuts(path) == [2, 9] and Segments(interval=6).cuts(path) == [2]
    assert Segments(interval=1).cuts(path) == [2, 4, 5, 8, 9]  # none before the first token: there the prompt ends
    assert Segments(sure=0.4, interval=1).cuts(path) == [2, 8, 9]


def test_spo_gains_telescope() -> None:
    """V(s_0) = 1/3, V at 4 = 1, at 7 = 1/2, R = 0: the segments gain 2/3, −1/2 and −1/2, in all R − V(s_0)."""
    path = answer(0, "g", 7, 0.0)
    found = gains(path, {2: [1.0, 0.0, 0.0], 4: [1.0, 1.0, 1.0], 7: [1.0, 0.0]})
    assert np.isnan(found[:2]).all()
    assert found[2:].tolist() == pytest.approx([2 / 3] * 2 + [-0.5] * 5)
    assert found[2] + found[4] + found[7] == pytest.approx(0.0 - 1 / 3)
    alone = gains(path, {2: [1.0, 1.0, 0.0]})  # one segment: the answer against the mean of others
    assert alone[2:].tolist() == pytest.approx([-2 / 3] * 7)


def test_spo_values_that_are_not_known() -> None:
    """A continuation that was not judged is in no mean; a cut without a judged one is no cut, and what is left still
    adds up; without a value of the prompt the first segment has no gain; a failed answer has none at its end."""
    path, nan = answer(0, "g", 6, 1.0), math.nan
    assert gains(path, {2: [0.0, nan], 5: [1.0, nan, 0.0]})[2:].tolist() == [0.5] * 6
    assert gains(path, {2: [0.0], 4: [nan, nan], 6: [0.25]})[2:].tolist() == [0.25] * 4 + [0.75] * 2
    unknown = gains(path, {2: [nan], 5: [0.25]})
    assert np.isnan(unknown[2:5]).all() and unknown[5:].tolist() == [0.75] * 3
    path.status = Status.TIMEOUT
    failed = gains(path, {2: [0.0], 5: [1.0]})
    assert failed[2:5].tolist() == [1.0] * 3 and np.isnan(failed[5:]).all()


def test_spo_whitens_over_what_it_learns() -> None:
    """Unsure tokens of judged answers alone: gains ¼, −¼, 1, 0; mean ¼, variance 7/24. Others are 0, not learned."""
    batch = batch_of(
        [
            segmented(0, [0.25, 0.25, -0.25], [1, 0, 1]),
            segmented(1, [1.0, 0.0], [1, 1], 0.0),
            segmented(2, [9.0], [1], None),
        ],
        logp_old_N=[-1.0] * 6,
        logp_ref_N=[-1.0] * 6,
    )
    m, scale = method("spo_segment"), math.sqrt(0.875 / 3 + 1e-8)
    adv = m.credit(Context(), batch)["adv_N"].tolist()
    want = [0.0, 0.0, -0.5 / scale, 0.75 / scale, -0.25 / scale, 0.0]
    close(adv, want)
    value, slope = objective(m, batch, logp_N=[-0.9, -0.5, -1.4, -1.3, -1.0, -0.1])
    parts = [
        clip_term(lp, -1.0, a, 0.2, 0.2) for lp, a in zip([-0.9, -1.4, -1.3, -1.0], [0.0, *want[2:5]], strict=True)
    ]
    kl_slope = 1e-4 * (math.exp(-1.0 + 0.5) - 1) / 5  # a token that is not kept has the KL's slope alone
    close([slope["logp_N"][1], slope["logp_N"][5]], [kl_slope, 0.0])
    kl = [math.exp(-1.0 - lp) - (-1.0 - lp) - 1 for lp in [-0.9, -0.5, -1.4, -1.3, -1.0]]  # of all tokens, kept or not
    close(value, sum(v for v, _ in parts) / 4 - 1e-4 * mean(kl))


def test_spo_edges() -> None:
    """Where the policy was sure of everything, all tokens count. A gain that is not known is 0. One token: nothing to
    compare with. Equal gains: 0."""
    m = method("spo_segment")

    def credit(*episodes: Episode) -> list[float]:
        return m.credit(Context(), batch_of(episodes))["adv_N"].tolist()

    close(credit(segmented(0, [1.0, 0.0], [0, 0])), [0.5 / math.sqrt(0.5 + 1e-8), -0.5 / math.sqrt(0.5 + 1e-8)])
    keep_N, _ = m.select[0].tokens(Context(), batch_of([segmented(0, [1.0, 0.0], [0, 0])]), None)  # type: ignore[attr-defined]
    assert keep_N.tolist() == [True, True]
    assert credit(segmented(0, [math.nan, 1.0, 1.0], [1, 1, 1])) == [0.0, 0.0, 0.0]
    assert credit(segmented(0, [1.0, 0.0], [1, 0])) == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"interval=0 is out of range: use a whole number >= 1"):
        Segments(interval=0)


def test_spo_tries_every_state_with_luck_of_its_own() -> None:
    """Five unsure tokens, cuts at the prompt and before the second and the fourth: three states a task, as both answers
    are the same. What is tried is no answer of the group, and no longer than one may be."""
    m = SPO_SEGMENT.but(rollout=Segments(interval=2, probes=3))
    ctx = cutting(m, "abcd", 7)
    episodes = rolled(m, ctx, TASKS, 2)
    paths, probes = episodes[:6], episodes[6:]
    assert [e.use for e in episodes] == [Use.LEARN] * 6 + [Use.NONE] * 27
    assert len({e.uid for e in episodes}) == 33
    start = paths[0].sequences[0].prompt_len
    assert [len(r.prefix) - start for r in ctx.engine.heard[6:15]] == [0, 0, 0, 1, 1, 1, 3, 3, 3]
    assert {len(r.prefix) - start + r.max_tokens for r in ctx.engine.heard} == {7}
    assert all(e.sequences[0].ids.tolist() == paths[0].sequences[0].ids.tolist() for e in probes if e.task == "t0")
    for path in paths:
        for name, values in (("gain", [0.0] * 5), ("unsure", [1.0] * 5)):  # right always: no piece changes the odds
            note = path.notes[name]
            assert (note.values.tolist(), note.level, note.values.dtype) == (values, "N", np.float32)


def test_spo_a_value_that_nobody_knows_is_quiet() -> None:
    path = answer(0, "g", 4, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gains(path, {2: [math.nan], 4: [0.25]})
    assert np.isnan(found[:4]).all() and found[4:].tolist() == [0.75] * 2 and found.dtype == np.float32


def test_spo_settings_at_their_bounds() -> None:
    """sure = 1: every token that was sampled with a probability below 1."""
    path = answer(0, "g", 3, 1.0)
    path.sequences[0].logp[2:] = [-1e-3, 0.0, -2.0]
    assert Segments(sure=1.0, interval=1, probes=1).unsure(path)[2:].tolist() == [True, False, True]
    for wrong in ({"sure": 0.0}, {"sure": 1.5}, {"interval": 0}, {"probes": 0}):
        [(name, value)] = wrong.items()
        with pytest.raises(ValueError, match=f"{name}={value} is out of range"):
            Segments(**wrong)
