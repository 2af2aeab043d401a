"""Laws of the built-in worlds: they keep the laws of environments, their words are known and few, and they are fast."""

import time
from typing import Any

import pytest

from gruppo.envs import BUILT_IN, env_class, make_env, offers
from gruppo.envs.check import LAWS, holds
from gruppo.envs.checking import tasks_for
from gruppo.envs.family import content
from gruppo.envs.players import episode, scripted
from gruppo.envs.replay import Replayed
from gruppo.envs.words import vocabulary
from gruppo.envs.world import Draws
from gruppo.tasks import Task, load_task

SPOKEN = [name for name in BUILT_IN if name != "python"]  # programs are no words
CELLS = [(name, level) for name in BUILT_IN for level in env_class(name).levels]
WINNABLE = [(name, level) for name, level in CELLS if "gold" in env_class(name).can]
FAST = ("lake", "sokoban", "household", "shop", "tictactoe", "kuhn")


def some(name: str, level: int, n: int = 5) -> list[Task]:
    tasks = load_task(name, level=level)
    splits = (tasks.train, tasks.held_out)
    return [split[i] for split in splits for i in range(min(n, len(split)))]


def played(name: str, tasks: list[Task], care: float) -> list[list[tuple[str, str, Any]]]:
    env = make_env(name)
    return [episode(env, task, scripted(env, care), i) for i, task in enumerate(tasks)]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_worlds_keep_the_laws(name: str, law) -> None:
    wrong = holds(law, env_class(name), tasks_for(name))
    assert not wrong
    assert (wrong is None) == (bool(law.needs) and not offers(make_env(name), law.needs))


@pytest.mark.parametrize(("name", "level"), WINNABLE)
def test_the_winning_player_wins_every_task(name: str, level: int) -> None:
    for steps in played(name, some(name, level), 1.0):
        last = steps[-1][2]
        assert last.done and not last.truncated
        assert last.rewards.get("task") == 1.0 or set(last.outcomes.values()) == {1.0}


@pytest.mark.parametrize(("name", "level"), [c for c in CELLS if c[0] in SPOKEN])
def test_every_word_is_in_the_vocabulary_and_texts_are_short(name: str, level: int) -> None:
    known = set(vocabulary())
    tasks = some(name, level, 4)
    for task, steps in zip(tasks * 2, played(name, tasks, 0.0) + played(name, tasks, 0.7), strict=True):
        assert set(task.prompt.split()) <= known
        for _, action, seen in steps:
            assert set(seen.text.split()) <= known and " ".join(seen.text.split()) == seen.text
            assert set(action.split()) <= known
            assert len(seen.text.split()) <= 12 and len(action.split()) <= 5


def test_the_vocabulary_is_small() -> None:
    words = vocabulary()
    assert len(words) <= 400 and len(set(words)) == len(words)
    assert all(word == word.lower() and not word.isspace() and " " not in word for word in words)


@pytest.mark.parametrize("name", SPOKEN)
def test_words_of_all_worlds_in_any_order_never_raise(name: str) -> None:
    draw, words, env = Draws("fuzz", name), vocabulary(), make_env(name)
    verbs = sorted({action.split()[0] for t in some(name, 1, 1) for action in (env.reset(t), env.actions())[1]})
    for task in some(name, 1, 2):
        env.reset(task)
        for _ in range(150):
            said = [draw.pick(verbs) if draw.below(2) else draw.pick(words) for _ in range(draw.below(5))]
            before = env.look()
            seen = env.step(" ".join(said))
            assert seen.valid or seen.done or (seen.state, seen.agent) == (before.state, before.agent)
            if seen.done:
                env.reset(task)


@pytest.mark.parametrize(("name", "level"), [c for c in CELLS if c[0] != "kuhn"])
def test_held_out_tasks_are_never_trained_on(name: str, level: int) -> None:
    train = load_task(name, level=level, seed=3).train
    held = load_task(name, level=level, seed=5).held_out
    kept = {content(held[i].meta["facts"]) for i in range(min(15, len(held)))}
    assert kept and not kept & {content(train[i].meta["facts"]) for i in range(min(30, len(train)))}


