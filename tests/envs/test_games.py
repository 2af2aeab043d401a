"""Games: exact Kuhn poker, perfect tic-tac-toe, outcomes by seat, and rules that cannot be broken for gain."""

from itertools import pairwise, product

import pytest

from gruppo.envs import make_env
from gruppo.envs.kuhn import DEALS, strategy_player
from gruppo.envs.kuhn_exact import ALL, VALUE, best_response, equilibrium, exploitability, observed, value
from gruppo.envs.players import episode
from gruppo.envs.tictactoe import openings
from gruppo.envs.tictactoe import value as board_value
from gruppo.tasks import Task, load_task

GAMES = ("tictactoe", "kuhn", "negotiation", "verify")


def hand(first: int, second: int) -> Task:
    return Task("kuhn/x", "play poker", "", 1, "kuhn", meta={"facts": {"cards": [first, second], "turns": 8}})


def outcome(name: str, task: Task, *actions: str) -> dict[str, float]:
    env = make_env(name)
    env.reset(task)
    for action in actions:
        env.step(action)
    assert env.seen.done
    return dict(env.seen.outcomes)


# ---- Kuhn poker ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bluff", [0.0, 0.1, 0.25, 1 / 3])
def test_the_known_equilibria_have_the_known_value_and_cannot_be_exploited(bluff: float) -> None:
    """Kuhn 1950: the game is worth -1/18 to the first seat."""
    strategy = equilibrium(bluff)
    assert value(strategy, equilibrium(0.0)) == pytest.approx(-1 / 18, abs=1e-12) and pytest.approx(-1 / 18) == VALUE
    assert exploitability(strategy) == pytest.approx(0, abs=1e-12)
    assert best_response(strategy, 0)[0] == pytest.approx(-1 / 18) and best_response(strategy, 1)[0] == pytest.approx(
        1 / 18
    )


def test_exploitability_worked_by_hand() -> None:
    """Who always bets and calls wins 1 or 2 with every card; the best answer folds the jack, and calls with the king.

    Against it, as the second seat: jack folds (-1), king calls (+2), queen calls: wins against the jack, loses against
    the king (0). So it wins (-1 + 0 + 2) / 3 = 1/3. As the first seat: jack checks and folds (-1), queen 0, king +2.
    """
    bold = dict.fromkeys(ALL, 1.0)
    assert best_response(bold, 1)[0] == pytest.approx(1 / 3)
    assert best_response(bold, 0)[0] == pytest.approx(1 / 3)
    assert exploitability(bold) == pytest.approx(1 / 3)


def test_a_strategy_off_the_equilibrium_can_be_exploited() -> None:
    wrong = {**equilibrium(0.2), "king": 0.0}  # the bluff is no longer covered
    assert exploitability(wrong) > 0.01
    with pytest.raises(ValueError, match="queen bet"):
        exploitability({k: v for k, v in wrong.items() if k != "queen bet"})
    with pytest.raises(ValueError, match="1/3"):
        equilibrium(0.5)


def test_the_world_pays_what_the_exact_value_says() -> None:
    """All deals and all pure strategies of two kinds: the world's outcomes average to the exact value."""
    env = make_env("kuhn")
    for one, two in product((equilibrium(0.0), dict.fromkeys(ALL, 1.0), dict.fromkeys(ALL, 0.0)), repeat=2):
        pure = [{k: float(v >= 0.5) for k, v in s.items()} for s in (one, two)]
        players = {"first": strategy_player(pure[0]), "second": strategy_player(pure[1])}
        won = [episode(env, hand(*deal), players)[-1][2].outcomes["first"] for deal in DEALS]
        assert sum(won) / 6 == pytest.approx(value(*pure))


def test_kuhn_outcomes() -> None:
    assert outcome("kuhn", hand(2, 0), "check", "check") == {"first": 1, "second": -1}
    assert outcome("kuhn", hand(2, 0), "bet", "call") == {"first": 2, "second": -2}
    assert outcome("kuhn", hand(0, 2), "bet", "fold") == {"first": 1, "second": -1}
    assert outcome("kuhn", hand(2, 0), "check", "bet", "fold") == {"first": -1, "second": 1}
    assert outcome("kuhn", hand(0, 1), "check", "bet", "call") == {"first": -2, "second": 2}


def test_a_seat_sees_its_own_card_only() -> None:
    env = make_env("kuhn")
    for second in (1, 2):
        seen = env.reset(hand(0, second))
        assert (seen.text, seen.state, seen.agent) == ("you hold jack", "jack", "first")
    env.reset(hand(0, 2))
    assert env.step("bet").text == "you hold king they bet"
    env.reset(hand(1, 2))
    assert env.step("bet").text == "you hold king they bet"


def test_the_strategy_of_played_games_is_found_again() -> None:
    env, bold = make_env("kuhn"), equilibrium(0.2)
    player, pairs = strategy_player(bold), []
    for i in range(3_000):
        steps = episode(env, hand(*DEALS[i % 6]), player, i)
        pairs += [(before.state, action) for (_, _, before), (_, action, _) in pairwise(steps)]
    found = observed(pairs)
    assert all(abs(found[key] - bold[key]) < 0.1 for key in ALL)
    assert exploitability(found) < 0.05
    assert observed([])["king"] == 0.5


