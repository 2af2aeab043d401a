"""Pitfall 29: "reported loss ≠ optimised loss (dp×cp factors), metrics averaged over micro-batches". Rule: "metrics
are sums+counts".

If the bug came back, the slope of the logged objective would not be the gradient in the weights, or a logged number
would depend on how the batch was cut into micro-batches.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import answer, running, take_step

from gruppo.data import Batch, minibatches
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World, random_cut
from gruppo.methods import method
from gruppo.stages import Stats, need
from gruppo.stages.penalties import EntropyBonus
from gruppo.train.forward import serve
from gruppo.train.learner import OptimConfig

NAMES = ("reinforce", "rloo", "grpo", "dapo", "ppo")
COEF = {"policy": 1.0, "value": 1.0, "kl_ref": 0.04, "entropy_bonus": 0.3, "clip_fraction": 0.0}


def logged(world: World, batch: Batch, role: str, cut: list[torch.Tensor] | None = None) -> dict[str, float]:
    world.learner.begin(world.ctx)
    world.learner.grad(role, batch, cut=cut)
    return world.learner.tally.means()


def objective(row: dict[str, float]) -> float:
    """J, put together from what is logged."""
    return sum(COEF[name] * value for name, value in row.items() if not name.startswith("sampler_gap"))


@pytest.mark.parametrize("name", NAMES)
def test_the_slope_of_the_logged_objective_is_the_gradient(name: str) -> None:
    world = World(method(name).but(penalties=EntropyBonus(entropy_coef=0.3)), seed=10)
    batch = world.prepared(world.packed(random_episodes(10)))
    if "logp_old_N" not in batch.columns:  # the lazy old would move with the weights
        old = serve(world.before["old"], batch, [need("logp", "old")])
        batch = batch.with_columns(**old)
    for role in world.learner.trained:
        params = [p for p in world.models[role].parameters() if p.requires_grad]
        grad = world.grad(batch, role)
        way = torch.randn(len(grad), generator=torch.Generator().manual_seed(0), dtype=grad.dtype)
        ends = []
        for h in (1e-6, -2e-6):
            for p, v in zip(params, way.split([p.numel() for p in params]), strict=True):
                p.data += h * v.view_as(p)
            ends.append(objective(logged(world, batch, role, random_cut(batch, 3))))
        slope = (ends[0] - ends[1]) / 2e-6
        assert abs(slope) > 1e-4 and slope == pytest.approx(-float(grad @ way), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("name", [*NAMES, "disco"])
def test_any_cut_logs_the_same_numbers(name: str) -> None:
    world = World(method(name), seed=10)
    batch = world.prepared(world.packed(random_episodes(10)))
    for role in world.learner.trained:
        whole = logged(world, batch, role)
        for seed in range(3):
            cut = random_cut(batch, seed)
            assert logged(world, batch, role, cut) == pytest.approx(whole, rel=1e-9, abs=1e-12)


def test_a_mean_over_micro_batches_is_another_number() -> None:
    """The bug, planted."""
    world = World(method("grpo"), seed=10)
    batch = world.prepared(world.packed(random_episodes(10)))
    rows = []
    for part in random_cut(batch, 0):
        micro = batch.micro(part)
        stats = Stats(serve(world.models["policy"], micro, world.goal().needs()))
        rows.append({name: float(x) for name, x in world.goal().whole(micro, stats).totals.items()})
    naive = np.mean([r["policy"] for r in rows])
    assert abs(naive - logged(world, batch, "policy")["policy"]) > 1e-3


def test_a_whole_step_logs_the_same_for_any_micro_tokens(policy: Path) -> None:
    rows = []
    for tokens in (1, 50, 1 << 20):
        with running(policy, "ppo", optim=OptimConfig(lr=0.01, micro_tokens=tokens)) as run:
            facts = take_step(run).facts
            rows.append({k: v for k, v in facts.items() if "second" not in k})
    assert "sampler_gap" in rows[0] and "clip_fraction" in rows[0] and "value" in rows[0]
    for row in rows[1:]:
        assert row == pytest.approx(rows[0], rel=1e-3, abs=2e-6)


def test_the_gap_is_a_sum_by_a_count(policy: Path) -> None:
    with running(policy, optim=OptimConfig(micro_tokens=1)) as run:
        take_step(run)
        tally = run.learner.tally
        record_tokens = tally.counts["sampler_gap"]
        assert record_tokens > 100  # tokens, not micro-batches
        assert tally.means()["sampler_gap"] == tally.sums["sampler_gap"] / record_tokens


def test_dropped_steps_are_counted_and_end_the_run() -> None:
    """A count is no mean; and a critic that is well does not hide a policy that is not."""
    world = World(method("ppo"), seed=10)
    batch = world.prepared(world.packed(random_episodes(10)))
    sick = batch.with_columns(adv_N=batch.adv_N * float("nan"))
    before = [p.clone() for p in world.models["policy"].parameters()]
    world.learner.begin(world.ctx)
    with pytest.raises(ValueError, match="policy is nan for the third step"):
        for _ in range(5):
            world.learner.step("policy", sick)
            world.learner.step("critic", batch)
    assert world.learner.tally.means()["bad_gradients"] == 3.0
    assert all(torch.equal(a, b) for a, b in zip(before, world.models["policy"].parameters(), strict=True))


def test_a_share_of_tokens_over_minibatches_is_a_share_of_tokens() -> None:
    """clip_fraction: "tokens whose gradient the clip removed". With lr = 0 one number is right."""
    world = World(method("dapo").but(reward=(), select=()), seed=10)
    short = [answer(i, float(i % 2), "short", tokens=2) for i in range(2)]
    long = [answer(10 + i, float(i % 2), "long", tokens=25) for i in range(4)]
    batch = world.prepared(world.packed(short + long))
    share = logged(world, batch, "policy")["clip_fraction"]
    world.learner.begin(world.ctx)
    for part in minibatches(batch, 2, 0):
        world.learner.step("policy", part, lr=0.0)
    assert 0 < share < 1 and world.learner.tally.means()["clip_fraction"] == pytest.approx(share)
