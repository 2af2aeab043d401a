"""Pitfall 12: "normaliser depends on micro-batch, rank, accumulation, padding width". Rule: "loss is a sum; divide
once by a global constant/count".

If the bug came back, the gradient would depend on how sequences are dealt to micro-batches, or on the length of a
sequence that nothing is learned from. The bug is planted: means inside each micro-batch, averaged, are another
gradient.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_runs import batch_of, drawn, far, grad_of, running

from gruppo.data import Batch, Use, micro_batches
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World, random_cut
from gruppo.methods import method
from gruppo.stages import Stats
from gruppo.train.forward import serve
from gruppo.train.learner import OptimConfig

NAMES = ("reinforce", "rloo", "grpo", "dapo", "ppo", "disco")


def mean_of_means(world: World, batch: Batch, cut: list[torch.Tensor]) -> torch.Tensor:
    """The bug: each micro-batch divides by its own count, the results are averaged."""
    model = world.models["policy"]
    model.zero_grad()
    for rows in cut:
        micro = batch.micro(rows)
        stats = Stats(serve(model, micro, world.goal().needs(), grad=True))
        if "logp_old_N" not in micro.columns:
            micro = micro.with_columns(logp_old_N=stats.logp_N.detach())
        (-world.goal().whole(micro, stats).value / len(cut)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", NAMES)
def test_any_cut_gives_the_gradient_of_the_step(name: str) -> None:
    world = World(method(name), seed=5)
    batch = world.prepared(world.packed(random_episodes(5)))
    whole = world.grad(batch, cut=[torch.arange(batch.size("S"))])
    for seed in range(3):
        cut = random_cut(batch, seed)
        assert far(whole, world.grad(batch, cut=cut)) < 1e-9
        assert far(whole, mean_of_means(world, batch, cut)) > 1e-3


def test_the_plant_is_right_when_nothing_is_cut() -> None:
    """So that what it shows above is the division, and nothing else."""
    world = World(method("grpo"), seed=5)
    batch = world.prepared(world.packed(random_episodes(5)))
    cut = [torch.arange(batch.size("S"))]
    assert far(world.grad(batch, cut=cut), mean_of_means(world, batch, cut)) < 1e-9


def test_the_setting_micro_tokens_does_not_matter(policy: Path) -> None:
    seen = []
    for tokens in (1, 40, 16384):
        with running(policy, optim=OptimConfig(micro_tokens=tokens)) as run:
            batch = batch_of(run, drawn(run))
            pieces = len(list(micro_batches(batch, tokens)))
            seen.append((pieces, grad_of(run, batch)))
    assert seen[0][0] == 32 and seen[1][0] > 5 and seen[2][0] == 1
    assert far(seen[0][1], seen[2][1]) < 1e-5 and far(seen[1][1], seen[2][1]) < 1e-5


def test_a_long_sequence_that_is_not_learned_changes_nothing(policy: Path) -> None:
    """There is no padding: width is nobody's denominator."""
    with running(policy) as run:
        episodes = drawn(run)
        alone = grad_of(run, batch_of(run, episodes))
        longest = max(drawn(run, 1), key=lambda e: len(e.sequences[0].ids))
        s = longest.sequences[0]
        twice = {k: torch.from_numpy(getattr(s, k)).repeat(3).numpy() for k in ("ids", "source", "logp", "version")}
        wide = replace(longest, sequences=[replace(s, **twice)], use=Use.NONE, group="other")
        assert far(alone, grad_of(run, batch_of(run, [*episodes, wide]))) < 1e-5
