"""Worlds that are actors, with a Ray of one process: the same is seen, also if an actor dies; what cannot be played."""

import random
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from one_process import Actor, OneProcess
from safetensors.torch import load_file

from gruppo.cli import main
from gruppo.envs.base import Seen, actions_of
from gruppo.envs.family import family
from gruppo.envs.registry import BUILT_IN, make_env
from gruppo.scale.cluster import plan, refuse
from gruppo.scale.config import ScaleConfig
from gruppo.scale.worlds import Far, Worlds, worlds_of
from gruppo.stages.converse import Converse
from gruppo.stages.play import one_answer
from gruppo.tasks import Task, TaskConfig
from gruppo.train.config import RunConfig

AGAIN = "world 0 died and was replaced; its episodes were played again"


def far(name: str, worlds: int = 1) -> tuple[Far, Worlds, OneProcess]:
    cluster: Any = OneProcess(worlds=worlds)
    made = Worlds(cluster)
    return made.make(name), made, cluster


def played(env: Any, task: Task, actions: list[str], dies: int = -1, worlds: Worlds | None = None) -> list[Seen]:
    """What is seen; before an action, the actors die."""
    seen = [env.reset(task)]
    for i, action in enumerate(actions):
        if i == dies and worlds is not None:
            for actor in worlds.actors:
                actor.die()
        if not seen[-1].done:
            seen.append(env.step(action))
    return seen


def some_actions(name: str, task: Task, seed: int = 0) -> list[str]:
    """Actions of a world, some of them nonsense."""
    env, luck, out = make_env(name), random.Random(seed), list[str]()
    seen = env.reset(task)
    while not seen.done and len(out) < 8:
        known = list(actions_of(env))
        out.append(luck.choice(known) if known and luck.random() < 0.8 else "sing")
        seen = env.step(out[-1])
    return out


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_actor_shows_what_this_process_would_also_after_a_death(name: str) -> None:
    for index in range(3):
        task = family(name).task_set().train[index]
        actions = some_actions(name, task, index)
        near = played(make_env(name), task, actions)
        for dies in range(-1, len(actions)):
            env, worlds, cluster = far(name)
            assert played(env, task, actions, dies, worlds) == near
            asked_again = 0 <= dies < len(near) - 1
            assert cluster.said == [AGAIN] * asked_again and worlds.lost == asked_again


def test_without_the_past_a_replacement_could_not_go_on() -> None:
    """Else the test above could not fail."""
    task = family("lake").task_set().train[0]
    env, worlds, _ = far("lake")
    env.reset(task)
    actions = [env.gold()]
    env.step(actions[0])
    actions.append(env.gold())
    worlds.actors[0].die()
    env.past.clear()
    assert env.step(actions[1]) != played(make_env("lake"), task, actions)[2]


def test_a_world_says_the_same_about_itself() -> None:
    for name in ("household", "kuhn", "lake"):
        env, near = far(name)[0], make_env(name)
        assert env.seats == near.seats and env.rules == near.rules and env.can == {*near.can} & {"gold", "actions"}
    task = family("lake").task_set().train[0]
    env, near = far("lake")[0], make_env("lake")
    env.reset(task)
    near.reset(task)
    assert env.gold() == near.gold() and env.actions() == list(near.actions())


def test_episodes_are_shared_and_a_place_is_used_again() -> None:
    _, worlds, _ = far("lake", 2)
    task = family("lake").task_set().train[0]
    made = [worlds.make("lake") for _ in range(4)]
    for env in made * 2:
        env.reset(task)
    assert [len(actor.inside.places) for actor in worlds.actors] == [2, 2]
    made[0].close()
    assert made[0].step("up").error.startswith("ended: ")
    assert not made[0].reset(task).error and made[0].place == 4


