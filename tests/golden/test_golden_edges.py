"""Worked numbers at the edges of the pieces: defaults, bounds, ties, empty masks. Each was worked by hand."""

import math

import numpy as np
import pytest
import torch
from hand import answer, batch_of, column
from torch import Tensor

from gruppo.data import Batch, Key
from gruppo.pieces import advantage, aggregate, divergence, preference, ratio, shaping, surrogate
from gruppo.pieces.stop import freeze, stop

INF = float("inf")
ONE = Key(torch.zeros(4, dtype=torch.int64), 1)
TWO = Key(torch.tensor([0, 1, 0, 1]), 2)
THREE_OF_FOUR = torch.tensor([True, True, True, False])


def f64(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def close(a: Tensor | float, b: object, tol: float = 1e-12) -> None:
    assert (column(a) if isinstance(a, Tensor) and a.dim() else float(a)) == pytest.approx(b, abs=tol, rel=0)


# advantage


def test_z_score_as_it_comes() -> None:
    """R = (1, 0, 0, 0): .75 / (.5 + 1e-6), std with n − 1; a part of one is 0 also where others have a spread."""
    close(advantage.z_score(f64(1, 0, 0, 0), ONE), [0.75 / 0.500001, *[-0.25 / 0.500001] * 3])
    mixed = Key(torch.tensor([0, 0, 0, 1]), 2)
    s = math.sqrt(1 / 3)
    close(advantage.z_score(f64(1, 0, 0, 9), mixed, eps=0.5), [2 / 3 / (s + 0.5), *[-1 / 3 / (s + 0.5)] * 2, 0.0])


def test_z_score_of_some_rows() -> None:
    """(3, 1) of (3, 1, 1000): mean 2, std √2; with eps = 0 the others are 0, not NaN."""
    key, where = Key(torch.zeros(3, dtype=torch.int64), 1), torch.tensor([True, True, False])
    close(advantage.z_score(f64(3, 1, 1000), key, where=where, eps=0.0), [math.sqrt(0.5), -math.sqrt(0.5), 0.0])
    one = torch.tensor([True, False, False])
    close(advantage.z_score(f64(3, 1, 1000), key, where=one, eps=0.0, ddof=0), [0.0] * 3)


def test_leave_one_out_of_two_and_of_some() -> None:
    """(5, 2): 5 − 2 = 3. Of three rows in `where`, (6, 3, 0): 6 − 1.5, 3 − 3, 0 − 4.5."""
    close(advantage.leave_one_out(f64(5, 9, 2, 9), TWO), [3.0, 0.0, -3.0, 0.0])
    close(advantage.leave_one_out(f64(6, 3, 0, 50), ONE, where=THREE_OF_FOUR), [4.5, 0.0, -4.5, 0.0])


def test_weighted_centre() -> None:
    """(4, 1) with weights (1, 2), or an eighth of them: mean 2, so 2 and −1; all weights 0: nothing is known, so 0.

    (4, 1, 7) with weights (1, 2, 3): mean 27/6 = 4.5, whatever stands outside.
    """
    x, w = f64(4, 7, 1, 3), f64(1, 0, 2, 0)
    close(advantage.weighted_centre(x, w, TWO), [2.0, 0.0, -1.0, 0.0])
    close(advantage.weighted_centre(x, w / 8, TWO), [2.0, 0.0, -1.0, 0.0])
    close(advantage.weighted_centre(x, f64(1, 3, 2, 1), TWO), [2.0, 1.0, -1.0, -3.0])
    for outside in (1000.0, -1000.0, float("nan")):
        some = advantage.weighted_centre(f64(4, 1, 7, outside), f64(1, 2, 3, 50), ONE, where=THREE_OF_FOUR)
        close(some, [-0.5, -3.5, 2.5, 0.0])
    light = f64(1, 2, 3, 50) / 8  # 6/8 in all
    close(advantage.weighted_centre(f64(4, 1, 7, 0), light, ONE, where=THREE_OF_FOUR), [-0.5, -3.5, 2.5, 0.0])
    close(advantage.weighted_centre(f64(4, 1, 7, 0), f64(0, 0, 0, 50), ONE, where=THREE_OF_FOUR), [0.0] * 4)
    for equal in (0.1, 0.7, 1e8 + 0.3):
        same = torch.full((4,), equal, dtype=torch.float64)
        assert column(advantage.weighted_centre(same, f64(0.1, 0.3, 0.7, 0.2), ONE)) == [0.0] * 4


def test_lead_with_ties_and_holes() -> None:
    """Best of 2 of (3, 1, 1, 0): max with it less max without it, mean over the three companions.

    3: (2 + 2 + 3)/3;  each 1: (0 + 0 + 1)/3;  0: 0. The tie may stand in any place. k above the rows: the whole part.
    """
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 0, 3, 1]):
        x = f64(3, 1, 1, 0)[order]
        close(advantage.lead(x, ONE, 2), f64(7 / 3, 1 / 3, 1 / 3, 0)[order].tolist())
        close(advantage.lead(x, ONE, 9), f64(2, 0, 0, 0)[order].tolist())
    close(advantage.lead(f64(3, 99, 1, 0), ONE, 2, where=torch.tensor([True, False, True, True])), [2.5, 0, 0.5, 0])
    close(advantage.lead(f64(3, 5, 1, 9), TWO, 2), [2.0, 0.0, 0.0, 4.0])
    close(advantage.lead(f64(3, 5), Key(torch.tensor([1, 0]), 2), 2), [0.0, 0.0])


