"""Pitfall 10: "ratio against the trainer's recomputed 'old' while data came from the engine". Rule: "three policies
named: behaviour, proximal, current".

logp_gen is what the sampler drew from, logp_old the weights at the start of the step, logp what is being trained.
If the bug came back, the ratio would be taken against another of them, or `old` would follow the weights inside a
step.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import batch_of, drawn, flat, running

from gruppo.data import Batch
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.same import far
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.stages.select import TruncatedImportance
from gruppo.stages.update import Passes

# the clipped surrogate, mean over tokens, no penalty, one step a batch
BARE = method("dapo").but(reward=(), select=(), update=Passes())


def without_old(batch: Batch) -> Batch:
    columns = {k: v for k, v in batch.columns.items() if k != "logp_old_N"}
    return replace(batch, columns=columns, _cache={})


def test_the_ratio_is_current_over_proximal() -> None:
    world = World(BARE, seed=2)
    batch = world.prepared(world.packed(random_episodes(2)))
    stats = world.statistics(batch)
    got = world.value(batch, stats)

    def by_hand(other_N: torch.Tensor) -> float:
        r_N, adv_N = (stats["logp_N"] - other_N).exp(), batch.adv_N
        value_N = torch.minimum(r_N * adv_N, r_N.clamp(0.8, 1.28) * adv_N)
        return float(value_N[batch.learn_N].mean())

    assert float(got) == pytest.approx(by_hand(batch.logp_old_N), abs=1e-12)
    assert abs(float(got) - by_hand(batch.logp_gen_N)) > 1e-3  # the bug: behaviour in place of proximal


def test_the_sampler_enters_by_a_weight_of_its_own() -> None:
    """min(π_old / π_gen, cap): behaviour and proximal both, and 1 where nothing was sampled."""
    world = World(BARE.but(select=TruncatedImportance(cap=1.3)), seed=2)
    batch = world.prepared(world.packed(random_episodes(2)))
    known = batch.on_policy_N
    want = (batch.logp_old_N - batch.logp_gen_N).exp().clamp(max=1.3)
    assert torch.allclose(batch.weight_N[known], want[known]) and bool((batch.weight_N[~known] == 1).all())
    plain = World(BARE, seed=2)
    assert far(world.grad(batch), plain.grad(plain.prepared(plain.packed(random_episodes(2))))) > 1e-3


def test_old_stays_while_current_moves(policy: Path) -> None:
    with running(policy, BARE.but(update=Passes(epochs=2))) as run:
        batch = batch_of(run, drawn(run))
        assert "logp_old_N" in batch.columns  # several optimiser steps: it must be fixed before the first
        first = flat(run.models["policy"])
        facts: list[dict[str, Any]] = []
        for part in (batch, batch, without_old(batch)):  # the last one is the bug: old is computed again
            run.learner.begin(run.learner.ctx)
            run.learner.step("policy", part, lr=0.05)
            facts.append(run.learner.tally.means())
        assert not torch.equal(first, flat(run.models["policy"]))
        assert [f["clip_fraction"] == 0 for f in facts] == [True, False, True]


def test_with_one_step_a_batch_the_lazy_old_is_exact(policy: Path) -> None:
    with running(policy, BARE) as run:
        batch = batch_of(run, drawn(run))
        assert "logp_old_N" not in batch.columns
        run.learner.grad("policy", batch)
        assert run.learner.tally.means()["clip_fraction"] == 0.0
        want = float(batch.adv_N[batch.learn_N].mean())  # every ratio is exactly 1
        assert run.learner.tally.means()["policy"] == pytest.approx(want, abs=1e-6)
        assert run.learner.tally.means()["sampler_gap"] < 1e-4


@pytest.mark.parametrize("update", [Passes(epochs=2), Passes(minibatches=2)], ids=str)
def test_old_is_not_lazy_with_several_steps(policy: Path, update: Passes) -> None:
    with running(policy, BARE.but(update=update)) as run:
        assert not run.walk.lazy_old(run.learner.ctx)
