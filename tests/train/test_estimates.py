"""Estimates and intervals: laws by enumeration and simulation, then worked numbers."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.train.estimates import (
    maj_at_k,
    mean_interval,
    pass_at_k,
    score_interval,
    share_interval,
    standard_error,
    t_cdf,
    t_quantile,
    win_chances,
)

answers = st.lists(st.integers(0, 3), min_size=1, max_size=7)


def sets_of(n: int, k: int) -> list[list[int]]:
    return [list(c) for c in itertools.combinations(range(n), k)]


# ---- k answers to one prompt


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0, -2.0]), min_size=1, max_size=7), st.data())
def test_pass_at_k_is_the_mean_best_of_all_sets(scores: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    best = [max(scores[i] for i in chosen) for chosen in sets_of(len(scores), k)]
    assert pass_at_k([scores], k)[0] == pytest.approx(np.mean(best))


@pytest.mark.parametrize("k", [1, 4, 10, 16])
def test_pass_at_k_of_right_and_wrong_is_the_formula_of_the_paper(k: int) -> None:
    score_PS = [[1.0] * c + [0.0] * (16 - c) for c in range(17)]
    wanted = [1 - math.comb(16 - c, k) / math.comb(16, k) for c in range(17)]
    assert pass_at_k(score_PS, k) == pytest.approx(wanted)


def test_pass_at_k_is_unbiased_and_the_plain_estimate_is_not() -> None:
    """Over all outcomes of 5 answers with success rate p the mean is 1 - (1-p)^k; that of 1 - (1-c/n)^k is less."""
    n, p, k = 5, 0.3, 3
    outcomes = np.array(list(itertools.product([0.0, 1.0], repeat=n)))
    chance = np.prod(np.where(outcomes == 1, p, 1 - p), axis=1)
    assert chance @ pass_at_k(outcomes, k) == pytest.approx(1 - (1 - p) ** k)
    assert chance @ (1 - (1 - outcomes.mean(1)) ** k) < 1 - (1 - p) ** k - 0.05


@given(answers, st.data())
def test_maj_at_k_is_the_mean_vote_of_all_sets(given_answers: list[int], data: st.DataObject) -> None:
    """Also when equal answers were scored differently: the winner's score is the mean of its voters."""
    n = len(given_answers)
    k = data.draw(st.integers(1, n))
    scores = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=n, max_size=n))
    votes = []
    for chosen in sets_of(n, k):
        count = {a: [scores[i] for i in chosen if given_answers[i] == a] for a in {given_answers[i] for i in chosen}}
        most = max(map(len, count.values()))
        votes.append(np.mean([np.mean(s) for s in count.values() if len(s) == most]))
    assert maj_at_k([scores], [given_answers], k)[0] == pytest.approx(np.mean(votes))


@given(answers, st.data())
def test_somebody_wins_the_vote(given_answers: list[int], data: st.DataObject) -> None:
    sizes = tuple(sorted((given_answers.count(a) for a in set(given_answers)), reverse=True))
    chances = win_chances(sizes, data.draw(st.integers(1, len(given_answers))))
    assert sum(chances) == pytest.approx(1) and list(chances) == sorted(chances, reverse=True)


def test_a_vote_of_one_or_two_is_the_mean() -> None:
    """Two answers agree or tie, and a tie is a coin: maj@1 = maj@2 = avg, whatever the answers."""
    rng = np.random.default_rng(0)
    answer_PS = rng.integers(0, 4, (20, 9))
    score_PS = (answer_PS == 2).astype(float)
    for k in (1, 2):
        assert maj_at_k(score_PS, answer_PS, k) == pytest.approx(score_PS.mean(1))


def test_worked_votes() -> None:
    # 3 of 4 right: any set of 3 has 2 or 3 right ones. 2 of 4 right, wrong ones equal: a tie of 4 is a coin.
    right_PS = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0]]
    assert maj_at_k(right_PS, [[5, 5, 5, 6], [5, 5, 6, 6], [5, 5, 6, 7]], 4).tolist() == [1, 0.5, 1]
    assert maj_at_k(right_PS, [[5, 5, 5, 6], [5, 5, 6, 6], [5, 5, 6, 7]], 3) == pytest.approx([1, 0.5, 2 / 3])


def test_answers_that_were_not_judged_are_left_out() -> None:
    nan = math.nan
    score_PS = [[1, nan, 0, 0], [nan, nan, 1, nan]]
    assert pass_at_k(score_PS, 2)[0] == pytest.approx(2 / 3) and math.isnan(pass_at_k(score_PS, 2)[1])
    assert pass_at_k(score_PS, 1) == pytest.approx([1 / 3, 1])
    assert maj_at_k(score_PS, [[1, 2, 2, 2], [1, 1, 1, 1]], 3)[0] == 0
    assert math.isnan(maj_at_k(score_PS, [[1, 2, 2, 2], [1, 1, 1, 1]], 3)[1])