MINE = """
import os
import pathlib
import time

from gruppo.envs.base import Seen

mark = pathlib.Path(__file__).with_name("mark")


class World:
    def reset(self, task):
        self.task = task.prompt
        over = self.task == "changes" and mark.exists()
        mark.touch()
        return Seen("go", done=over, rewards={"task": 0.0} if over else {})

    def step(self, action):
        if self.task == "raises":
            raise KeyError(action)
        if self.task == "exits":
            os._exit(3)
        if self.task == "hangs":
            time.sleep(60)
        return Seen("on")
"""


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("raises", "raised: KeyError: 'a'"),
        ("exits", "ended: its process ended during step (exit code 3)"),
        ("hangs", "timeout: no answer to step in 1 s, so its process was killed"),
    ],
)
def test_a_world_that_fails_costs_its_episode(what: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    env, worlds, _ = far(f"{tmp_path / 'mine.py'}:World")
    env.start()
    env.seconds = 1.0
    env.reset(Task("t", what, "", 0, "here"))
    seen = env.step("a")
    assert seen.done and seen.error == error and env.step("a").done
    assert not env.reset(Task("t", "well", "", 0, "here")).error and not env.step("a").done
    worlds.actors[0].inside.places[0].env.close()


def test_a_world_that_is_another_one_after_a_death_has_an_error(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    env, worlds, cluster = far(f"{tmp_path / 'mine.py'}:World")
    env.reset(Task("t", "changes", "", 0, "here"))
    env.step("a")
    worlds.actors[0].inside.places[0].env.close()
    worlds.actors[0].die()
    seen = env.step("b")
    assert (
        seen.error == "ended: its actor died, and played again its actions end the episode before action 0 (it is over)"
    )
    assert cluster.said == [AGAIN]
    worlds.actors[0].inside.places[0].env.close()


def test_a_world_that_cannot_be_made_is_refused_where_it_is_asked_for() -> None:
    with pytest.raises(ValueError, match="no such environment"):
        far("lakes")[0].reset(Task("t", "", "", 0, "here"))


def test_an_actor_that_dies_again_and_again_costs_the_episode() -> None:
    env, worlds, _ = far("lake")
    env.reset(family("lake").task_set().train[0])

    def lost(_: Any) -> Any:
        raise ConnectionError("The actor died unexpectedly")

    worlds.ray.get = lost
    seen = env.step("up")
    assert seen.done and seen.error.startswith("ended: the actor of its world died 4 times over the same question")
    failed = ConnectionError("of our own")
    failed.cause = TypeError("a mistake")  # type: ignore[attr-defined]

    def wrong(_: Any) -> Any:
        raise failed

    worlds.ray.get = wrong
    env.seen = Seen("")
    with pytest.raises(TypeError, match="a mistake"):
        env.step("up")


# ---- settings


def test_worlds_are_placed_and_what_would_do_nothing_is_said() -> None:
    scale = ScaleConfig(address="local", worlds=2, cpus=0.5)
    assert [(p.name, p.cpus, p.gpus) for p in plan(scale, False, "")] == [("world 0", 0.5, 0), ("world 1", 0.5, 0)]
    assert not scale.unplaced() and "scale.worlds=2 without scale.address" in ScaleConfig(worlds=2).unplaced()
    said = list[str]()

    def run(**task: Any) -> Any:
        return SimpleNamespace(warn=said.append, config=SimpleNamespace(scale=scale, task=TaskConfig(**task)))

    cluster: Any = OneProcess(worlds=2)
    assert worlds_of(cluster, run(name="addition"), one_answer) is one_answer
    play = Converse()
    assert worlds_of(cluster, run(name="addition", tools="calculator"), play).make is make_env  # type: ignore[attr-defined]
    assert ["scale.worlds=2: task=addition is answered by" in said[0], "task.tools=calculator" in said[1]] == [True] * 2
    with pytest.raises(ValueError, match=r"scale\.worlds=2 with task\.against=random.* Use scale\.worlds=0"):
        refuse(RunConfig(scale=scale, task=TaskConfig(name="tictactoe", against="random")))
    assert isinstance(worlds_of(cluster, run(name="lake"), play).make("lake", False), Far)  # type: ignore[attr-defined]


# ---- runs


def weights_after(folder: Path, *words: str) -> dict[str, torch.Tensor]:
    few = ["method=grpo", "prompts=2", "samples=4", "steps=2", "eval.prompts=2", "threads=1", "show=0"]
    place = [f"save.folder={folder.parent}", f"save.name={folder.name}", "save.tensorboard=no"]
    assert main(["train", *few, *place, *words]) == 0
    return load_file(folder / "policy/model.safetensors")


@pytest.mark.parametrize("words", [("task=lake",), ("task=calculator", "ahead=1"), ("task=kuhn", "method=mars")])
def test_a_run_is_the_same_bits(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In worlds of one seat, with several draws under way, and in a game; actors die in the middle of episodes."""
    plain = weights_after(tmp_path / "plain", *words)
    cluster, asked = OneProcess(worlds=2), [0]
    monkeypatch.setattr("gruppo.scale.cluster.current", lambda: cluster)
    monkeypatch.setattr("gruppo.train.trainer.opened", lambda *_: nullcontext())
    get = cluster.ray.get

    def mortal(refs: list[Any]) -> list[Any]:
        asked[0] += 1
        if asked[0] % 7 == 0:
            actors[asked[0] % 2].die()
        return get(refs)

    actors: list[Actor] = []
    make = cluster.actor
    cluster.actor = lambda *given, **more: actors.append(make(*given, **more)) or actors[-1]  # type: ignore[method-assign]
    cluster.ray.get = mortal  # type: ignore[method-assign]
    away = weights_after(tmp_path / "away", *words, "scale.address=local", "scale.worlds=2")
    assert asked[0] > 14 and all(torch.equal(plain[k], away[k]) for k in plain)
    assert {said.split(" died")[0] for said in cluster.said} == {"world 0", "world 1"}
