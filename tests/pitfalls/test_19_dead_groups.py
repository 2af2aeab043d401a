"""Pitfall 19: "zero-advantage groups still add KL/entropy and count in the denominator". Rule: "make it an explicit
choice".

The choices, as named: a group that stays counts everywhere (grpo); one that selection removes counts nowhere
(dapo); `drawn_group` divides by all groups that were drawn (disco). If the bug came back, a dead group would leave
or enter a denominator without being told.
"""

import pytest
import torch
from small_runs import answer, far

from gruppo.data import Episode, pack
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.pieces.aggregate import weights
from gruppo.stages import Context
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.select import RedrawEqualGroups, through_first_door

LIVE = [answer(i, float(i % 2), "live") for i in range(4)]
DEAD = [answer(10 + i, 1.0, "dead") for i in range(2)]
BARE = method("grpo").but(penalties=())


def gradient(furniture: object, episodes: list[Episode]) -> torch.Tensor:
    return World(furniture, seed=9, on_policy=True).gradient(episodes)  # type: ignore[arg-type]


SHARES = [("sequence", 4 / 6), ("episode", 4 / 6), ("group", 1 / 2), ("token", 4 / 6)]


@pytest.mark.parametrize(("mean", "share"), SHARES)
def test_a_dead_group_that_stays_is_counted(mean: str, share: float) -> None:
    """It pushes nothing, and is in the denominator: the push of the live group shrinks by its known share."""
    furniture = BARE.but(objective=ClippedSurrogate(mean=mean))
    alone, beside = gradient(furniture, LIVE), gradient(furniture, LIVE + DEAD)
    assert float(alone.norm()) > 1e-3 and far(beside, share * alone) < 1e-9
    silent = alone  # the bug: rows without advantage leave the denominator by themselves
    assert far(beside, silent) > 0.1
    assert float(gradient(furniture, DEAD).norm()) == 0.0


def test_a_dead_group_that_stays_feels_the_penalty() -> None:
    world = World(method("grpo"), seed=9)
    assert float(world.gradient(DEAD).norm()) > 1e-6  # KL alone
    batch = world.prepared(world.packed(LIVE + DEAD))
    over = {t.name: t.over for t in world.goal().terms(batch)}
    dead_N = batch.spread(batch.group_E == 1, "E", "N")
    assert bool(over["kl_ref"][dead_N].all()) and bool(over["policy"][dead_N].all())


def test_a_dead_group_that_selection_removes_is_counted_nowhere() -> None:
    kept, _ = through_first_door(Context(), [RedrawEqualGroups(max_rounds=0)], LIVE + DEAD)
    assert kept == LIVE
    furniture = method("dapo").but(reward=())
    assert far(gradient(furniture, kept), gradient(furniture, LIVE)) == 0.0


def test_drawn_groups_are_all_groups_drawn() -> None:
    """The third choice: removed from the rows, kept in the denominator."""
    removed = pack(LIVE, drawn={"live": 4, "dead": 2}, dtype=torch.float64)
    for mean, total in (("group", 1.0), ("drawn_group", 0.5)):
        assert float(weights(removed, "N", removed.learn_N, mean).sum()) == pytest.approx(total)