# ---- tic-tac-toe ---------------------------------------------------------------------------------------


def test_the_perfect_player_never_does_worse_than_the_board_is_worth() -> None:
    env = make_env("tictactoe")
    perfect = env.players["perfect"]
    for i, task in enumerate(load_task("tictactoe", level=2).train):
        worth = board_value(task.meta["facts"]["board"])  # of the side to move
        first = env.reset(task).agent
        other = next(s for s in env.seats if s != first)
        for draw in range(3):
            last = episode(env, task, {first: perfect, other: env.players["random"]}, 10 * i + draw)[-1][2]
            assert last.outcomes[first] >= worth
        both = episode(env, task, perfect, i)[-1][2]
        assert both.outcomes[first] == worth and sum(both.outcomes.values()) == 0


def test_known_facts_of_tictactoe() -> None:
    assert board_value(".........") == 0  # a draw
    assert [len(openings(n)) for n in (0, 1, 2, 4)] == [1, 9, 72, 756]


def test_a_line_wins_and_a_full_board_is_a_draw() -> None:
    task = Task("t", "", "", 1, "t", meta={"facts": {"board": "xx.oo....", "turns": 18}})
    env = make_env("tictactoe")
    assert env.reset(task).text == "you are x x x 3 o o 6 7 8 9"
    assert outcome("tictactoe", task, "3") == {"cross": 1, "nought": -1}
    full = Task("t", "", "", 1, "t", meta={"facts": {"board": "xoxxooox.", "turns": 18}})
    assert outcome("tictactoe", full, "9") == {"cross": 0, "nought": 0}


# ---- all games -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GAMES)
def test_breaking_the_rules_twice_in_a_row_loses_and_never_pays(name: str) -> None:
    env = make_env(name)
    task = load_task(name).train[0]
    seat = env.reset(task).agent
    first = env.step("nonsense")
    assert not first.valid and not first.done and first.agent == seat
    last = env.step("more nonsense")
    assert last.done and last.outcomes[seat] == min(last.outcomes.values()) < 0
    assert env.step("1").outcomes == {}


@pytest.mark.parametrize("name", ["tictactoe", "kuhn"])
def test_zero_sum(name: str) -> None:
    env = make_env(name)
    tasks = load_task(name).train
    for i in range(60):
        assert sum(episode(env, tasks[i], env.players["random"], i)[-1][2].outcomes.values()) == 0


def test_care_pays() -> None:
    """Players are ordered by their care, from the same openings."""
    env, tasks = make_env("tictactoe"), load_task("tictactoe", level=2).train
    won = {}
    for name in ("perfect", "careful", "careless", "random"):
        players = {"cross": env.players[name], "nought": env.players["careful"]}
        won[name] = sum(episode(env, tasks[i % 58], players, i)[-1][2].outcomes["cross"] for i in range(174)) / 174
    assert won["perfect"] > won["careful"] > won["careless"] > won["random"]


def test_a_deal_pays_both_sides_and_no_deal_nothing() -> None:
    task = Task("n", "", "", 1, "n", meta={"facts": {"value": 20, "cost": 5, "range": 20, "turns": 4}})
    assert outcome("negotiation", task, "offer 10", "accept") == {"buyer": 0.5, "seller": 0.25}
    assert outcome("negotiation", task, "offer 10", "leave") == {"buyer": 0, "seller": 0}
    assert outcome("negotiation", task, "offer 3", "offer 19", "offer 4", "offer 18") == {"buyer": 0, "seller": 0}
    env = make_env("negotiation")
    assert env.reset(task).text == "you buy value 20"
    assert env.step("offer 7").text == "you sell cost 5 they offer 7"
    assert not env.step("offer 21").valid  # beyond the highest price


def test_two_fair_players_agree_where_there_is_room() -> None:
    env = make_env("negotiation")
    for worth, cost in ((20, 1), (18, 3), (15, 2)):
        task = Task("n", "", "", 1, "n", meta={"facts": {"value": worth, "cost": cost, "range": 20, "turns": 8}})
        last = episode(env, task, env.players["fair"])[-1][2]
        assert last.text == "deal" and min(last.outcomes.values()) > 0


def test_solver_and_verifier_are_paid_apart() -> None:
    task = Task("v", "", "", 1, "v", meta={"facts": {"a": 3, "b": 4, "turns": 8}})
    assert outcome("verify", task, "7", "yes") == {"solver": 1, "verifier": 1}
    assert outcome("verify", task, "8", "yes") == {"solver": 0, "verifier": 0}
    assert outcome("verify", task, "8", "no", "7", "yes") == {"solver": 1, "verifier": 1}
    assert outcome("verify", task, "8", "no", "9", "no", "7", "no") == {"solver": 1, "verifier": 0}
    env = make_env("verify")
    assert env.reset(task).agent == "solver" and env.step("8").agent == "verifier"
    assert env.look().text == "3 + 4 = 8" and env.step("no").text == "no try again 3 + 4 ="
