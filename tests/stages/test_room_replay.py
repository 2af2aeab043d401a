"""What is remembered: the newest judged episodes, young enough, and a keyed draw of them."""

from typing import Any

import pytest
from rooms import context, prompt, rolled, task

from gruppo.data import Episode, Status
from gruppo.data.keyed import uniform
from gruppo.methods import method
from gruppo.stages import Ask
from gruppo.stages.replay import Forget, Recent
from gruppo.stages.rollout import Group


def made(step: int, count: int = 3, **fields: Any) -> list[Episode]:
    out = rolled(Group(), context(step=step), [prompt(Ask(task(step), count))])
    for e in out:
        for name, value in fields.items():
            setattr(e, name, value)
    return out


def test_nothing_is_remembered_unless_asked_for() -> None:
    assert not Forget().joins and Forget().proximal == Forget().credited == "now"
    assert Forget().put(context(), [], made(0)) == [] and Forget().get(context(), made(0)) == []
    assert Recent().joins and Recent().proximal == "stored"
    assert not method("grpo").remembers_episodes and method("grpo").but(replay=Recent()).remembers_episodes


@pytest.mark.parametrize(("age", "stays"), [(0, True), (1, True), (2, False), (3, False)])
def test_an_episode_is_kept_for_max_age_steps(age: int, stays: bool) -> None:
    old = made(5)
    assert Recent(max_age=2).put(context(step=5 + age), old, []) == (old if stays else [])


def test_old_ones_first_and_the_newest_stay() -> None:
    old, new = made(1), made(2)
    ctx = context(step=2)
    assert Recent().put(ctx, old, new) == [*old, *new]
    assert Recent(capacity=4).put(ctx, old, new) == [old[-1], *new]
    assert Recent(capacity=2).put(ctx, old, new) == new[1:]


def test_what_failed_is_not_remembered() -> None:
    bad = made(1, status=Status.ENV_ERROR)
    assert Recent().put(context(step=1), bad, made(1, status=Status.OPEN)) == []


def test_a_keyed_draw_joins_the_batch() -> None:
    """Different ones, as many as wanted; others in another step; the same when the step is repeated."""
    store = made(1, 6)
    draws = [tuple(e.uid for e in Recent(take=2).get(context(step=t), store)) for t in range(12)]
    assert draws == [tuple(e.uid for e in Recent(take=2).get(context(step=t), store)) for t in range(12)]
    assert len(set(draws)) > 6 and all(len(set(d)) == 2 for d in draws)
    by_key = sorted(store, key=lambda e: uniform(0, 3, "replay", e.uid))
    assert Recent(take=4).get(context(step=3), store) == by_key[:4]