def test_whiten_two_rows_and_a_tiny_spread() -> None:
    """(0, 2e-4): mean 1e-4, var 2e-8, so ±1e-4 / √(2e-8 + 1e-8); two rows are enough."""
    every = torch.ones(2, dtype=torch.bool)
    close(advantage.whiten(f64(0, 2e-4), every), [-1 / math.sqrt(3), 1 / math.sqrt(3)], 1e-9)
    close(advantage.whiten(f64(1, 3), every, eps=2.0), [-0.5, 0.5])
    for equal in (0.1, 0.7, 1e8 + 0.3):
        same = torch.full((7,), equal, dtype=torch.float64)
        assert column(advantage.whiten(same, same > 0)) == [0.0] * 7


def test_ends_and_a_tail() -> None:
    """γ = .5, λ = 0: A_t = r_t + .5 V_{t+1} − V_t, and after the last row of a part stands its own tail."""
    part = torch.tensor([0, 0, 1, 2, 2])
    assert advantage.ends(part).tolist() == [0, 1, 1, 0, 1]
    assert advantage.ends(part).dtype == torch.get_default_dtype()
    value, tail = f64(1, 2, 4, 8, 16), f64(9, 10, 20, 9, 40)
    adv, ret = advantage.gae(f64(0, 1, 0, 0, 1), value, part, 0.5, 0.0, tail)
    close(adv, [0.0, 4.0, 6.0, 0.0, 5.0])
    close(ret, [1.0, 6.0, 10.0, 8.0, 21.0])


# aggregate


def three_answers(drawn: dict[str, int] | None = None) -> Batch:
    return batch_of([answer(1, "a", 1, 1.0), answer(2, "a", 3, 0.0), answer(3, "b", 2, 1.0)], drawn)


@pytest.mark.parametrize(
    ("mean", "expected"),
    [
        ("token", [1 / 4, 1 / 4, 1 / 4, 0, 1 / 4, 0]),
        ("sequence", [1 / 3, 1 / 6, 1 / 6, 0, 1 / 3, 0]),
        ("group", [1 / 6, 1 / 6, 1 / 6, 0, 1 / 2, 0]),
        ("episode_sum", [1 / 3, 1 / 3, 1 / 3, 0, 1 / 3, 0]),
        ("group_sum", [1 / 2, 1 / 2, 1 / 2, 0, 1 / 2, 0]),
        ("episode_sum/2.5", [1 / 7.5, 1 / 7.5, 1 / 7.5, 0, 1 / 7.5, 0]),
        ("episode_sum/0.5", [2 / 3, 2 / 3, 2 / 3, 0, 2 / 3, 0]),
        (8, [1 / 8, 1 / 8, 1 / 8, 0, 1 / 8, 0]),
        (0.5, [2, 2, 2, 0, 2, 0]),
    ],
)
def test_weights(mean: str | float, expected: list[float]) -> None:
    """Answers of 1, 3 and 2 tokens in two groups; one token of the second and one of the third are left out."""
    over = torch.tensor([True, True, True, False, True, False])
    close(aggregate.weights(three_answers(), "N", over, mean), expected)


