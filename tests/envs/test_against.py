"""`task.against`: a scripted player in the other seats, in evaluation and in training."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gruppo.cli import main
from gruppo.engines import NativeEngine
from gruppo.envs.against import SEAT, against, placed
from gruppo.envs.base import play
from gruppo.envs.players import episode, opponent
from gruppo.envs.registry import env_class, made, make_env
from gruppo.envs.wrappers import OVER, Against
from gruppo.methods import method
from gruppo.policies import load_policy, load_tokenizer
from gruppo.stages import Sampling
from gruppo.stages.converse import Converse
from gruppo.tasks import Task, TaskConfig, TaskSet, load_task
from gruppo.train.evaluate import Evaluation, evaluate
from gruppo.train.worlds import refuse_other_worlds, refuse_strangers

GAMES = ("kuhn", "negotiation", "tictactoe", "verify")


def evaluated(tasks: TaskSet, prompts: int, samples: int = 1) -> Evaluation:
    policy, tokenizer = load_policy("tiny-agent"), load_tokenizer("tiny-agent")
    engine = NativeEngine({"policy": policy}, eos=tokenizer.stops)
    how = Sampling(max_tokens=8)
    return asyncio.run(evaluate(engine, tokenizer, None, tasks, how, prompts, samples, play=Converse()))


# ---- seats


@pytest.mark.parametrize("name", GAMES)
def test_seats_take_turns_in_every_level(name: str) -> None:
    levels = sorted(env_class(name).levels)
    tasks = load_task(name, level=f"{levels[0]}-{levels[-1]}", against="random")
    for split in (tasks.train, tasks.held_out):
        seats = Counter((t.level, t.meta[SEAT]) for t in split[: 40 * len(levels)])
        for n in levels:
            counts = [seats[n, s] for s in env_class(name).seats]
            moved = 0.2 * sum(counts) if name in ("negotiation", "tictactoe") else 0  # would be over before they begin
            assert sum(counts) and max(counts) - min(counts) <= 1 + 2 * moved
    plain = load_task(name, level=f"{levels[0]}-{levels[-1]}")
    assert [t.uid for t in tasks.train[:20]] == [t.uid for t in plain.train[:20]]


def test_the_policy_always_has_something_to_decide() -> None:
    """With four stones on the board a perfect player may win with its first one: the policy then begins."""
    tasks = load_task("tictactoe", level=1, against="gold")
    assert not any(placed(made("tictactoe"), t).reset(t).done for t in tasks.held_out[:100])
    task = Task("t", "", "", 1, "t", meta={"env": "tictactoe", "facts": {"board": "xx.oo....", "turns": 18}})
    seen = Against(made("tictactoe"), "gold", "nought").reset(task)
    assert seen.done and seen.error.startswith(OVER) and not seen.rewards


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("player", ["random", "gold:0.5"])
def test_a_game_against_a_player_is_a_pure_function_of_task_and_actions(name: str, player: str) -> None:
    for task in load_task(name, against=player).train[:10]:
        world = placed(make_env(name), task)
        steps = episode(world, task, opponent(world.env, "random"))
        again = play(placed(make_env(name), task), task, [action for _, action, _ in steps[1:]])
        assert [seen for *_, seen in steps] == again and set(again[-1].rewards) == {"task"}
        assert all(seen.agent == "policy" and not seen.outcomes for seen in again)


# ---- players


def test_perfect_players_draw_from_either_seat() -> None:
    for task in load_task("tictactoe", level=3, against="gold").train[:9]:
        steps = episode(placed(made("tictactoe"), task), task, opponent(made("tictactoe"), "perfect"))
        assert steps[-1][2].rewards == {"task": 0.0} and steps[-1][2].text == "draw"


@pytest.mark.parametrize("name", GAMES)
def test_care_goes_from_any_action_to_the_best(name: str) -> None:
    world = made(name)
    seen = world.reset(load_task(name).train[0])
    gold, whatever = (opponent(world, p) for p in ("gold", "random"))
    assert gold is next(iter(world.players.values()))
    keys = range(40)
    assert [opponent(world, "gold:1")(seen, k) for k in keys] == [gold(seen, k) for k in keys]
    assert [opponent(world, "gold:0")(seen, k) for k in keys] == [whatever(seen, k) for k in keys]
    half = [opponent(world, "gold:0.5")(seen, k) for k in keys]
    assert all(action in (gold(seen, k), whatever(seen, k)) for k, action in zip(keys, half, strict=True))


class Bare:
    """A game of one's own, which names its actions and nothing else."""

    seats, can = ("a", "b"), frozenset({"actions"})

    def actions(self) -> list[str]:
        return ["left", "right"]


def test_players_of_a_game_that_has_none() -> None:
    env = Bare()
    assert {opponent(env, "random")(None, k) for k in range(20)} == {"left", "right"}  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^player='gold': Bare has no such player. Players: random.$"):
        opponent(env, "gold")
    env.can = frozenset()
    with pytest.raises(ValueError, match="has no players and names no actions"):
        opponent(env, "random")


