"""Pitfall 14: "Dr.GRPO constant = current padded width instead of fixed budget". Rule: "explicit constant".

`mean=64.0` divides by 64, whatever the batch. If the bug came back, a longer answer elsewhere in the batch would
change the weight of every token.
"""

from dataclasses import replace

import pytest
import torch
from small_runs import answer, far

from gruppo.data import Batch, Use, pack
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World, random_cut
from gruppo.methods import method
from gruppo.pieces.aggregate import weights
from gruppo.stages.objective import ClippedSurrogate

SHORT = [answer(i, float(i % 2), tokens=3 + i % 2) for i in range(4)]
LONG = [*SHORT, answer(9, 0.5, group="other", tokens=30)]
DR_GRPO = method("dapo").but(reward=(), select=(), objective=ClippedSurrogate(mean=64.0))


def padded_width(batch: Batch) -> torch.Tensor:
    """The bug: the constant is the longest answer of the batch."""
    return batch.learn_N.double() / float(batch.gather(batch.learn_N, "N", "E", "count").max())


def test_a_token_weighs_the_same_in_any_company() -> None:
    short, long = pack(SHORT, dtype=torch.float64), pack(LONG, dtype=torch.float64)
    n = short.size("N")
    fixed = [weights(b, "N", b.learn_N, 64.0)[:n] for b in (short, long)]
    assert torch.equal(fixed[0], fixed[1]) and float(fixed[0][0]) == 1 / 64
    assert float(padded_width(short)[0]) == 1 / 4 and float(padded_width(long)[0]) == 1 / 30


def test_the_learner_divides_by_the_constant() -> None:
    """Half the constant, twice the gradient; an idle long answer, no change; any cut, the same."""
    world, batches = World(DR_GRPO, seed=6, on_policy=True), {}
    for name, episodes in (("short", SHORT), ("long", [*SHORT, answer(9, 0.5, "other", 30, use=Use.NONE)])):
        batches[name] = world.prepared(world.packed(episodes))
    grad = world.grad(batches["short"])
    assert float(grad.norm()) > 0 and far(grad, world.grad(batches["long"])) < 1e-12
    half = World(DR_GRPO.but(objective=ClippedSurrogate(mean=32.0)), seed=6, on_policy=True)
    assert far(2 * grad, half.grad(half.prepared(half.packed(SHORT)))) < 1e-12
    batch = world.prepared(world.packed(random_episodes(6)))
    assert far(world.grad(batch), world.grad(batch, cut=random_cut(batch, 1))) < 1e-9


def test_dr_grpo_divides_by_the_longest_answer_that_the_run_allows() -> None:
    """Not by the longest one of the batch: an answer alone in its group teaches nothing, and is one episode more."""
    world = World(method("dr_grpo"), seed=6, on_policy=True)
    alone, beside = (world.grad(world.prepared(world.packed(episodes))) for episodes in (SHORT, LONG))
    assert float(alone.norm()) > 0 and far(beside, 4 / 5 * alone) < 1e-12
    batch = world.prepared(world.packed(SHORT))
    world.ctx.sampling = replace(world.ctx.sampling, max_tokens=2 * world.ctx.sampling.max_tokens)
    assert far(2 * world.grad(batch), alone) < 1e-12


@pytest.mark.parametrize("constant", [0.0, -3.0])
def test_a_constant_that_cannot_divide_is_refused(constant: float) -> None:
    batch = pack(SHORT)
    with pytest.raises(ValueError, match="cannot be divided"):
        weights(batch, "N", batch.learn_N, constant)