@pytest.mark.parametrize("name", ["guess", "tictactoe", "verify"])
def test_numbered_tasks_are_all_there_once(name: str) -> None:
    tasks = load_task(name, train_size=10**6, held_out_size=10**6)
    every = [content(t.meta["facts"]) for split in (tasks.train, tasks.held_out) for t in split]
    assert len(set(every)) == len(every) == env_class(name).count(env_class(name).default)


def test_household_has_the_turns_of_its_levels_and_states_recur() -> None:
    for level, most in ((1, 8), (2, 16), (3, 30), (4, 50)):
        tasks = some("household", level, 15)
        assert {t.meta["facts"]["turns"] for t in tasks} == {most}
        paths = played("household", tasks, 1.0)
        assert max(len(steps) - 1 for steps in paths) <= 0.75 * most
        long = [steps for steps in played("household", tasks, 0.3) if len(steps) > 7]
        assert sum(len({s.state for *_, s in steps}) < len(steps) for steps in long) >= 0.8 * len(long) > 0
    rooms = load_task("household", level=4).train[0].meta["facts"]
    assert len(rooms["doors"]) > len({room for door in rooms["doors"] for room in door})  # more doors than a ring


def test_household_can_be_won_from_wherever_a_careless_player_left_it() -> None:
    env = make_env("household")
    for i, task in enumerate(some("household", 3, 15)):
        task.meta["facts"]["turns"] = 200
        steps = episode(env, task, scripted(env, 0.0), i, turns=40)
        while not env.seen.done:
            env.step(env.gold())
        assert steps[-1][2].done or env.seen.rewards == {"task": 1.0}


def test_one_history_of_slips_for_one_lake() -> None:
    task = load_task("lake", level=4).train[0]
    env = make_env("lake")
    env.reset(task)
    ways = [env.slipped("up", turn) for turn in range(300)]
    assert 0.25 < ways.count("up") / 300 < 0.42 and set(ways) == {"up", "left", "right"}
    assert ways == [env.slipped("up", turn) for turn in range(300)]


def test_level_one_of_the_lake_has_no_slips() -> None:
    env = make_env("lake")
    env.reset(load_task("lake", level=1).train[0])
    assert not env.slips


def test_search_ranks_by_bm25() -> None:
    """Worked by hand: of two sentences of one length, the one with the rarer word of the query wins."""
    from gruppo.envs.corpus import corpus

    found = corpus(0)
    assert found.texts[found.search(["river", "of", "peru"])[0]].startswith("the river of peru is")
    assert found.search(["unheard"]) == ()
    scores = [found.score(("peru",), i) for i in range(len(found.texts))]
    assert scores.index(max(scores)) == found.search(["peru"])[0]
    assert sum(score > 0 for score in scores) == sum("peru" in text.split() for text in found.texts)


def test_every_thing_of_twenty_questions_can_be_told_apart() -> None:
    from gruppo.envs.twenty import KNOWN

    assert len(set(KNOWN.values())) == len(KNOWN)


def test_replaying_is_a_snapshot_for_worlds_without_one() -> None:
    class Bare:
        """The lake, without its snapshots."""

        def __init__(self) -> None:
            self.inner = make_env("lake")
            self.reset, self.step = self.inner.reset, self.inner.step

    env, task = Replayed(Bare()), load_task("lake", level=3).train[0]
    assert offers(env, "snapshot") and not offers(Bare(), "snapshot")
    env.reset(task)
    env.step("down")
    kept = env.snapshot()
    after = [env.step("right"), env.step("up")]
    assert env.restore(kept) and [env.step("right"), env.step("up")] == after
    assert env.replays == 1


@pytest.mark.parametrize("name", FAST)
def test_steps_a_second(name: str) -> None:
    """At least 20,000 on one core; half of that here, in CPU time, because the machine may be busy."""
    env, rates = make_env(name), []
    tasks = some(name, env_class(name).default, 5)
    scripts = [[a for _, a, _ in episode(env, t, scripted(env, 0.3), i)[1:]] for i, t in enumerate(tasks)]
    for _ in range(5):
        steps, begun = 0, time.process_time()
        while steps < 2_000:
            for task, actions in zip(tasks, scripts, strict=True):
                env.reset(task)
                for action in actions:
                    env.step(action)
                steps += len(actions)
        rates.append(steps / (time.process_time() - begun))
    assert max(rates) > 10_000, f"{name}: {max(rates):.0f} steps/s"
