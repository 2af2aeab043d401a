"""The counts of an optimiser step are one small object: those of its parts add up to those of the whole."""

from functools import reduce
from operator import add

import pytest
import torch

from gruppo.data import minibatches
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.stages.terms import Counts, Term

MEANS = ("token", "sequence", "episode", "group", "drawn_group", "episode_sum", "sequence_sum/64", 7.0)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_whole_groups_add_up(mean: str | float, parts: int) -> None:
    world = World(method("grpo"), 0)
    batch = world.prepared(world.packed(random_episodes(0, groups=4)))
    pieces = minibatches(batch, parts, 0)
    assert len(pieces) == parts
    whole = Term("x", batch.learn_N, mean)
    mine = [Term("x", part.learn_N, mean) for part in pieces]
    total = reduce(add, [Counts({"x": t.count(p)}) for t, p in zip(mine, pieces, strict=True)])
    assert vars(total.of["x"]) == pytest.approx(vars(whole.count(batch)))
    # Under the added counts each part has the weights of the whole: the sum over parts is the sum over the batch.
    weights = torch.cat([t.weights(p, total.of["x"]) for t, p in zip(mine, pieces, strict=True)])
    by_uid = dict(zip(torch.cat([p.uid_N for p in pieces]).tolist(), weights.tolist(), strict=True))
    found = torch.tensor([by_uid[uid] for uid in batch.uid_N.tolist()])
    assert torch.allclose(found.double(), whole.weights(batch).double(), rtol=1e-12)


def test_a_term_that_a_part_does_not_have_counts_nothing() -> None:
    world = World(method("grpo"), 0)
    batch = world.prepared(world.packed(random_episodes(0)))
    goal = world.goal()
    counts = goal.counts(batch, goal.terms(batch))
    assert (counts + Counts()).of == counts.of and set(counts.of) == {"policy", "clip_fraction", "kl_ref"}
