"""The rules of the worlds with one seat, by worked examples."""

from random import Random
from typing import Any

import pytest

from gruppo.envs import make_env
from gruppo.envs.base import Seen
from gruppo.tasks import Task, load_task

HOUSE = {
    "start": "hall",
    "doors": [["hall", "kitchen"], ["kitchen", "attic"], ["attic", "hall"]],
    "places": {"box": "hall", "safe": "kitchen", "shelf": "attic", "drawer": "attic"},
    "things": {"cup": "safe", "hat": "box", "key": "shelf"},
    "goals": [["cup", "box"]],
    "locked": ["safe"],
    "turns": 40,
}
GOODS = [
    {"kind": "cup", "colour": "red", "price": 30, "sizes": ["small", "large"]},
    {"kind": "cup", "colour": "red", "price": 12, "sizes": ["small", "large"]},
    {"kind": "cup", "colour": "blue", "price": 9, "sizes": ["large"]},
    {"kind": "cup", "colour": "red", "price": 5, "sizes": ["small"]},
    {"kind": "hat", "colour": "red", "price": 5, "sizes": ["large"]},
]
SHOP = {"goods": GOODS, "want": {"kind": "cup", "colour": "red", "under": 20, "size": "large"}, "turns": 20}


def played(name: str, facts: dict[str, Any], *actions: str) -> list[Seen]:
    env = make_env(name)
    seen = [env.reset(Task("t", "", "", 1, "t", meta={"facts": facts}))]
    return seen + [env.step(action) for action in actions]


def texts(name: str, facts: dict[str, Any], *actions: str) -> list[str]:
    return [s.text for s in played(name, facts, *actions)]


NOTHING = "nothing happens"


def test_a_walk_through_a_house() -> None:
    walk = [
        ("take hat", NOTHING),  # the box is closed
        ("open box", "box has hat"),
        ("put hat in box", NOTHING),  # nobody holds it
        ("take hat", "you take hat"),
        ("go kitchen", "in kitchen with hat safe to hall attic"),
        ("put hat in box", NOTHING),  # the box is in another room
        ("open safe", "safe is locked"),
        ("go attic", "in attic with hat shelf drawer to kitchen hall"),
        ("open shelf", "shelf has key"),
        ("take key", "you take key"),  # into the pocket, although the hands are full
        ("put hat in shelf", "you put hat in shelf"),
        ("close shelf", "shelf is closed"),
        ("take hat", NOTHING),
    ]
    got = texts("household", HOUSE, *(action for action, _ in walk))
    assert got == ["in hall box to kitchen attic", *(said for _, said in walk)]


def test_a_house_is_won_when_everything_is_in_its_place() -> None:
    way = ["go attic", "open shelf", "take key", "go kitchen", "open safe", "take cup", "go hall", "open box"]
    *before, last = played("household", HOUSE, *way, "put cup in box")
    assert not any(s.done or s.rewards for s in before) and last.done and last.rewards == {"task": 1.0}
    cups = played("household", HOUSE, *way[:-1], "put cup in box")[-1]
    assert not cups.valid and not cups.done  # the box is closed


def test_two_things_cannot_be_carried() -> None:
    two = {**HOUSE, "things": {"cup": "box", "hat": "box"}, "goals": [["cup", "shelf"]], "locked": []}
    assert texts("household", two, "open box", "take cup", "take hat")[-1] == NOTHING


def test_a_search_goes_on_from_the_last_text() -> None:
    """With free hands what is open and empty is left out; with full hands it is a place to put something."""
    walk = [
        ("go attic", "in attic shelf drawer to kitchen hall"),
        ("open drawer", "drawer is empty in attic shelf to kitchen hall"),
        ("look", "in attic shelf to kitchen hall"),
        ("open shelf", "shelf has key"),
        ("look", "in attic shelf open to kitchen hall"),
        ("take key", "you take key"),
        ("look", "in attic to kitchen hall"),
        ("go hall", "in hall box to kitchen attic"),
        ("open box", "box has hat"),
        ("take hat", "you take hat"),
        ("open box", "box is empty"),
        ("look", "in hall with hat box open to kitchen attic"),
    ]
    got = texts("household", HOUSE, *(action for action, _ in walk))
    assert got[1:] == [said for _, said in walk]


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_a_room_and_an_empty_container_name_what_is_closed_here(level: int) -> None:
    """A law, in houses that are played at random: nothing has to be remembered to know what can still be opened."""
    draw, shown = Random(level), 0
    for task in load_task("household", level=level).train[:20]:
        env = make_env("household")
        seen = env.reset(task)
        while not seen.done:
            words, room = seen.text.split(), env.now.room
            if "in" in words and not env.now.held and words[:2] != ["you", "put"]:
                listed = words[words.index("in") + 2 : words.index("to")]
                closed = [c for c in env.house.here[room] if c not in env.now.opened]
                assert [c for c in listed if c in closed] == closed
                shown += 1
            seen = env.step(draw.choice(env.actions()))
    assert shown > 50


