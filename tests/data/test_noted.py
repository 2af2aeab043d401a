"""What a replay remembers: the columns of an episode as notes, at their own level, and back again."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from making_episodes import random_episodes

from gruppo.data import Status, Use, pack
from gruppo.stages.walk import noted


@pytest.mark.parametrize("seed", range(8))
def test_columns_of_every_level_come_back_as_they_were_noted(seed: int) -> None:
    """Law: noted and packed again, in another order, every row of every level has its value."""
    rng = np.random.default_rng(seed)
    played = [replace(e, notes={}, use=Use.LEARN, status=Status.OK) for e in random_episodes(seed, 5)]
    batch = pack(played, dtype=torch.float64)
    names = ("adv_N", "adv_K", "worth_K", "right_E", "length_S", "right_G")
    levels: Any = [name[-1] for name in names]
    made = {n: torch.from_numpy(rng.normal(size=batch.size(x))).float() for n, x in zip(names, levels, strict=True)}
    store = noted(batch.with_columns(**made), played, ("logp_old_N", *names))
    assert {(n, note.level) for n, note in store[0].notes.items()} == {
        ("adv", "N"), ("adv_K", "K"), ("worth", "K"), ("right", "E"), ("length", "S")
    }  # fmt: skip
    order = rng.permutation(5).tolist()
    again = pack([store[i] for i in order], dtype=torch.float64)
    for name, note in (("adv_N", "adv_N"), ("adv_K", "adv_K_K"), ("worth_K", "worth_K"), ("right_E", "right_E")):
        level: Any = name[-1]
        here, there = batch.up(level, "E"), again.up(level, "E")
        for at, i in enumerate(order):
            assert torch.equal(again.columns[f"note_{note}"][there == at].float(), made[name][here == i]), name