@pytest.mark.parametrize(
    ("task", "player", "words"),
    [
        ("tictactoe", "randm", r"task.against='randm': tictactoe has no such player. Did you mean 'random'\?"),
        ("tictactoe", "gold:1.7", r"task.against='gold:1.7': '1.7' is no share from 0 to 1"),
        ("tictactoe", "gold:", "is no share from 0 to 1, so it is unclear how careful the player is. Write gold:0.7."),
        ("household", "random", "task.against=random: task=household has one seat.*kuhn, negotiation, tictactoe"),
        ("addition", "gold", "task=addition is not a game"),
        ("mix:kuhn+tictactoe", "equilibrium", "tictactoe has no such player"),
    ],
)
def test_what_cannot_be_played_is_refused(task: str, player: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_task(task, against=player)


def test_players_of_a_game_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that need its code are refused; any action is asked of the process."""
    monkeypatch.chdir(tmp_path)
    Path("ours.py").write_text(
        "from gruppo.envs.tictactoe import TicTacToe\n\nclass Ours(TicTacToe):\n    name = 'ours'\n"
    )
    whole = TaskSet("x", [Task("t", "", "", 1, "t")], [], "", 8, env="./ours.py:Ours")
    for player in ("gold", "perfect", "gold:0.5"):
        words = f"^task.against={player}: not with task.hosted=yes, as this player is a function of ./ours.py:Ours"
        with pytest.raises(ValueError, match=words):
            against(whole, TaskConfig("x", against=player, hosted=True))
        assert len(against(whole, TaskConfig("x", against=player)).train) == 1
    assert len(against(whole, TaskConfig("x", against="random", hosted=True)).train) == 1
    with pytest.raises(ValueError, match=r"ours has no such player\. Did you mean 'random'"):
        against(whole, TaskConfig("x", against="randm", hosted=True))


@pytest.mark.parametrize("name", ["spiral", "mars", "drmas"])
def test_methods_of_several_seats_are_refused(name: str) -> None:
    tasks = load_task("kuhn", against="random")
    with pytest.raises(ValueError, match=rf"^{name} with task.against=random: .*would play one of them"):
        refuse_other_worlds(method(name), tasks, "random")
    refuse_other_worlds(method("grpo"), tasks, "random")


def test_writers_of_seats_are_refused() -> None:
    two = method("drmas").but(writers={"second": "other"})
    with pytest.raises(ValueError, match=r"with task.against=random the policy plays one seat"):
        refuse_strangers(two, load_task("kuhn", against="random"), TaskConfig("kuhn", against="random"))


# ---- figures


def test_results_are_those_of_the_games() -> None:
    e = evaluated(load_task("tictactoe", against="random"), 24, samples=2)
    outcomes = [x.total for x in e.episodes]
    a = e.against
    assert a["player"] == "random" and a["games"] == 48 == len(outcomes)
    assert [a[k] * 48 for k in ("won", "drawn", "lost")] == pytest.approx(
        [outcomes.count(1.0), outcomes.count(0.0), outcomes.count(-1.0)]
    )
    assert a["won"] + a["drawn"] + a["lost"] == pytest.approx(1)
    assert a["return"] == pytest.approx(a["won"] - a["lost"]) == pytest.approx(e.accuracy)
    parts = a["by_seat"]
    assert set(parts) == {"cross", "nought"} and sum(of["games"] for of in parts.values()) == 48
    for k in ("won", "return"):
        assert sum(of["games"] * of[k] for of in parts.values()) == pytest.approx(48 * a[k])
    assert {k: e.logged()[f"held_out/{k}"] for k in ("won", "drawn", "lost")} == {
        k: a[k] for k in ("won", "drawn", "lost")
    }
    assert not e.by_agent and not e.by_task and not e.exact


def test_in_a_mixture_the_worlds_with_one_seat_stay_as_they_are() -> None:
    e = evaluated(load_task("mix:kuhn+guess", against="gold:0.5"), 8)
    assert e.against["games"] == 4 and not e.by_task["guess/1"]["against"]
    assert e.by_task["kuhn/1"]["against"] == e.against


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None, no_picture: None) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_against_a_player_and_its_evaluation(here: None, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("prompts=4", "samples=4", "steps=1", "eval.prompts=12", "save.tensorboard=no", "save.name=a")
    assert main(["train", "task=tictactoe", "task.against=gold:0.7", "method=grpo", *small]) == 0
    rows: list[dict[str, Any]] = [json.loads(x) for x in Path("runs/a/metrics.jsonl").read_text().splitlines()]
    assert all(r["held_out/won"] + r["held_out/drawn"] + r["held_out/lost"] == pytest.approx(1) for r in rows)
    capsys.readouterr()
    assert main(["eval", "runs/a"]) == 0  # as the run did it
    words = capsys.readouterr().out
    assert "runs/a on tictactoe: return against gold:0.7 " in words and "  against gold:0.7: won " in words
    assert "    as cross: won " in words and "    as nought: won " in words
    assert main(["eval", "runs/a", "task.against=random", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["against"]["player"] == "random" and facts["against"]["games"] == 12
    assert main(["episodes", "runs/a", "--limit", "1"]) == 0
    assert " s · " in capsys.readouterr().out  # seconds of its turns
