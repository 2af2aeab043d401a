"""Pitfall 11: "sequence ratio = sum/mean/exp order". Rule: "exp(mean log-ratio) (GSPO) vs exp(sum) (IS) – tested
both".

If the bug came back, exponentials would be summed or averaged where logarithms should be, masked tokens would take
part, or the two ratios would be mixed up: by length, one is the power of the other.
"""

import math

import pytest
import torch

from gruppo.data import Key
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.pieces.ratio import product_ratio, ratio, sequence_ratio

LOGS = torch.tensor([math.log(2.0), math.log(4.0), 0.0, math.log(0.5)], dtype=torch.float64)
KEY = Key(torch.tensor([0, 0, 0, 1]), 2)
OLD = torch.full((4,), -1.5, dtype=torch.float64)


def test_worked_numbers() -> None:
    """Ratios 2, 4 and 1: geometric mean 2, product 8; arithmetic mean 7/3 and sum 7 are the bugs."""
    assert torch.allclose(sequence_ratio(OLD + LOGS, OLD, KEY), torch.tensor([2.0, 0.5], dtype=torch.float64))
    assert torch.allclose(product_ratio(OLD + LOGS, OLD, KEY), torch.tensor([8.0, 0.5], dtype=torch.float64))
    exps = ratio(OLD + LOGS, OLD)[:3]
    assert float(exps.mean()) == pytest.approx(7 / 3) and float(exps.sum()) == pytest.approx(7.0)


def test_masked_tokens_take_no_part() -> None:
    where = torch.tensor([True, False, True, True])
    wild = LOGS.clone()
    wild[1] = float("nan")
    assert float(sequence_ratio(OLD + wild, OLD, KEY, where)[0]) == pytest.approx(math.sqrt(2.0))
    assert float(product_ratio(OLD + wild, OLD, KEY, where)[0]) == pytest.approx(2.0)


def test_gradients_are_those_of_the_formulas() -> None:
    """d exp(mean)/d logp_t = ratio / length, d exp(sum)/d logp_t = ratio."""
    now = (OLD + LOGS).requires_grad_()
    for piece, share in ((sequence_ratio, 1 / 3), (product_ratio, 1.0)):
        got = piece(now, OLD, KEY)
        slope = torch.autograd.grad(got[0], now)[0]
        want = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64) * float(got[0].detach()) * share
        assert torch.allclose(slope, want)


def test_on_a_packed_batch_they_differ_by_the_length() -> None:
    world = World(method("grpo"), seed=4)
    batch = world.packed(random_episodes(4))
    now, old = world.statistics(batch)["logp_N"], batch.logp_old_N
    key, mine = batch.level("N", "S"), batch.policy_N
    length_S = batch.gather(mine, "N", "S", "count", where=mine)
    mean_S, sum_S = (f(now, old, key, mine) for f in (sequence_ratio, product_ratio))
    live = length_S > 0
    assert torch.allclose(mean_S[live] ** length_S[live], sum_S[live])
    for s in live.nonzero()[:, 0].tolist():
        rows = (key.index == s) & mine
        assert float(mean_S[s]) == pytest.approx(float((now - old)[rows].mean().exp()))
    assert float((mean_S - sum_S)[length_S > 1].abs().max()) > 0.1


def test_extremes_stay_finite() -> None:
    for gap in (1e4, -1e4):
        for piece in (sequence_ratio, product_ratio):
            assert bool(torch.isfinite(piece(OLD + gap, OLD, KEY)).all())
