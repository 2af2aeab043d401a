"""Pitfall 8: "values not masked before GAE". Rule: recursion over action tokens only.

If the bug came back, what the critic says at given tokens and in failed episodes, be it huge or NaN, would reach the
advantages of the policy's tokens, their whitening, or the critic's own loss.
"""

import pytest
import torch

from gruppo.data import Batch
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.same import far
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.pieces import advantage
from gruppo.stages import Context
from gruppo.stages.credit import Gae, token_reward


def packed(world: World) -> Batch:
    return world.packed(random_episodes(3))


def poisoned(batch: Batch, value: float) -> Batch:
    other, values = ~batch.sampled_N, batch.value_critic_N
    assert bool((other & batch.spread(batch.learn_E, "E", "N")).any())  # given tokens of episodes that are learned
    return batch.with_columns(value_critic_N=torch.where(other, torch.full_like(values, value), values))


@pytest.mark.parametrize("value", [1e6, float("nan"), float("inf")])
def test_values_of_others_reach_no_gradient(value: float) -> None:
    world = World(method("ppo"), seed=3)
    batch = packed(world)
    for role in ("policy", "critic"):
        plain, sick = (world.grad(world.prepared(b), role) for b in (batch, poisoned(batch, value)))
        assert float(plain.norm()) > 0 and far(plain, sick) <= 1e-12


def test_without_the_mask_they_do() -> None:
    world = World(method("ppo"), seed=3)
    batch = poisoned(packed(world), 1e6)
    right = Gae(gamma=1.0, lam=0.95)(Context(), batch)["adv_N"]
    reward_N = token_reward(batch, torch.arange(batch.size("N")), 0.0)
    raw, _ = advantage.gae(reward_N, batch.value_critic_N, batch.episode_N, 1.0, 0.95)
    wrong = advantage.whiten(raw, batch.policy_N)
    assert float(right.abs().max()) < 10
    assert far(right[batch.policy_N], wrong[batch.policy_N]) > 0.1
