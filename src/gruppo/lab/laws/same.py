"""How laws compare gradients: by relative distance."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from gruppo.data import Batch, Episode
from gruppo.lab.laws.world import World
from gruppo.stages import Method, Occupant, StepRecord
from gruppo.train.metrics import batch_metrics, episode_metrics

EXACT = 1e-9


def far(a: Tensor, b: Tensor) -> float:
    """Relative distance of two gradients; infinite if one of them is not finite."""
    if not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
        return float("inf")
    scale = max(float(a.norm()), float(b.norm()))
    return float((a - b).norm()) / scale if scale > 0 else 0.0


def same(a: Tensor, b: Tensor, what: str, limit: float = EXACT) -> str:
    off = far(a, b)
    return "" if off <= limit else f"{what}: relative difference {off:.2e}, allowed {limit:.0e}"


def first(sentences: Iterable[str]) -> str:
    """The first that is not empty; "" if all are."""
    return next((s for s in sentences if s), "")


def remembers(method: Method) -> bool:
    """Whether an occupant observes steps or stores episodes; else the next step would be the same again."""
    observes = any(type(o).observe is not Occupant.observe for _, o in method.occupants())
    return observes or method.remembers_episodes


def observe(world: World, episodes: list[Episode], step: int = 1) -> None:
    """The end of a step as in the loop: replay, then `observe` of every occupant.

    Episodes of different steps have different uids, as in a run.
    """
    if not remembers(world.method):
        return
    ctx, now = world.ctx, world.ctx.step
    ctx.step = step
    drawn = world.scored([replace(e, uid=e.uid + 10_000 * (step + 1), step=step) for e in episodes])
    kept = world.kept(drawn)
    batch = world.prepared(world.joined(kept, drawn))
    world.learner.begin(ctx)
    for role in world.learner.trained:
        world.learner.grad(role, batch)
    facts = episode_metrics(drawn) | batch_metrics(batch) | world.learner.tally.means()
    world.store = world.walk.remembered(ctx, world.store, batch, kept)
    with ctx.memory.writing() as state:
        for _, o in world.method.occupants():
            o.observe(StepRecord(step, kept, batch, facts, ctx, drawn), state)
    ctx.step = now
    ctx.replay = tuple(world.method.replay.get(ctx, world.store))


def drifted(batch: Batch) -> Iterable[Batch]:
    """log π_old as it is, lower, and higher: a clip or a bound that is inactive in one case is active in another."""
    for drift in (0.0, -0.7, 0.7):
        yield batch.with_columns(**{k: batch.columns[k] + drift for k in ("logp_old_N",) if k in batch.columns})