def test_many_answers_do_not_overflow() -> None:
    assert win_chances((150, 150), 151) == pytest.approx((0.5, 0.5))
    assert sum(win_chances((30,) * 10 + (1,) * 20, 200)) == pytest.approx(1)
    assert pass_at_k(np.eye(1, 1000), 400)[0] == pytest.approx(0.4)


# ---- Student's t


@pytest.mark.parametrize(
    ("df", "quantile"),
    [(1, 12.7062), (2, 4.30265), (4, 2.77645), (9, 2.26216), (30, 2.04227), (120, 1.97993), (10**6, 1.95997)],
)
def test_quantiles_of_the_printed_tables(df: int, quantile: float) -> None:
    assert t_quantile(0.975, df) == pytest.approx(quantile, rel=3e-6)
    assert t_cdf(t_quantile(0.3, df), df) == pytest.approx(0.3) and t_cdf(0.0, df) == 0.5


@pytest.mark.parametrize("t", [-3.0, -0.2, 0.7, 8.0])
def test_closed_forms_for_one_and_two_degrees(t: float) -> None:
    assert t_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi)
    assert t_cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)))


# ---- intervals


def coverage(interval: object, draw: object, truth: float, repeats: int = 1000) -> float:
    found = [interval(draw()) for _ in range(repeats)]  # type: ignore[operator]
    return float(np.mean([i.low <= truth <= i.high for i in found]))


@pytest.mark.parametrize("n", [3, 5, 20])
def test_the_interval_of_a_mean_holds_the_truth_95_times_in_100(n: int) -> None:
    rng = np.random.default_rng(n)
    assert coverage(mean_interval, lambda: rng.normal(2, 3, n), 2.0) == pytest.approx(0.95, abs=0.025)


@pytest.mark.parametrize("samples", [1, 8])
@pytest.mark.parametrize("shape", [(1, 1), (0.3, 0.3), (9, 1), (49, 1)])
def test_the_interval_of_a_share_does_too_with_many_answers_a_prompt(shape: tuple[float, float], samples: int) -> None:
    """Prompts differ: some are easy, some hard. Then answers to one prompt are alike."""
    rng = np.random.default_rng(7)

    def draw() -> np.ndarray:
        return rng.binomial(samples, rng.beta(*shape, 200)) / samples

    assert coverage(share_interval, draw, shape[0] / sum(shape)) == pytest.approx(0.95, abs=0.025)


def test_without_the_prompts_as_units_it_would_not() -> None:
    """The usual mistake: 8 answers to each of 50 prompts taken for 400 independent ones."""
    rng = np.random.default_rng(1)

    def draw() -> np.ndarray:
        right = rng.binomial(8, rng.beta(0.3, 0.3, 50))
        return (np.arange(8) < right[:, None]).astype(float)

    assert coverage(share_interval, draw, 0.5) < 0.75
    assert coverage(lambda x: share_interval(x.mean(1)), draw, 0.5) == pytest.approx(0.95, abs=0.025)


def test_all_right_is_not_certainty() -> None:
    i = share_interval(np.ones(50))
    assert i.mean == i.high == 1 and 0.9 < i.low < 0.95
    assert mean_interval(np.ones(50)).low == 1  # which is why shares do not use it


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_shares_stay_between_0_and_1(values: list[float]) -> None:
    i = share_interval(values)
    assert 0 <= i.low <= i.mean <= i.high <= 1


def test_wilson_by_its_own_equation() -> None:
    """The bounds are the shares π with |p - π| = t √(π(1-π)/m); with one answer a prompt m = n - 1."""
    x = np.array([1.0] * 37 + [0.0] * 13)
    i, t = share_interval(x), t_quantile(0.975, 49)
    for bound in (i.low, i.high):
        assert abs(0.74 - bound) == pytest.approx(t * math.sqrt(bound * (1 - bound) / 49))


def test_scores_beyond_shares_have_a_plain_interval() -> None:
    assert score_interval([0.5, 3.0, 2.0]) == mean_interval([0.5, 3.0, 2.0])
    assert score_interval([0.5, 1.0, 0.0]) == share_interval([0.5, 1.0, 0.0])


def test_one_unit_has_no_interval_and_none_is_refused() -> None:
    for interval in (mean_interval, share_interval):
        one = interval([0.4])
        assert one.mean == 0.4 and math.isnan(one.low) and math.isnan(one.high) and str(one) == "0.400"
    assert math.isnan(standard_error([1.0]))
    assert mean_interval([1.0, math.nan, 3.0]).n == 2
    with pytest.raises(ValueError, match="nothing was measured"):
        mean_interval([math.nan])
