"""What the walk reads of models: when log π_old may wait for the update, and a context that reads and draws by it."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from rooms import Says
from test_walk import ASKS, GRPO, TASKS, Judge, judged, opened, walk

from gruppo.data import Batch
from gruppo.stages import Context, Need, Occupant, need
from gruppo.stages.replay import Recent
from gruppo.stages.update import Passes
from gruppo.stages.walk import Walk


@dataclass(frozen=True)
class Early(Occupant):
    """A selection that reads log π_old once a batch."""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("logp", "old"),)

    def tokens(self, ctx: Context, batch: Batch, stats: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones_like(batch.keep_N), torch.ones_like(batch.weight_N)


@pytest.mark.parametrize(
    ("changes", "lazy"),
    [
        ({}, True),
        ({"update": Passes(epochs=2)}, False),
        ({"replay": Recent()}, False),
        ({"select": Early()}, False),
    ],
    ids=["plain", "two steps", "replay", "read early"],
)
def test_old_is_left_out_only_where_the_update_reads_it_for_nothing(changes: dict[str, Any], lazy: bool) -> None:
    way = walk(GRPO.but(**changes))
    ctx, today = opened(way), [judged(3), judged(5)]
    batch, eager = way.batch_of(ctx, today, today), way.batch_of(ctx, today, today, lazy=False)
    assert batch is not None and eager is not None
    assert ("logp_old_N" not in batch.columns) == lazy == bool(way.lazy_old(ctx)) and "logp_old_N" in eager.columns
    assert "logp_ref_N" in batch.columns


def test_a_context_reads_models_and_draws_by_the_same_walk() -> None:
    heard: list[tuple[str, list[str]]] = []

    def read(role: str, batch: Batch, needs: list[Need]) -> dict[str, torch.Tensor]:
        heard.append((role, [n.readout for n in needs]))
        return {n.column: torch.full((batch.size("N"),), 0.5) for n in needs}

    way = Walk(GRPO, read, TASKS, Judge())
    ctx = opened(way, engine=Says("ab"), prompts=2, samples=3)
    made = asyncio.run(ctx.draw([ASKS[1]]))
    assert [e.reward for e in made] == [{"task": 1.0}] * 2
    batch = ctx.read(made, "ref", ("logp", "entropy"))
    assert heard == [("ref", ["logp", "entropy"])] and batch.logp_ref_N.tolist() == [0.5] * 6
    assert ctx.read(made, readouts=()).size("N") == 6 and len(heard) == 1
    assert [(a.samples, a.task in TASKS) for a in ctx.fresh(3)] == [(3, True)] * 3
