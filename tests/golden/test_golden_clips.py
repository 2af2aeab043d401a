"""Covariances of tokens, which clip_cov and kl_cov share: worked by hand, as in tests/methods."""

import pytest
import torch
from hand import answer, batch_of, column, objective
from six_answers import close

from gruppo.methods import method
from gruppo.pieces.covariance import lowest, singled_out, token_covariance

# Clip-Cov and KL-Cov


def test_covariance_card() -> None:
    """Card S029: A = (1, −1), log π = (−.1, −2.1): means 0 and −1.1, so c = (1, 1). A row outside says nothing."""
    adv_N, logp_N = (torch.tensor(x, dtype=torch.float64) for x in ([1.0, -1.0, 9.0], [-0.1, -2.1, float("nan")]))
    close(column(token_covariance(adv_N, logp_N, torch.tensor([True, True, False]))), [1.0, 1.0, 0.0])
    close(column(token_covariance(adv_N, logp_N, torch.zeros(3, dtype=torch.bool))), [0.0, 0.0, 0.0])


def test_the_lowest_rows() -> None:
    """The smallest keys first, of equal ones by the second key; never one outside, and all if there are fewer."""
    key, luck = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0]), torch.tensor([0.1, 0.9, 0.2, 0.5, 0.0])
    where = torch.tensor([True, True, True, True, False])
    assert [lowest(key, luck, where, n).tolist() for n in (0, 1, 2, 9)] == [
        [False] * 5,
        [False, False, True, False, False],
        [False, False, True, True, False],
        [True, True, True, True, False],
    ]
    assert [singled_out(share, where) for share in (0.0, 1e-6, 0.5, 1.0)] == [0, 1, 2, 4]


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_equal_rewards_have_no_covariance(name: str) -> None:
    """Card S029: a constant advantage has c = 0. So nothing is a candidate of Clip-Cov, and nothing is learned."""
    batch = batch_of([answer(i, "g", 2, 1.0) for i in range(3)], logp_old_N=[-1.0] * 6)
    value, slope = objective(method(name).but(select=()), batch, logp_N=[-1.0] * 6)
    assert value == 0.0 and slope["logp_N"] == [0.0] * 6
