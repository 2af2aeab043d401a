"""Columns beside the episodes: they come back exactly, change no episode, and older files lack them."""

import math
from pathlib import Path

from making_episodes import random_episodes
from test_store import bits

from gruppo.data.store import BESIDE, load_episodes, load_with_beside, save_episodes

TEXTS = ["7+8=", "", "7+8=", "two\nlines", "é ∑ 😀", "half \ud83d"]
NUMBERS = [0.5, math.nan, -1e300, 0.1 + 0.2, -0.0, math.inf]


def test_they_come_back_exactly_and_change_no_episode(tmp_path: Path) -> None:
    episodes = random_episodes(0, len(TEXTS))
    beside = {"prompt": TEXTS, "reference": TEXTS[::-1], "advantage": NUMBERS}
    save_episodes(tmp_path / "e.arrow", episodes, beside)
    back, columns = load_with_beside(tmp_path / "e.arrow")
    assert bits(back) == bits(episodes) == bits(load_episodes(tmp_path / "e.arrow"))
    assert bits(columns) == bits(beside) and columns.keys() == BESIDE.keys()


def test_a_file_without_them_has_their_plain_values(tmp_path: Path) -> None:
    episodes = random_episodes(1, 3)
    save_episodes(tmp_path / "e.arrow", episodes)
    back, columns = load_with_beside(tmp_path / "e.arrow")
    assert bits(back) == bits(episodes)
    assert bits(columns) == bits({name: [value] * 3 for name, value in BESIDE.items()})


def test_of_no_episodes_too(tmp_path: Path) -> None:
    save_episodes(tmp_path / "e.arrow", [], {name: [] for name in BESIDE})
    assert load_with_beside(tmp_path / "e.arrow") == ([], {name: [] for name in BESIDE})


def test_a_prompt_of_many_answers_is_stored_once(tmp_path: Path) -> None:
    episodes, long = random_episodes(2, 50), "What is this? " * 200
    for name, prompts in (("same", [long] * 50), ("other", [f"{i}{long}" for i in range(50)])):
        save_episodes(tmp_path / name, episodes, {"prompt": prompts})
        assert load_with_beside(tmp_path / name)[1]["prompt"] == prompts
    assert (tmp_path / "same").stat().st_size < (tmp_path / "other").stat().st_size / 2
