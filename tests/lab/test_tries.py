"""`lab.tries`: one turn a try, five tries for what is held out, and nothing told but that it was wrong."""

import pytest

from gruppo.envs import make_env
from gruppo.lab.tries import five

TASKS = five(width=4)


def test_a_held_out_task_has_five_tries_and_is_worth_one() -> None:
    task = TASKS.held_out[0]
    env, right = make_env(task.meta["env"]), str(task.meta["facts"]["secret"])
    wrong = str(1 + int(right) % 4)
    first = env.reset(task)
    for _ in range(4):
        seen = env.step(wrong)
        assert seen.text == f"wrong try again {first.text}" and not seen.done  # neither higher nor lower
    assert env.step(right).rewards["task"] == 1.0
    env.reset(task)
    last = [env.step(wrong) for _ in range(5)][-1]
    assert last.done and last.rewards["task"] == 0.0


def test_a_task_to_train_on_has_one_turn() -> None:
    task = TASKS.train[0]
    env = make_env(task.meta["env"])
    env.reset(task)
    seen = env.step(str(1 + task.meta["facts"]["secret"] % 4))
    assert seen.done and seen.rewards == {"task": 0.0}


def test_numbers_are_chance_and_tasks_differ() -> None:
    secrets = [t.meta["facts"]["secret"] for t in TASKS.held_out]
    assert all(200 < secrets.count(n) < 300 for n in range(1, 5))
    assert len({t.uid for t in (*TASKS.held_out, *TASKS.train)}) == 9_000
    with pytest.raises(ValueError, match="nothing to guess"):
        five(width=1)
