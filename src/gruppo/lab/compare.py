"""How laws compare: gradients by relative distance, and the first sentence that says something."""

from collections.abc import Iterable

import torch
from torch import Tensor

from gruppo.data import Batch, Episode
from gruppo.lab.world import World
from gruppo.stages import Method, Occupant, StepRecord

EXACT = 1e-9


def far(a: Tensor, b: Tensor) -> float:
    """Relative distance of two gradients; infinite as soon as one of them is not finite."""
    if not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
        return float("inf")
    scale = max(float(a.norm()), float(b.norm()))
    return float((a - b).norm()) / scale if scale > 0 else 0.0


def same(a: Tensor, b: Tensor, what: str, limit: float = EXACT) -> str:
    off = far(a, b)
    return "" if off <= limit else f"{what}: relative difference {off:.2e}, allowed {limit:.0e}"


def first(sentences: Iterable[str]) -> str:
    return next((s for s in sentences if s), "")


def remembers(method: Method) -> bool:
    """Whether an occupant observes steps: without one, memory stays empty and the next step is this one again."""
    return any(type(o).observe is not Occupant.observe for _, o in method.occupants())


def observe(world: World, episodes: list[Episode], step: int = 1) -> None:
    if not remembers(world.method):
        return
    batch = world.prepared(world.packed(episodes))
    with world.ctx.memory.writing() as state:
        for _, o in world.method.occupants():
            o.observe(StepRecord(step, episodes, batch, {}), state)


def drifted(batch: Batch) -> Iterable[Batch]:
    """The old policy as it is, less sure and surer of everything: a hinge or a bound that sleeps in one case is
    awake in another."""
    for drift in (0.0, -0.7, 0.7):
        yield batch.with_columns(**{k: batch.columns[k] + drift for k in ("logp_old_N",) if k in batch.columns})
