"""`gruppo env check`: each law finds the environment that breaks it, says so in a sentence, and praises no other."""

from pathlib import Path

import bad_worlds
import pytest

from gruppo.cli import main
from gruppo.envs.check import LAWS, holds
from gruppo.envs.checking import checked, tasks_for
from gruppo.envs.registry import BUILT_IN, env_class
from gruppo.tasks import load_task

FILE = Path(bad_worlds.__file__)
BAD = [  # the world, the law that it breaks first, and a part of the sentence
    ("Raises", "hostile", "step() raised AttributeError"),
    ("RaisesOften", "text", "step() raised KeyError"),
    ("RaisesInReset", "text", "It must build every task that it is given"),
    ("RaisesInGold", "stable", "leave 'gold' out of `can`"),
    ("Endless", "ends", "had not ended after 1,000 turns"),
    ("NaN", "rewards", "is nan, which is no finite number"),
    ("NoText", "text", "Seen.text is None and no text"),
    ("Empty", "text", "the agent sees nothing"),
    ("NoSeen", "text", "it gave str and not a Seen"),
    ("Ticking", "stable", "changed between two looks"),
    ("Clock", "determinism", "gave another state"),
    ("Forgets", "snapshot", "restoring a snapshot"),
    ("Promises", "can", "there is no method snapshot"),
    ("Loses", "gold", "does not win"),
    ("Unjudged", "rewards", "without a reward named 'task'"),
    ("PaysTwice", "seats", "paid again"),
    ("OneSeat", "seats", "the seat 'right' never acts"),
    ("Stranger", "text", "Name it in `seats`"),
]


def wrong(name: str) -> dict[str, list[str] | None]:
    tasks = tasks_for(f"{FILE}:{name}")
    return {law.name: holds(law, getattr(bad_worlds, name), tasks) for law in LAWS}


def test_a_good_world_keeps_every_law() -> None:
    assert wrong("Good") == {law.name: [] for law in LAWS}


@pytest.mark.parametrize(("name", "law", "part"), BAD)
def test_a_broken_law_is_a_sentence_with_the_remedy(name: str, law: str, part: str) -> None:
    found = wrong(name)
    first = next(law for law, said in found.items() if said)
    assert first == law
    sentences = found[law]
    assert sentences and part in sentences[0] and sentences[0].endswith(".") and sentences[0].count(".") >= 1


def test_every_law_is_broken_by_some_world() -> None:
    assert {law for _, law, _ in BAD} == {law.name for law in LAWS}


def test_a_world_that_hangs_is_killed_and_the_rest_is_not_checked() -> None:
    found = list(checked(f"{FILE}:Hangs", tasks_for(f"{FILE}:Hangs"), seconds=0.3))
    assert [law for law, _ in found] == ["text"] and found[0][1] and "it hangs: no answer in 0.3 s" in found[0][1][0]


def test_a_world_that_exits_is_a_sentence() -> None:
    [(law, said)] = checked(f"{FILE}:Exits", tasks_for(f"{FILE}:Exits"))
    assert law == "text" and said and "exit code 3" in said[0]


def test_the_command_says_what_is_wrong_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "check", f"{FILE}:Loses"]) == 1
    out = capsys.readouterr().out
    assert "broken  gold" in out and "does not win" in out and "9 laws hold, 1 broken" in out
    assert main(["env", "check", f"{FILE}:Good"]) == 0
    assert main(["env", "check", "kuhn", "--json"]) == 0
    assert '"gold": null' in capsys.readouterr().out


def test_a_cause_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "check", f"{FILE}:RaisesInReset"]) == 1
    out = capsys.readouterr().out
    assert out.count("KeyError") == 1 and out.count("the same as under text") == 8
    assert "An action that means nothing" not in out and "1 law holds, 9 broken; 2 tasks" in out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["check", "housold"], "Did you mean 'household'"),
        (["check"], "no name was given"),
        (["chekc", "lake"], "Did you mean 'check'"),
        (["check", f"{FILE}:NoStep"], "has no step"),
        (["check", f"{FILE}:FILE"], "there is no 'FILE'"),
        (["check", f"{FILE}:WantsMore"], "cannot be made without arguments"),
        (["play", f"{FILE}:WantsMore", "--player", "random"], "cannot be made without arguments"),
        (["check", f"{FILE}:BadTasks"], "its tasks() failed"),
        (["check", f"{FILE}:NoTasks"], "every law would hold"),
        (["check", "lake", "--seconds", "0"], "positive"),
        (["play", "lake", "--player", "glod"], "Did you mean 'gold'"),
        (["play", "lake", "--level", "9"], "level"),
        (["check", "household", "--level", "9"], "household has the levels 1 to 4"),
        (["check", f"{FILE}:Good", "--level", "2"], "has no levels"),
        (["play", f"{FILE}:Good", "--level", "2"], "has no levels"),
        (["play", "lake", "--number", "-1"], "--number -1"),
        (["play", "lake", "--player", "gold", "--care", "2"], "no probability"),
    ],
)
def test_mistakes_are_answered_with_the_remedy(words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", *words]) == 2
    assert part in capsys.readouterr().err


def test_list_and_play_are_readable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert "household" in out and "kuhn" in out and "2 seats" in out
    assert main(["env", "play", "household", "--player", "gold"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("household: put ") and "> open " in out and "you win   [task +1]" in out
    assert main(["env", "play", "kuhn", "--player", "honest"]) == 0
    assert "first> " in capsys.readouterr().out


def test_the_level_that_is_asked_for_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr("gruppo.cli.env.checked", lambda _, tasks, __: seen.extend(t.level for t in tasks) or ())
    assert main(["env", "check", "household", "--level", "2"]) == 0
    assert len(seen) == 6 and set(seen) == {2}


@pytest.mark.parametrize("world", [name for name in BUILT_IN if len(env_class(name).seats) > 1])
def test_play_takes_the_players_that_task_against_takes(world: str, capsys: pytest.CaptureFixture[str]) -> None:
    for player in ("gold", "random", "gold:0.5", *env_class(world).players):
        load_task(world, against=player)
        assert main(["env", "play", world, "--player", player]) == 0, player
    assert main(["env", "play", world, "--player", "gold:2"]) == 2
    assert "--player 'gold:2'" in capsys.readouterr().err


def test_a_person_can_play(capsys: pytest.CaptureFixture[str]) -> None:
    from gruppo.cli.env import typed
    from gruppo.envs import make_env

    lines = iter(["", "50", "banana"])

    def ask(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    assert typed(make_env("guess"), load_task("guess").train[0], ask) == 0
    out = capsys.readouterr().out
    assert "than 50" in out and "nothing happens   [invalid]" in out and " …" in out


def test_playing_a_world_that_raises_shows_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "play", f"{FILE}:RaisesOften", "--player", "gold"]) == 0
    assert "[invalid, error: raised: KeyError: 'stop']" in capsys.readouterr().out


def test_a_world_of_ones_own_is_played_under_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "play", f"{FILE}:Good", "--player", "gold"]) == 0
    assert capsys.readouterr().out.startswith("Good: ")