@pytest.mark.parametrize("mean", ["token", "sequence", "episode_sum", "drawn_group"])
def test_weights_of_nothing(mean: str) -> None:
    assert column(aggregate.weights(three_answers(), "N", torch.zeros(6, dtype=torch.bool), mean)) == [0.0] * 6


def test_weights_of_groups_that_selection_removed() -> None:
    """Four groups drawn, two left: 1/4 for each group's mean."""
    batch = three_answers({"a": 2, "b": 1, "c": 2, "d": 2})
    every = torch.ones(6, dtype=torch.bool)
    close(aggregate.weights(batch, "N", every, "drawn_group"), [*[1 / 16] * 4, 1 / 8, 1 / 8])
    close(aggregate.weights(batch, "N", every, "drawn_group_sum/2"), [1 / 8] * 6)


@pytest.mark.parametrize(
    "mean", [0, -1.0, "sequence/64", "sequence_sum/", "sequence_sum/0", "sequence_sum/1.5.5", "tok"]
)
def test_a_mean_that_is_none(mean: str | float) -> None:
    with pytest.raises(ValueError, match="mean="):
        aggregate.weights(three_answers(), "N", torch.ones(6, dtype=torch.bool), mean)


def test_a_row_without_weight_does_not_enter() -> None:
    close(aggregate.weighted_sum(f64(2, float("nan"), 3, INF), f64(-1, 0, 0.5, 0)), -0.5)


# divergence, ratio


def test_k3_is_bounded_above_only() -> None:
    """d = 25 counts as 20; d = −30 stays: e^−30 + 30 − 1, with the slope 1 − e^−30 towards the reference."""
    logp = f64(-25, 0).requires_grad_()
    value = divergence.k3(logp, f64(0, -30))
    close(value / f64(math.exp(20) - 21, math.exp(-30) + 29), [1.0, 1.0])
    [slope] = torch.autograd.grad(value.sum(), logp)
    close(slope, [0.0, 1 - math.exp(-30)])


def test_full_where_a_token_cannot_be() -> None:
    """π = (½, ½, 0) against (¼, ½, ¼) and against (¼, ¾, 0): ½ log 2, and ½ log 2 + ½ log(2/3)."""
    p = torch.tensor([[0.5, 0.5, 0.0]] * 2, dtype=torch.float64).log()
    q = torch.tensor([[0.25, 0.5, 0.25], [0.25, 0.75, 0.0]], dtype=torch.float64).log()
    close(divergence.full(p, q), [0.5 * math.log(2), 0.5 * math.log(2) + 0.5 * math.log(2 / 3)])


def test_ratios_are_bounded_by_twenty() -> None:
    """log r inside ±20 token by token, and so is the sum of a sequence's log-ratios; the mean needs no bound."""
    close(ratio.log_ratio(f64(0, -50, 1), f64(-50, 0, 0.5)), [20.0, -20.0, 0.5])
    close(ratio.log_ratio(f64(0, -50), f64(-50, 0), 3.0), [3.0, -3.0])
    new, old = f64(0, 0, -1, -50), f64(-15, -50, 0, 0)
    close(ratio.product_ratio(new, old, Key(torch.tensor([0, 0, 1, 1]), 2)).log(), [20.0, -20.0])
    close(ratio.sequence_ratio(new, old, Key(torch.tensor([0, 0, 1, 1]), 2)).log(), [17.5, -10.5])
    close(ratio.product_ratio(f64(1, 2, 3, 4), f64(0, 0, 0, 0), ONE, THREE_OF_FOUR).log(), [6.0])
    close(ratio.sequence_ratio(f64(1, 2, 3, 4), f64(0, 0, 0, 0), ONE, THREE_OF_FOUR).log(), [2.0])


def test_the_geometric_mean_by_token() -> None:
    """l = (1, 2, 3 | 4 left out): s = e² on each row, and the mean over the rows has ds/dl = s/3."""
    log_N = f64(1, 2, 3, 4).requires_grad_()
    s_N = ratio.geometric_by_token(log_N, ONE, THREE_OF_FOUR)
    close(s_N.detach(), [math.exp(2)] * 4)
    [slope] = torch.autograd.grad(s_N[THREE_OF_FOUR].mean(), log_N)
    close(slope, [*[math.exp(2) / 3] * 3, 0.0])


