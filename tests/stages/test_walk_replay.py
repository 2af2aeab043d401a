"""Replayed episodes keep the credit of their own step, at the level that it was given."""

from dataclasses import dataclass

import torch
from test_walk import GRPO, Recalls, judged, opened, walk

from gruppo.data import Batch
from gruppo.stages import Context, Occupant
from gruppo.stages.replay import as_learned


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