@pytest.mark.parametrize(
    "action", ["go attic go", "go cellar", "open shelf", "close box", "take cup", "put cup", "dance"]
)
def test_what_is_not_possible_in_a_house_is_invalid_and_changes_nothing(action: str) -> None:
    first, seen = played("household", HOUSE, action)
    assert not seen.valid and seen.text == NOTHING and seen.state == first.state


BOARD = ["######", "#@$ .#", "#  $.#", "######"]


def test_boxes_are_pushed_one_at_a_time_and_never_pulled() -> None:
    board = {"board": ["#######", "#@$$ .#", "#    .#", "#######"], "turns": 30}
    first, seen = played("sokoban", board, "right")
    assert seen.state == first.state and seen.valid  # two in a row do not move
    assert played("sokoban", {"board": BOARD, "turns": 30}, "right", "left")[-1].state == "1,1;1,3;2,3"  # it stays


def test_walls_stop_boxes_and_people() -> None:
    board = {"board": ["####", "#@$#", "#. #", "####"], "turns": 30}
    first, up, right = played("sokoban", board, "up", "right")
    assert first.state == up.state == right.state


def test_sokoban_is_won_with_the_last_box() -> None:
    seen = played("sokoban", {"board": BOARD, "turns": 30}, "right", "right", "left", "down", "right")
    assert [s.done for s in seen] == [False] * 5 + [True] and seen[-1].rewards == {"task": 1.0}


def test_a_lake() -> None:
    lake = {"size": 3, "start": 0, "goal": 8, "holes": [4, 2], "slippery": False, "turns": 5}
    assert texts("lake", lake, "up", "down", "down") == [
        "at 1 1 goal 3 3",
        "at 1 1 goal 3 3",  # the edge
        "at 2 1 goal 3 3 hole right",
        "at 3 1 goal 3 3",
    ]
    assert played("lake", lake, "down", "right")[-1].rewards == {"task": 0.0}
    assert played("lake", lake, "down", "down", "right", "right")[-1].rewards == {"task": 1.0}
    late = played("lake", lake, "up", "up", "up", "up", "down")[-1]
    assert late.done and late.truncated and late.rewards == {"task": 0.0}


def test_a_shop() -> None:
    got = texts("shop", SHOP, "find cup", "next", "back", "open 2", "choose medium", "choose large", "buy")
    assert got == [
        "shop",
        "1 red 30 2 red 12 3 blue 9 next",
        "1 red 5",
        "1 red 30 2 red 12 3 blue 9 next",
        "red cup 12 small large",
        NOTHING,
        "red cup 12 size large",
        "you win",
    ]


@pytest.mark.parametrize(
    "way",
    [
        ["find cup", "open 1", "choose large", "buy"],  # too expensive
        ["find cup", "open 2", "buy"],  # no size
        ["find cup", "open 2", "choose small", "buy"],  # another size
        ["find cup", "open 3", "choose large", "buy"],  # another colour
        ["find hat", "open 1", "choose large", "buy"],  # another kind
    ],
)
def test_what_was_not_asked_for_loses(way: list[str]) -> None:
    last = played("shop", SHOP, *way)[-1]
    assert last.done and last.rewards == {"task": 0.0}


def test_a_calculator() -> None:
    facts = {"terms": [3, "+", 4, "*", 5], "turns": 9}
    assert texts("calculator", facts, "3 + 4", "7 * 5", "99 * 99", "3 - 4", "3 / 4", "answer 35") == [
        "ready",
        "= 7",
        "= 35",
        "too large",
        "too small",
        NOTHING,
        "you win",
    ]
    assert played("calculator", facts, "answer 23")[-1].rewards == {"task": 0.0}


def test_twenty_questions() -> None:
    facts = {"among": ["dog", "cup"], "secret": "dog", "turns": 5}
    assert texts("twenty", facts, "is it alive", "is it made", "is it dog", "it is dog") == [
        "ask",
        "yes",
        "no",
        NOTHING,
        "you win",
    ]
    assert played("twenty", facts, "it is cup")[-1].done


def test_a_search_goes_from_hop_to_hop() -> None:
    facts = {"corpus": 0, "person": "ann", "path": ["firm", "city"], "turns": 9}
    firm = texts("search", facts, "search firm of ann")[-1].split()[-1]
    city = texts("search", facts, f"search city of {firm}")[-1].split()[-1]
    assert played("search", facts, f"answer {city}")[-1].rewards == {"task": 1.0}
    assert played("search", facts, f"answer {firm}")[-1].rewards == {"task": 0.0}
    shown = texts("search", facts, "search ann", "next", "next", "next")
    assert len({*shown[1:4]}) == 3 and all("ann" in text for text in shown[1:4]) and shown[4] == NOTHING
    assert texts("search", facts, "search xyz")[-1] == "nothing found"
