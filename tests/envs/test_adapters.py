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
minigrid, open_spiel, scienceworld = needs("minigrid"), needs("pyspiel"), needs("scienceworld", java=True)
CHECKED = [
    pytest.param("env:gymnasium/FrozenLake-v1", marks=gymnasium),
    pytest.param("env:gymnasium/CartPole-v1", marks=gymnasium),
    pytest.param("env:minigrid/BabyAI-GoToRedBall-v0", marks=minigrid),
    pytest.param("env:minigrid/MiniGrid-DoorKey-5x5-v0", marks=minigrid),
    pytest.param("env:minigrid/MiniGrid-Dynamic-Obstacles-5x5-v0?turns=30", marks=minigrid),
    pytest.param("env:open_spiel/kuhn_poker", marks=open_spiel),
    pytest.param("env:open_spiel/hanabi", marks=open_spiel),
    pytest.param("env:open_spiel/matrix_rps", marks=open_spiel),
    pytest.param("env:open_spiel/2048?turns=30", marks=open_spiel),
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


# ---- minigrid


@minigrid
@pytest.mark.parametrize("level", ["GoToRedBall", "UnlockPickup", "PutNextLocal"])
def test_minigrid_is_won_by_the_bot(level: str) -> None:
    tasks = load_task(f"env:minigrid/BabyAI-{level}-v0")
    env = make_env(tasks.env)
    for i in range(3):
        seen = env.reset(tasks.train[i])
        while not seen.done:
            seen = env.step(env.gold())
        assert 0 < seen.rewards["task"] <= 1 and not seen.truncated
    env.close()


@minigrid
def test_minigrid_says_what_lies_where() -> None:
    """An empty room of 3 x 3, the goal in the corner: two steps forward and two to the right of the start."""
    tasks = load_task("env:minigrid/MiniGrid-Empty-5x5-v0")
    env = env_class(tasks.env)()
    seen = env.reset(tasks.train[0])
    assert (
        seen.text.splitlines()[1] == "you see a goal 2 forward 2 right, a wall 3 forward, a wall 1 left, a wall 3 right"
    )
    assert seen.text.endswith("you carry nothing\nactions: left, right, forward, pickup, drop, toggle, done")
    before = seen.state
    assert env.step("fly").valid is False and env.look().state == before
    assert env.step("right").state != before and "you see a goal 2 forward 2 left" in env.look().text
    assert env.step("left").state == before  # states recur
    for way in ("forward", "forward", "right", "forward", "forward"):
        seen = env.step(way)
    assert seen.done and seen.rewards["task"] > 0.9 and env.can == {"actions"}


@minigrid
def test_minigrid_says_what_is_carried_and_how_doors_are() -> None:
    tasks = load_task("env:minigrid/BabyAI-UnlockPickup-v0")
    env = env_class(tasks.env)()
    seen, said = env.reset(tasks.train[0]), list[str]()
    while not seen.done:
        seen = env.step(env.gold())
        said.append(seen.text)
    assert any("locked" in text for text in said) and any("you carry a " in text for text in said)
    with pytest.raises(ValueError, match="Did you mean 'BabyAI-GoToRedBall-v0'"):
        env_class("env:minigrid/BabyAI-GoToRedBal-v0")()
    with pytest.raises(ValueError, match="cannot be made with"):
        env_class("env:minigrid/MiniGrid-Empty-5x5-v0?colour=red")()


# ---- open_spiel


@open_spiel
def test_open_spiel_is_won_by_a_line() -> None:
    tasks = load_task("env:open_spiel/tic_tac_toe")
    env = make_env(tasks.env)
    seen: Seen = env.reset(tasks.train[0])
    assert env.seats == ("player0", "player1") and seen.text.startswith("...\n...\n...\nactions: x 0 0, x 0 1")
    for cell in ("x 0 0", "o(1,0)", "X 0 1", "o 1 1"):
        agent, seen = seen.agent, env.step(cell)
        assert seen.agent != agent and seen.valid
    assert not env.step("x 0 0").valid and env.look().agent == "player0"
    assert env.step("x 0 2").outcomes == {"player0": 1.0, "player1": -1.0}
    env.close()


@open_spiel
def test_open_spiel_draws_all_hands_and_a_second_illegal_action_loses() -> None:
    tasks, hands = load_task("env:open_spiel/kuhn_poker"), set[tuple[str, str]]()
    env = env_class(tasks.env)()
    for i in range(60):
        first = env.reset(tasks.train[i])
        hands.add((first.state, env.step("bet").state))
    assert len(hands) == 6  # a deal of two out of three cards
    env.reset(tasks.train[0])
    env.step("fly")
    seen = env.step("")
    assert seen.done and not seen.valid and seen.outcomes == {"player0": -2.0, "player1": 2.0}


@open_spiel
def test_open_spiel_refuses_what_it_cannot_play_again() -> None:
    with pytest.raises(ValueError, match="Did you mean 'kuhn_poker'"):
        env_class("env:open_spiel/kuhn_pokr")()
    with pytest.raises(ValueError, match=r"cannot be made with \{'colour': 1\}"):
        env_class("env:open_spiel/kuhn_poker?colour=1")()
    assert env_class("env:open_spiel/kuhn_poker?players=3")().seats == ("player0", "player1", "player2")


@open_spiel
def test_simultaneous_moves_are_not_seen_by_the_other() -> None:
    tasks = load_task("env:open_spiel/matrix_rps")
    env = env_class(tasks.env)()
    seen = {move: (env.reset(tasks.train[0]), env.step(move))[1] for move in ("rock", "paper")}
    assert seen["rock"] == seen["paper"] and seen["rock"].agent == "player1"
    assert env.step("scissors").outcomes == {"player0": -1.0, "player1": 1.0}


# ---- scienceworld


def test_lists_of_scienceworld_are_sorted() -> None:
    from gruppo.envs.adapters.scienceworld import in_order

    assert in_order("You see:\n\tb\n\ta\nAlso:\n\td\n\tc\n") == "You see:\n\ta\n\tb\nAlso:\n\tc\n\td"


@scienceworld
@pytest.mark.slow
def test_scienceworld_is_won_by_its_gold_path_and_is_the_same_again() -> None:
    name = "env:scienceworld/find-animal?simplifications=easy"
    tasks, make = load_task(name), env_class(name)
    for task in (tasks.train[0], tasks.held_out[0]):
        one, said = make(), list[str]()
        seen = [one.reset(task)]
        while not seen[-1].done:
            said.append(one.gold())
            seen.append(one.step(said[-1]))
        assert seen[-1].rewards == {"task": 1.0}
        two = make()
        assert [two.reset(task), *(two.step(action) for action in said)] == seen
    assert not make().reset(tasks.train[0]).done and one.step("look").done
    with pytest.raises(ValueError, match="Did you mean 'find-animal'"):
        env_class("env:scienceworld/find-animl")()


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
    if name == "scienceworld":
        from gruppo.envs.adapters.scienceworld import server

        make = server.__wrapped__  # not one that was started before
    with pytest.raises(ValueError, match=r"pip install 'gruppo\[envs\]'"):
        make()