def test_the_effective_share() -> None:
    """(1, 1, 2): 16 / (3 · 6); weights of 0 only give 0, and rows outside do not count."""
    close(ratio.effective_share(f64(1, 1, 2, 9), THREE_OF_FOUR), 16 / 18)
    close(ratio.effective_share(f64(0, 0, 0, 9), THREE_OF_FOUR), 0.0)


# surrogate, preference, shaping


def test_at_the_very_clip() -> None:
    """A ratio on the bound keeps its gradient, so it is not counted; nor is any with an advantage of 0."""
    r, adv = f64(1.25, 1.26, 0.75, 0.74, 2, 0.1, 2, 0.1), f64(1, 1, -1, -1, 0, 0, -1, 1)
    close(surrogate.clip_fraction(r, adv, 0.25, 0.25), [0, 1, 0, 1, 0, 0, 0, 0])
    close(surrogate.clipped(r, adv, 0.25, 0.25), [1.25, 1.25, -0.75, -0.75, 0, 0, -2, 0.1])
    close(surrogate.dual_clipped(f64(-5, -5, 2), f64(-1, 0, 1), 3.0), [-3.0, -5.0, 2.0])


def test_the_clip_on_the_log_ratio() -> None:
    close(
        surrogate.clipped_log(f64(2, -2, 2, -2, 2, -2), f64(1, 1, -1, -1, 0, 0), 0.5, 0.25),
        [0.25, -2.0, 2.0, -0.5, 2.0, -0.5],
    )


def test_the_soft_gate() -> None:
    """4/τ σ(τ (r − 1)) A: at r = 1, 2/τ A; at r = 2 with τ = 1, 4 σ(1); τ by the sign of A."""
    value = surrogate.soft_gated(f64(1, 1, 2), f64(1, -1, 1), 1.0, 4.0)
    close(value, [2.0, -0.5, 4 / (1 + math.exp(-1))])
    close(surrogate.soft_gated(f64(1), f64(0), 0.0, 4.0), [0.0])  # A = 0 takes the second τ


def test_preferences() -> None:
    """log σ(1) as it comes; with ε = .25, .75 log σ(1) + .25 log σ(−1). log-odds of p = 1 stop at −1e-6."""
    up, down = -math.log1p(math.exp(-1)), -math.log1p(math.exp(1))
    close(preference.bradley_terry(f64(1)), [up])
    close(preference.bradley_terry(f64(1), 0.25), [0.75 * up + 0.25 * down])
    close(preference.log_odds(f64(math.log(0.8))), [math.log(4)])
    at_one = math.log(math.exp(-1e-6) / -math.expm1(-1e-6))
    close(preference.log_odds(f64(0)), [at_one])
    close(preference.log_odds(f64(0), 0.5), [-0.5 - math.log(-math.expm1(-0.5))])


def test_overlong_without_a_buffer() -> None:
    """A step at the budget; with a buffer of 2 before 10 a line: 8 → 0, 9 → −.5, 10 and 12 → −1."""
    lengths = np.array([7.0, 8.0, 9.0, 10.0, 12.0])
    assert shaping.overlong(lengths, 10, 2).tolist() == [0, 0, -0.5, -1, -1]
    assert shaping.overlong(lengths, 9, 0).tolist() == [0, 0, 0, -1, -1]


# stop


def test_frozen_values_are_replayed_in_their_order() -> None:
    x = f64(2).requires_grad_()
    with freeze() as tape:
        first = [stop(x), stop(3 * x)]
        assert not first[0].requires_grad and not tape.recorded
        tape.rewind()
        for _ in range(2):
            assert [float(stop(x + 1)), float(stop(x))] == [2.0, 6.0]
            tape.rewind()
        with freeze():
            assert float(stop(x + 5)) == 7.0
        assert float(stop(x + 1)) == 2.0
    assert float(stop(x + 1)) == 3.0
    assert not stop(x).requires_grad


def test_a_frozen_value_is_a_copy() -> None:
    x = f64(2)
    with freeze() as tape:
        held = stop(x)
        x += 1
        assert float(held) == 2.0
        tape.rewind()
        assert float(stop(x)) == 2.0
