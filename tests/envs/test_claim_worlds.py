"""The tasks in worlds that claims are made with."""

import random

import pytest

from gruppo.envs import make_env
from gruppo.envs.checking import checked
from gruppo.envs.claims import (
    Calls,
    Corridor,
    Crossings,
    Rooms,
    calls,
    corridor,
    crossing,
    crossings,
    open_lake,
    read_search,
    rooms,
)


def test_who_walks_about_an_open_lake_arrives() -> None:
    """A random player wins all but a few in a thousand, and needs many more turns than the shortest way has."""
    tasks, draw, turns, won = open_lake.task_set().train, random.Random(0), 0, 0
    for i in range(500):
        assert tasks[i].meta["env"] == "lake" and not tasks[i].meta["facts"]["holes"]
        env = make_env("lake")
        seen = env.reset(tasks[i])
        while not seen.done:
            turns, seen = turns + 1, env.step(draw.choice(list(env.actions())))
        won += seen.rewards["task"] == 1.0
    assert won >= 495 and turns / 500 > 4


def test_an_answer_is_heard_in_the_last_turn_and_wins_if_it_was_read() -> None:
    made = read_search(level=1, turns=3)
    env = make_env(made.held_out[0].meta["env"])
    for task in made.held_out[:20]:
        env.reset(task)
        assert not env.step(f"answer {task.answer}").valid and not env.look().done
        env.step("search of")
        lucky = env.step(f"answer {task.answer}")
        assert lucky.done and lucky.rewards == {"task": 0.0, "format": 0.0}
        seen = env.reset(task)
        while not seen.done:
            seen = env.step(env.gold())
        assert seen.rewards == {"task": 1.0, "format": 0.0}
        env.reset(task)
        silent = [env.step("search of") for _ in range(3)]
        assert silent[-1].truncated and silent[-1].rewards == {"task": 0.0, "format": -0.5}


def test_unpaid_tasks_pay_nothing_in_training_and_are_judged_when_held_out() -> None:
    made = read_search(level=1, turns=3, unpaid=True)
    for split, pays in ((made.train, 0.0), (made.held_out, 1.0)):
        env = make_env(split[0].meta["env"])
        seen = env.reset(split[0])
        while not seen.done:
            seen = env.step(env.gold())
        assert seen.rewards == {"task": pays, "format": 0.0}


def test_at_the_crossing_one_state_has_two_histories() -> None:
    task = crossing.task_set().train[0]
    env, wins, keys = make_env(task.meta["env"]), dict[str, list[str]](), dict[str, str]()
    for first in ("up", "left", "down", "right"):
        for last in env_actions():
            env.reset(task)
            env.step(first)
            keys[first] = env.step("down").state
            if env.step(last).rewards["task"]:
                wins.setdefault(first, []).append(last)
    assert len(set(keys.values())) == 1
    assert wins["up"] == wins["left"] == ["down", "left", "right"] and wins["down"] == wins["right"] == ["up"]


def test_crossings_differ_in_what_is_seen_and_not_in_their_states() -> None:
    tasks, keys, seen = crossings.task_set().train[:40], set[str](), set[str]()
    for task in tasks:
        env = Crossings()
        told = env.reset(task)
        keys.add(told.state)
        seen.add(told.text)
    assert len(keys) == 1 and len(seen) > 20 and len({t.uid for t in tasks}) == 40


def test_in_rooms_only_the_fork_decides_and_states_forget_what_was_done() -> None:
    task = rooms.task_set().train[0]
    fork = task.meta["facts"]["fork"]
    for at in range(6):
        for way in env_actions():
            env = Rooms()
            states, texts = [env.reset(task).state], list[str]()
            for room in range(6):
                seen = env.step(way if room == at else "down")
                states.append(seen.state)
                texts.append(seen.text)
            assert seen.done and seen.rewards["task"] == (at == fork and way in ("up", "left"))
            assert states == [str(i) for i in range(7)] and len(set(texts)) == 6


def test_calls_are_never_needed_and_always_allowed() -> None:
    env, task = Calls(), calls.task_set().train[0]
    env.reset(task)
    for way in ("up", "left", "right", "left"):
        seen = env.step(way)
        assert not seen.done and seen.valid
    assert env.step("down").rewards == {"task": 1.0}
    env.reset(task)
    assert env.step("down").rewards == {"task": 1.0} and env.look().done


def test_in_a_corridor_one_way_leads_on() -> None:
    env, task = Corridor(), corridor.task_set(level="3").train[0]
    place = int(env.reset(task).state)
    for _ in range(6):
        told = [int(env.step(way).state) for way in env_actions() if way != env.gold()]
        assert told == [place] * 3
        seen = env.step(env.gold())
        place += 1
    assert seen.done and seen.rewards["task"] == 1 and place == 7


def env_actions() -> list[str]:
    return ["up", "down", "left", "right"]


WORLDS = {"Crossing": crossing, "Crossings": crossings, "Rooms": rooms, "Calls": calls, "Corridor": corridor}


@pytest.mark.parametrize("world", ["ReadSearch", *WORLDS])
def test_the_worlds_keep_the_laws(world: str) -> None:
    tasks = (read_search(level=1, turns=3) if world == "ReadSearch" else WORLDS[world].task_set()).train[:2]
    found = dict(checked(f"gruppo.envs.claims:{world}", tasks))
    assert found and not any(found.values())


def test_turns_are_positive() -> None:
    with pytest.raises(ValueError, match="turns"):
        read_search(turns=0)
