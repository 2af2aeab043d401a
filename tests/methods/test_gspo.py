"""Evidence for gspo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import torch
from hand import answer, batch_of, mean, objective
from six_answers import ADV, LOGP, OLD, B, answers, close, hand_batch

from gruppo.data import Source
from gruppo.methods import method
from gruppo.methods.gspo import SequenceClipped

test_laws = evidence.laws("gspo")
test_asks = evidence.asks("gspo")
test_terms = evidence.terms("gspo")
test_planted_mistakes = evidence.planted("gspo")
test_equivalences = evidence.equivalences("gspo")
test_resume = evidence.resume("gspo")


def test_gspo_card() -> None:
    """Card B09 (verl compute_policy_loss_gspo): log-ratios .2, −.1, .05 → s = e^.05 = 1.0513 for all three tokens, and
    the gradient of a token is s A / T. Without a clip, so that A = ±1/√2 and two answers, J = mean of s A."""
    free = method("gspo").but(objective=SequenceClipped(clip_low=1.0, clip_high=1.0))
    batch = batch_of([answer(0, "g", 3, 1.0), answer(1, "g", 1, 0.0)], logp_old_N=[-1.0, -1.0, -1.0, -2.0])
    value, slope = objective(free, batch, logp_N=[-0.8, -1.1, -0.95, -2.0])
    a, s = 0.5 / (math.sqrt(0.5) + 1e-6), 1.0512710963760241
    close(value, (s * a - a) / 2)
    close(slope["logp_N"], [s * a / 3 / 2] * 3 + [-a / 2])


def test_gspo_clips_a_whole_answer() -> None:
    """s = 1.0513 is above 1 + 4e-4: with A > 0 all three tokens lose their gradient, with A < 0 none does."""
    for reward, clipped in ((1.0, True), (0.0, False)):
        batch = batch_of([answer(0, "g", 3, reward), answer(1, "g", 1, 1 - reward)], logp_old_N=[-1.0] * 3 + [-2.0])
        _, slope = objective(method("gspo"), batch, logp_N=[-0.8, -1.1, -0.95, -2.0])
        assert [x == 0 for x in slope["logp_N"]] == [clipped] * 3 + [False]


def test_gspo() -> None:
    """GSPO (arXiv:2507.18071): 1/B Σ_i min(s A, clip(s, 1 ± .1) A), s = exp(mean l); ds/dlog π_t = s / T."""
    value, slope, seen = 0.0, [], set()
    for (lps, olds), a in zip(answers(LOGP, OLD), ADV, strict=True):
        s = math.exp(mean([lp - old for lp, old in zip(lps, olds, strict=True)]))
        bound = min(max(s, 0.9), 1.1)
        free = s * a <= bound * a
        value += min(s * a, bound * a) / B
        slope += [s * a / len(lps) / B if free else 0.0] * len(lps)
        seen.add((free, a > 0))
    assert {free for free, _ in seen} == {up for _, up in seen} == {True, False}
    gspo = method("gspo").but(objective=SequenceClipped(clip_low=0.1, clip_high=0.1))
    got, slopes = objective(gspo, hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_gspo_counts_the_policys_kept_tokens_only() -> None:
    """A dropped token, and one that somebody else wrote, is in neither the sum nor the length: s = e^.2."""
    batch = batch_of([answer(0, "g", 3, 1.0), answer(1, "g", 1, 0.0)], logp_old_N=[-1.0] * 3 + [-2.0])
    keep_N = torch.tensor([True, False, True, True])
    source_N = batch.source_N.clone()
    source_N[2] = Source.HINT
    batch = batch.with_columns(keep_N=keep_N, source_N=source_N)
    free = method("gspo").but(objective=SequenceClipped(clip_low=1.0, clip_high=1.0))
    _, slope = objective(free, batch, logp_N=[-0.8, -9.0, -9.0, -2.0])
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    close(slope["logp_N"], [math.exp(0.2) * a / 2, 0.0, 0.0, -a / 2])
