"""`lab.steps`: exact advantages by hand, and what is learned does not change by measuring."""

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from gruppo.data import Growing, Status, pack
from gruppo.lab.steps import MeasuredSteps, SharedSteps, exact_K, shared_steps, told_apart
from gruppo.methods import method
from gruppo.stages.update import Passes
from gruppo.tasks import TaskConfig
from gruppo.train import loop
from gruppo.train.config import EvalConfig, ModelConfig, RunConfig, SaveConfig
from gruppo.train.run import Run


def walked(i: int, group: str, way: list[tuple[str, str]], reward: float) -> Any:
    grown = Growing(i, "t", group, index=int(group))
    grown.begin(np.array([5, 6]))
    for t, (state, action) in enumerate(way):
        grown.write(np.array([7]), np.full(1, -1.0, np.float32), 0)
        grown.end(state=state, action_key=action)
        if t < len(way) - 1:
            grown.observe(np.array([8]))
    return grown.finish(Status.OK, reward={"task": reward})


def test_by_hand() -> None:
    """V(x | a) = 1/2 and V(x | b) = 1, over both groups; V(s) = 3/4."""
    ways = [("a", "u", 1.0), ("a", "v", 0.0), ("b", "u", 1.0), ("b", "v", 1.0)]
    batch = pack([walked(i, str(i // 2), [("s", a), ("x", then)], r) for i, (a, then, r) in enumerate(ways)])
    assert exact_K(batch, 1.0).tolist() == pytest.approx([-0.25, 0.5, -0.25, -0.5, 0.25, 0.0, 0.25, 0.0])
    assert exact_K(batch, 0.5)[::2].tolist() == pytest.approx([-0.125, -0.125, 0.125, 0.125])


def test_told_apart_is_what_neither_state_nor_return_says() -> None:
    """Four turns at x after another way, all paid 1: those of a have +1, those of b -1."""
    ways = [("a", 1.0), ("a", 1.0), ("b", -1.0), ("b", -1.0)]
    batch = pack([walked(i, "0", [("s", a), ("x", "u")], 1.0) for i, (a, _) in enumerate(ways)])
    by_history = torch.tensor([adv for _, adv in ways for adv in (0.0, adv)])
    assert told_apart(batch, by_history, 1.0) == pytest.approx(1.0)
    by_state = torch.tensor([0.5, -0.5] * 4)
    assert told_apart(batch, by_state, 1.0) == 0.0
    paid = pack([walked(i, "0", [("s", a), ("x", "u")], max(r, 0.0)) for i, (a, r) in enumerate(ways)])
    assert told_apart(paid, by_history, 1.0) == 0.0


def test_shared_steps_are_of_episodes_with_other_rewards() -> None:
    """At s all do the same, at x the winner does something else; the second group has equal rewards."""
    ways = [("0", "u", 1.0), ("0", "v", 0.0), ("0", "v", 0.0), ("1", "u", 1.0)]
    batch = pack([walked(i, g, [("s", "a"), ("x", then)], r) for i, (g, then, r) in enumerate(ways)])
    assert shared_steps(batch) == pytest.approx(3 / 8)


def steps(name: str, update: Any) -> tuple[torch.Tensor, Mapping[str, float]]:
    config = RunConfig(
        method=method(name).but(update=update),
        task=TaskConfig(name="gruppo.envs.claims:crossing", train_size=1),
        model=ModelConfig("tiny-agent", device="cpu"),
        eval=EvalConfig(every=0, prompts=4),
        save=SaveConfig(tensorboard="no"),
        prompts=16,
        samples=8,
    )
    run = Run(config, say=lambda _: None)
    try:
        facts = asyncio.run(loop.train_step(run, 0)).facts
        return torch.cat([p.detach().flatten() for p in run.models["policy"].parameters()]), facts
    finally:
        run.close()


def test_what_is_learned_is_the_same_and_the_gap_is_told() -> None:
    (plain, told), (measured, more) = (steps("hgpo", update) for update in (Passes(), MeasuredSteps()))
    assert torch.equal(plain, measured) and set(more) - set(told) == {"step_gap", "told_apart"}
    assert 0 < more["step_gap"] < steps("grpo", MeasuredSteps())[1]["step_gap"]
    assert more["told_apart"] > 0.01 and steps("gigpo", MeasuredSteps())[1]["told_apart"] < 1e-8


def test_shared_steps_are_logged_and_change_nothing() -> None:
    (plain, told), (measured, more) = (steps("salt", update) for update in (Passes(), SharedSteps(parts=4)))
    assert torch.equal(plain, measured)
    assert set(more) - set(told) == {"shared_steps"}  # of one task there are no parts to compare
    assert more["shared_steps"] > 0.9
