"""Edges of single pieces: one row alone, ties, features of any scale, and the curve of least squares at its bounds."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hand import column
from six_answers import close

from gruppo.data import Key
from gruppo.pieces import probe
from gruppo.pieces.covariance import token_covariance
from gruppo.pieces.diversity import edit_distance, self_bleu
from gruppo.pieces.response import fitted


def test_a_token_alone_has_no_covariance() -> None:
    """Its advantage and its log-probability are the means."""
    adv_N, logp_N = torch.tensor([2.0, 5.0]).double(), torch.tensor([-3.0, -1.0]).double()
    assert column(token_covariance(adv_N, logp_N, torch.tensor([True, False]))) == [0.0, 0.0]


# edits


def test_edit_distance_by_hand() -> None:
    def letters(word: str) -> Any:
        return np.array([ord(c) for c in word], np.int64)

    # Levenshtein: kitten, sitten, sittin, sitting. flaw, law, lawn. abcd, bcd, bcda: one goes, one comes.
    for a, b, d in [("kitten", "sitting", 3), ("flaw", "lawn", 2), ("abcd", "bcda", 2), ("", "ab", 2), ("ab", "", 2)]:
        assert edit_distance(letters(a), letters(b)) == edit_distance(letters(b), letters(a)) == d
    assert edit_distance(letters("abc"), letters("abc")) == 0

    def by_the_book(a: Any, b: Any) -> int:
        if not len(a) or not len(b):
            return len(a) + len(b)
        return min(by_the_book(a[1:], b) + 1, by_the_book(a, b[1:]) + 1, by_the_book(a[1:], b[1:]) + int(a[0] != b[0]))

    rng = np.random.default_rng(0)
    for _ in range(40):
        a, b = (rng.integers(0, 3, rng.integers(0, 6)) for _ in range(2))
        assert edit_distance(a, b) == by_the_book(a, b)


# self-BLEU


def bleu(groups: list[list[list[int]]], most: int) -> list[float]:
    rows = [(row, g) for g, group in enumerate(groups) for row in group]
    token_N = torch.tensor([t for row, _ in rows for t in row], dtype=torch.int64)
    part_N = torch.tensor([i for i, (row, _) in enumerate(rows) for _ in row], dtype=torch.int64)
    by = Key(torch.tensor([g for _, g in rows], dtype=torch.int64), len(groups))
    return column(self_bleu(token_N, part_N, by, most))


def test_of_two_lengths_that_are_as_close_the_shorter_counts() -> None:
    """Rows of 2, 3 and 4 times one token. The closest to 2 is 3, so BP = e^(1 − 3/2); to 3 it is 2 before 4, to 4 it is
    3, so BP = 1. Of the 4 tokens 3 are matched."""
    close(bleu([[[7] * 2, [7] * 3, [7] * 4]], 1), [(math.exp(-0.5) + 1 + 0.75) / 3])


@pytest.mark.parametrize("groups", [[[[1, 2], [2, 0]]], [[[2, 0], [1, 2]]], [[[2, 0]], [[1, 2], [2, 0]]]])
def test_nothing_follows_the_last_token(groups: list[list[list[int]]]) -> None:
    """(1, 2) and (2, 0) have one token in common and no pair: 2 does not stand before a 0 at the end of (1, 2).

    p_1 = 1/2 and p_2 = 0.1 / 1 for both rows."""
    close(bleu(groups, 2)[-1], math.sqrt(0.5 * 0.1))


@pytest.mark.parametrize("groups", [[], [[[1, 2, 1]]], [[[1, 2, 1]], [[2, 2]]], [[[1, 2], []]]])
def test_a_row_alone_is_like_no_other(groups: list[list[list[int]]]) -> None:
    assert bleu(groups, 3) == [0.0] * len(groups)


# the probe


@pytest.mark.parametrize("rows", [5, 6, 9])
def test_a_probe_does_not_mind_the_scale_of_its_features(rows: int) -> None:
    """Features are standardised, so that other units, and another zero, change no prediction; also with as many rows
    as features. And Zᵀ (y − b − Z w) = ridge w, where the derivative of what is minimised is 0."""
    rng = np.random.default_rng(rows)
    x_XF, y_X = torch.tensor(rng.normal(size=(rows, 6))), torch.tensor(rng.normal(size=rows))
    unit = torch.tensor([0.01, 0.3, 1.0, 5.0, 1e3, 0.9]).double()
    found = probe.fit(x_XF, y_X, 0.5)
    close(
        column(probe.predict(probe.fit(unit * x_XF + 2, y_X, 0.5), unit * x_XF + 2)), column(probe.predict(found, x_XF))
    )
    z_XF = (x_XF - x_XF.mean(0)) / x_XF.std(0, correction=0)
    left_X = y_X - y_X.mean() - z_XF @ found["weight"]
    close(column(z_XF.T @ left_X), column(0.5 * found["weight"]))


# the response curve

LOW, HIGH = np.array([0.5, -2.0, 0.0]), np.array([100.0, 1.0, 0.95])


def curve(p: Any, k: Any, mu: Any, b: Any) -> Any:
    return b + (1 - b) / (1 + np.exp(-k * (p + mu)))


def missed(curves: Any, p: Any, share: Any) -> Any:
    """What is minimised: Σ (f(p) − share)² + (0.1 b)²."""
    k, mu, b = (curves[..., i : i + 1] for i in range(3))
    return ((curve(p, k, mu, b) - share) ** 2).sum(-1) + (0.1 * curves[..., 2]) ** 2


SIX = np.linspace(0.0, 1.0, 6)
SEEN = {
    "slow": (SIX, curve(SIX, 1.0, -1.4, 0.3)),
    "its middle beyond the bound": (SIX, curve(SIX, 2.0, -2.5, 0.0)),
    "its middle long past": (SIX, curve(SIX, 1.0, 1.5, 0.0)),
    "at once": (np.array([0.0, 0.4, 0.41, 1.0]), np.array([0.0, 0.0, 1.0, 1.0])),
    "up and down": (np.array([0.1, 0.25, 0.4, 0.9]), np.array([0.125, 1.0, 0.625, 0.75])),
}


@pytest.mark.parametrize("name", SEEN)
def test_no_curve_inside_the_bounds_fits_better(name: str) -> None:
    """Not one of 4,000 by lot, and none that differs by 2 % or 10 % in the slope, or by 0.02 or 0.1 in the others."""
    p, share = SEEN[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no overflow on the way
        found = np.array(fitted(p, share))
    assert (found >= LOW).all() and (found <= HIGH).all()
    rng = np.random.default_rng(1)
    lot = LOW + (HIGH - LOW) * rng.random((4000, 3))
    lot[:, 0] = 0.5 * 200.0 ** rng.random(4000)
    ways = np.concatenate([np.eye(3), -np.eye(3)]) * np.array([found[0], 1.0, 1.0])
    near = np.concatenate([np.clip(found + h * ways, LOW, HIGH) for h in (0.02, 0.1)])
    assert missed(found, p, share) <= missed(lot, p, share).min()
    assert missed(found, p, share) <= missed(near, p, share).min() + 1e-5


def test_a_probe_in_short_numbers_is_read_in_long_ones() -> None:
    known = {"mean": torch.zeros(1), "scale": torch.ones(1), "weight": torch.ones(1), "intercept": torch.ones(())}
    assert probe.predict(known, torch.tensor([[0.5]])).tolist() == [1.5]
