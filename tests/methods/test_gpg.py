"""Evidence for gpg: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
from hand import answer, batch_of, close, objective
from six_answers import LOGP
from six_graded import ONE_RIGHT, T, adv, centred, each_token, group, hand_batch

from gruppo.methods import method
from gruppo.methods.gpg import CentredPerUseful

test_laws = evidence.laws("gpg")
test_asks = evidence.asks("gpg")
test_terms = evidence.terms("gpg")
test_planted_mistakes = evidence.planted("gpg")
test_equivalences = evidence.equivalences("gpg")
test_resume = evidence.resume("gpg")


def test_gpg_of_a_useful_and_a_dead_group() -> None:
    """By hand: B = 8, one useful group of 4 → α = 2, R = [1, 0, 0, 0] → [1.5, −.5, −.5, −.5].

    The dead group is all right: verl's M = count_nonzero(R) would be 5, and α = 8/5.
    """
    batch = batch_of([*group(ONE_RIGHT), *group((1.0,) * 4, 1, "dead", 9)])
    close(adv(CentredPerUseful(), batch), [1.5, -0.5, -0.5, -0.5, 0, 0, 0, 0])


def test_gpg_of_dead_groups_only() -> None:
    """M = 0: α = B/1, and A = 0 all the same."""
    batch = batch_of([*group((0.7,) * 3), *group((0.1,) * 3, 1, "h", 9)])
    assert adv(CentredPerUseful(), batch) == [0.0] * 6


def test_gpg() -> None:
    """GPG (arXiv:2504.02546): J = 1/Σ T_i Σ_i Σ_t α (R_i − mean) log π; a dead group of two answers makes α = 8/6."""
    extra, n = [answer(10, "dead", 1, 1.0), answer(11, "dead", 2, 1.0)], T + 3
    a = [8 / 6 * x for x in each_token(centred())]
    batch = hand_batch(*extra, old=[0.0] * 3, ref=[0.0] * 3)
    got, slopes = objective(method("gpg"), batch, logp_N=[*LOGP, -1.0, -1.0, -1.0])
    close(got, math.fsum(x * lp for x, lp in zip(a, LOGP, strict=True)) / n)
    close(slopes["logp_N"], [*(x / n for x in a), 0.0, 0.0, 0.0])
