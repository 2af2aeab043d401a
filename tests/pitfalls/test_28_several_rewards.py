"""Pitfall 28: "multi-reward: normalise before or after summing; NaN rewards". Rule: "named modes".

What exists: components are summed, then credit normalises the sum; the components stay in `reward_EC` for a credit
that normalises them one by one. If the bug came back, a component would be lost or counted twice, or one that was
not judged would count as 0.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import SCORERS, advantages, answer, batch_of, drawn, running, take_step
from torch import Tensor

from gruppo.data import Batch, Episode, Status, pack
from gruppo.methods import method
from gruppo.pieces import advantage
from gruppo.stages import Context, Occupant
from gruppo.stages.credit import GroupNormalised, to_tokens
from gruppo.stages.reward import add_components
from gruppo.train.config import TaskConfig


@dataclass(frozen=True)
class EachNormalised(Occupant):
    """The other mode: every component normalised in its group, over the answers that have it, then summed."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        groups = batch.level("E", "G")
        parts = [
            advantage.z_score(part_E, groups, where=batch.judged_E & ~torch.isnan(part_E))
            for part_E in batch.reward_EC.unbind(1)
        ]
        return to_tokens(batch, torch.stack(parts).sum(0))


@dataclass(frozen=True)
class Bonus(Occupant):
    """A component of the reward room with given values."""

    values: tuple[float, ...] = (0.5,)
    name: str = "bonus"

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        return {self.name: np.resize(self.values, len(episodes))}


def test_components_are_summed_once_and_then_normalised(policy: Path) -> None:
    with running(policy, "grpo", "parts") as run:
        episodes = drawn(run)
        batch = batch_of(run, episodes)
        assert batch.components == ("form", "task")
        assert torch.allclose(batch.reward_E, batch.reward_EC.sum(1))
        after = advantages(batch)
        sums = pack([answer(e.uid, sum(e.reward.values()), e.group) for e in episodes])
        want = advantages(sums.with_columns(**GroupNormalised()(run.learner.ctx, sums)))
        assert after == pytest.approx(want, abs=1e-5)
        before = advantages(batch.with_columns(**EachNormalised()(run.learner.ctx, batch)))
        assert max(abs(before[uid] - after[uid]) for uid in after) > 0.3  # not the same mode


def test_every_component_is_logged(policy: Path) -> None:
    with running(policy, "grpo", "parts") as run:
        facts = take_step(run).facts
    assert facts["reward"] == pytest.approx(facts["reward/task"] + facts["reward/form"])
    assert facts["accuracy"] == facts["reward/task"] != facts["reward"]


def test_a_scorer_that_returns_nan_has_not_judged(policy: Path) -> None:
    """Also when only one of its components is NaN or infinite."""
    task = TaskConfig(reward=f"{SCORERS}:told", seconds=1.0)
    with running(policy, task=task) as run:
        texts = ["=nan", "={'task': 1.0, 'form': nan}", "=inf", "={'task': 1.0, 'form': 0.5}", "={}", "right"]
        episodes = [answer(i, {}, text=t, index=0) for i, t in enumerate(texts)]
        for e in episodes:
            e.task = run.tasks.train[0].uid
        asyncio.run(run.walk.rewarded(run.context(0), episodes))
    assert [e.status.judged for e in episodes] == [False, False, False, True, False, True]
    batch = pack(episodes)
    assert batch.judged_E.tolist() == [False, False, False, True, False, True]
    assert torch.isnan(batch.reward_E).tolist() == [True, True, True, False, True, False]
    adv = GroupNormalised()(Context(), batch)["adv_N"]
    assert bool(torch.isfinite(adv).all())
    zeros = torch.nan_to_num(batch.reward_E)  # the bug
    assert float(zeros.mean()) != pytest.approx(float(batch.reward_E.nanmean()))


def test_two_writers_of_one_component_are_refused(policy: Path) -> None:
    twice = method("grpo").but(reward=Bonus(name="task"))
    with running(policy, twice) as run, pytest.raises(ValueError, match="two occupants"):
        drawn(run)


def test_a_component_that_is_infinite_is_refused() -> None:
    """∞ − ∞ would make every advantage of the group NaN, and the whole step be dropped."""
    with pytest.raises(ValueError, match="inf"):
        add_components(Context(), (Bonus((1.0, float("inf"))),), [answer(0, 1.0), answer(1, 0.0)])


def test_a_component_that_was_not_judged_is_not_0() -> None:
    """Design: `{component: value, NaN = not judged}`. Then the total is not known either, like a scorer's NaN."""
    episodes = [answer(i, 1.0) for i in range(3)]
    add_components(Context(), (Bonus((2.0, float("nan"), 2.0)),), episodes)
    batch = pack(episodes)
    adv = advantages(batch.with_columns(**GroupNormalised()(Context(), batch)))
    assert adv == {0: 0.0, 1: 0.0, 2: 0.0}  # equal where they were judged; now episode 1 is pushed down


def test_a_credit_can_see_which_component_is_missing() -> None:
    """Answers of a mixture of tasks have different components: NaN in reward_EC, never 0."""
    episodes = [answer(i, {"task": float(i % 2)} | ({"form": 1.0} if i < 2 else {})) for i in range(4)]
    batch = pack(episodes)
    assert batch.components == ("form", "task")
    assert torch.isnan(batch.reward_EC).tolist() == [[False, False], [False, False], [True, False], [True, False]]
    adv = EachNormalised()(Context(), batch)["adv_N"]
    assert bool(torch.isfinite(adv).all()) and {e.status for e in episodes} == {Status.OK}


def test_a_scorer_without_a_component_called_task_is_learned_or_refused(policy: Path) -> None:
    """Design: "the task's own scorer is always the component `task`". A user's dict may have other names."""
    with running(policy, "dapo", "named") as run:
        try:
            record = take_step(run)
        except ValueError as error:
            assert "task" in str(error)
        else:
            assert record.facts["dead_groups"] < 0.5 and record.batch is not None
