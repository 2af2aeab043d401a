"""Environments of other libraries, each won by its gold path or a scripted player; skipped where one is missing."""

import importlib.util
import shutil
from functools import partial

import pytest

from gruppo.envs import env_class, make_env
from gruppo.envs.adapters import ADAPTERS, parts
from gruppo.envs.base import Seen
from gruppo.envs.check import LAWS, holds
from gruppo.envs.checking import tasks_for
from gruppo.envs.hosted import Hosted
from gruppo.tasks import load_task


def needs(module: str, java: bool = False):
    missing = importlib.util.find_spec(module) is None or (java and shutil.which("java") is None)
    return pytest.mark.skipif(missing, reason=f"{module} is not installed")


gymnasium, textarena, textworld = needs("gymnasium"), needs("textarena"), needs("textworld_express", java=True)
CHECKED = [
    pytest.param("env:gymnasium/FrozenLake-v1", marks=gymnasium),
    pytest.param("env:gymnasium/CartPole-v1", marks=gymnasium),
    pytest.param("env:textarena/TicTacToe-v0", marks=textarena),
    pytest.param("env:textarena/KuhnPoker-v0", marks=textarena),
    pytest.param("env:textarena/GuessTheNumber-v0", marks=textarena),
    pytest.param("env:textworld-express/coin?numLocations=2", marks=[textworld, pytest.mark.slow]),
]


@pytest.mark.parametrize("name", CHECKED)
def test_an_adapted_world_keeps_the_laws(name: str) -> None:
    tasks, make = tasks_for(name)[:3], env_class(name)
    for law in LAWS:
        assert not holds(law, make, tasks)


@gymnasium
def test_gymnasium_is_won_by_a_scripted_player() -> None:
    tasks = load_task("env:gymnasium/FrozenLake-v1", is_slippery=False)
    assert tasks.env == "env:gymnasium/FrozenLake-v1?is_slippery=false" and tasks.scorer == ""
    env = make_env(tasks.env)
    assert isinstance(env, Hosted) and "actions left down right up" in env.reset(tasks.train[0]).text
    seen = [env.step(way) for way in ["down", "down", "right", "down", "right", "right"]]  # the way of the 4 x 4 map
    assert [s.state for s in seen] == ["4", "8", "9", "13", "14", "15"]
    assert seen[-1].done and seen[-1].rewards == {"task": 1.0}
    env.close()


@gymnasium
def test_gymnasium_is_refused_where_it_cannot_be_text() -> None:
    with pytest.raises(ValueError, match="Did you mean 'FrozenLake-v1'"):
        env_class("env:gymnasium/FrozenLak-v1")()
    with pytest.raises(ValueError, match="actions of the kind Box"):
        env_class("env:gymnasium/Pendulum-v1")()
    with pytest.raises(ValueError, match="cannot be made"):
        env_class("env:gymnasium/FrozenLake-v1?colour=red")()


@textarena
def test_textarena_for_one_player_is_won_by_halving() -> None:
    tasks = load_task("env:textarena/GuessTheNumber-v0")
    env = make_env(tasks.env)
    for i in range(3):
        seen, low, high = env.reset(tasks.train[i]), 1, 20
        while not seen.done:
            n = (low + high) // 2
            seen = env.step(str(n))
            low, high = (n + 1, high) if "higher" in seen.text else (low, n - 1)
        assert seen.rewards == {"task": 1.0}
    assert env.starts == 1
    env.close()


@textarena
def test_textarena_for_two_players_is_won_by_a_line() -> None:
    tasks = load_task("env:textarena/TicTacToe-v0")
    env = make_env(tasks.env)
    seen: Seen = env.reset(tasks.train[0])
    assert env.seats == ("player0", "player1") and seen.agent == "player0" and "Tic Tac Toe" in seen.text
    for cell in ("0", "[3]", "1", "4"):
        agent = seen.agent
        seen = env.step(cell)
        assert seen.agent != agent and seen.valid
    assert "Tic Tac Toe" not in seen.text  # only what is new is said
    assert not env.step("0").valid and env.look().agent == "player0"
    assert env.step("2").outcomes == {"player0": 1.0, "player1": -1.0}
    env.close()


@textarena
def test_textarena_says_which_games_there_are() -> None:
    with pytest.raises(ValueError, match="Did you mean 'TicTacToe-v0"):
        env_class("env:textarena/TicTacTo-v0")()


@textworld
@pytest.mark.parametrize("game", ["coin", pytest.param("twc", marks=pytest.mark.slow)])
def test_textworld_express_is_won_by_its_gold_path(game: str) -> None:
    tasks = load_task(f"env:textworld-express/{game}")
    env = make_env(tasks.env)
    for task in (tasks.train[0], tasks.held_out[0]):
        seen = env.reset(task)
        while not seen.done:
            seen = env.step(env.gold())
        assert seen.rewards == {"task": 1.0} and not seen.error
    env.close()


@textworld
def test_two_games_share_one_java_server() -> None:
    tasks = load_task("env:textworld-express/coin?numLocations=3").train
    make = env_class(tasks[0].meta["env"])
    one, two = make(), make()
    one.reset(tasks[0])
    path = [one.gold()]
    alone = one.step(path[0])
    two.reset(tasks[1])
    two.step(two.gold())
    action = one.gold()
    after = one.step(action)  # replays its own actions first
    three = make()
    three.reset(tasks[0])
    assert [three.step(path[0]), three.step(action)] == [alone, after]


def test_names_of_adapters() -> None:
    assert parts("env:gymnasium/A/B-v1?x=1&y=no") == ("gymnasium", "A/B-v1", {"x": 1, "y": "no"})
    with pytest.raises(ValueError, match="Did you mean 'textarena'"):
        load_task("env:textaren/TicTacToe-v0")
    with pytest.raises(ValueError, match="names no environment"):
        load_task("env:gymnasium")
    with pytest.raises(ValueError, match="no option level"):
        load_task("env:gymnasium/FrozenLake-v1", level=2)


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_missing_library_is_said_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gruppo.tasks import imports

    def nothing(module: str):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    tasks = load_task(f"env:{name}/x")
    assert len(tasks.train) == 20_000 and len(tasks.held_out) == 1_000
    assert not {tasks.train[i].uid for i in range(300)} & {tasks.held_out[i].uid for i in range(300)}
    make = env_class(f"env:{name}/x")
    monkeypatch.setattr(imports, "importlib", type("None", (), {"import_module": staticmethod(nothing)}))
    if name == "textworld-express":
        from gruppo.envs.adapters.textworld_express import server

        make = partial(server, 999)  # the server is what needs the library
    with pytest.raises(ValueError, match=r"pip install 'gruppo\[envs\]'"):
        make()
