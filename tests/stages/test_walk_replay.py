"""What is remembered: what joins a batch, and which credit a replayed episode keeps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from test_walk import GRPO, judged, opened, walk

from gruppo.data import Batch, Episode, Note, Use, pack
from gruppo.stages import Context, Occupant
from gruppo.stages.replay import Recent, as_learned
from gruppo.stages.walk import noted, recalled


@dataclass(frozen=True)
class Recalls(Recent):
    """Everything, and whether it is learned from."""

    joins: bool = True

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]:
        return list(store)


@pytest.mark.parametrize("joins", [True, False])
def test_what_is_recalled_is_for_every_room_and_joins_the_batch_if_the_replay_says_so(joins: bool) -> None:
    way = walk(GRPO.but(replay=Recalls(joins=joins)))
    past, today = [judged(1), judged(2)], [judged(3, 0.0), judged(5)]
    ctx = opened(way, past, step=4)
    assert list(ctx.replay) == past
    batch = way.batch_of(ctx, today, today)
    assert batch is not None
    assert batch.uid_E.tolist() == ([3, 5, 1, 2] if joins else [3, 5])
    assert batch.replayed_E.tolist() == [False, False, True, True][: batch.size("E")]
    groups = [batch.group_E[i] for i in range(batch.size("E"))]
    assert len(set(map(int, groups))) == (3 if joins else 1)  # the past are groups of their own step
    assert not any(e.replayed for e in past)  # what is stored stays as it is
    assert "logp_old_N" in batch.columns  # what is remembered is noted with it
    only = way.batch_of(ctx, [], [])
    assert (only is not None and only.uid_E.tolist() == [1, 2]) if joins else only is None


def test_nothing_is_recalled_unless_something_is_remembered() -> None:
    way = walk()
    assert opened(way, [judged(1)]).replay == ()
    assert way.remembered(opened(way), [judged(1)], pack([judged(2)]), [judged(2)]) == []


def test_a_recalled_episode_is_of_the_group_of_its_step() -> None:
    e = judged(1)
    for credited, use in (("now", Use.LEARN), ("stored", Use.APART)):
        back = recalled(e, credited)
        assert (back.group, back.use, back.replayed, back.uid) == ("g1@0", use, True, 1)
    assert recalled(replace(e, use=Use.BASELINE), "stored").use == Use.BASELINE
    assert not e.replayed and e.group == "g1"


def test_what_is_remembered_is_noted_as_it_was_learned() -> None:
    """Columns of tokens that credit made, and log π_old; of episodes that are in the batch."""
    way = walk(GRPO.but(replay=Recalls()))
    ctx = opened(way, step=2)
    kept = [judged(1, 1.0, notes={"rate": Note(np.ones(1, np.float32))}), judged(3, 0.0), judged(5)]
    batch = way.batch_of(ctx, kept[:2], kept[:2])
    assert batch is not None
    batch = way.credited(ctx, batch)
    for store in (way.remembered(ctx, [], batch, kept), noted(batch, kept, ("logp_old_N", "adv_N"))):
        assert [e.uid for e in store] == [1, 3] and set(store[0].notes) == {"rate", "logp_old", "adv"}
        assert [e.notes["adv"].values.tolist() for e in store] == batch.adv_N.view(2, 3).tolist()
        assert {e.notes["adv"].level for e in store} == {"N"}
    assert noted(None, kept, ("adv_N",)) == []


@pytest.mark.parametrize(("proximal", "credited"), [("stored", "now"), ("now", "stored"), ("stored", "stored")])
def test_replayed_rows_keep_what_they_were_learned_under_if_the_replay_says_so(proximal: Any, credited: Any) -> None:
    """Only they: a row of today with such a note has the log π_old and the credit of today."""
    way = walk(GRPO.but(replay=Recalls(proximal=proximal, credited=credited)))
    notes = {name: Note(np.full(3, 7.0, np.float32), "N") for name in ("logp_old", "adv")}
    today = [judged(3, 0.0, notes=dict(notes)), judged(5, 1.0)]
    ctx = opened(way, [judged(1, notes=dict(notes)), judged(2)], step=4)
    batch = way.batch_of(ctx, today, today)
    assert batch is not None
    made = way.credited(ctx, batch)
    old, adv = made.logp_old_N.view(4, 3)[:, 0].tolist(), made.adv_N.view(4, 3)[:, 0].tolist()
    assert old == [0.0, 0.0, 7.0 if proximal == "stored" else 0.0, 0.0]
    assert (adv[2] == 7.0) == (credited == "stored") and 7.0 not in (*adv[:2], adv[3])


@dataclass(frozen=True)
class OfTurns(Occupant):
    """A credit of turns and episodes, which says in which step it was made."""

    writes = ("adv_N", "adv_K", "right_E")

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, torch.Tensor]:
        here = float(ctx.step)
        return {
            "adv_N": torch.full_like(batch.weight_N, here),
            "adv_K": batch.reward_K + here,
            "right_E": batch.reward_E > 0.5 * (ctx.step == 2),
        }


def test_replayed_turns_and_episodes_keep_their_stored_credit() -> None:
    way = walk(GRPO.but(credit=OfTurns(), replay=Recalls(credited="stored")))
    ctx, kept = opened(way, step=2), [judged(1, 1.0), judged(3, 0.25)]
    batch = way.batch_of(ctx, kept, kept)
    assert batch is not None
    store = way.remembered(ctx, [], way.credited(ctx, batch), kept)
    later, fresh = opened(way, store, step=3), [judged(7, 0.25), judged(9, 0.0)]
    batch = way.batch_of(later, fresh, fresh)
    assert batch is not None
    batch = way.credited(later, batch)
    assert batch.adv_K.tolist() == [3.0, 3.0, 2.0, 2.0] and batch.right_E.tolist() == [True, False, True, False]
    assert batch.right_E.dtype == torch.bool
    past = as_learned(later, store, ("right_E",))
    assert past.adv_N.tolist() == [2.0] * 6 and past.right_E.tolist() == [1.0, 0.0]
