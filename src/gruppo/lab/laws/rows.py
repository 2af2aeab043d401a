"""Laws about rows that must have no effect: masked, failed, unused, dropped, or of weight 0."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Status, Use
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.same import first, observe, remembers, same
from gruppo.lab.laws.world import World
from gruppo.stages import Method
from gruppo.stages.check import readable_N


def nan_mask(method: Method, seed: int) -> str:
    """NaN and infinities change nothing on rows that must not be read: those of failed and unused episodes, tokens of
    sources that no occupant reads, and, for the objective, tokens that selection dropped."""
    return first((*_dead_rows(method, seed), *_dropped_rows(method.but(penalties=()), seed)))


POISONS = (float("nan"), float("inf"), -float("inf"))
_INPUTS = ("weight_N", "temperature_N")  # not statistics: never NaN


def _dead_rows(method: Method, seed: int) -> Iterable[str]:
    world = World(method, seed)
    batch = world.packed(random_episodes(seed))
    plain = world.prepared(batch)
    dead_E = ~(batch.alive_E | batch.judged_E)
    dead = {"N": batch.spread(dead_E, "E", "N") | ~readable_N(method, batch)}
    dead |= {level: batch.spread(dead_E, "E", level) for level in ("K", "S", "E")}  # type: ignore[arg-type]
    healthy = {role: world.grad(plain, role) for role in world.learner.trained}
    for poison in POISONS:
        sick = _poisoned(world.prepared(_poisoned(batch, dead, poison)), dead, poison)
        for role in world.learner.trained:
            yield same(healthy[role], world.grad(sick, role), f"{role} with {poison} on dead rows")


def _dropped_rows(method: Method, seed: int) -> Iterable[str]:
    world = World(method, seed)
    batch = world.prepared(world.packed(random_episodes(seed)))
    off = torch.rand(batch.size("N"), generator=torch.Generator().manual_seed(seed)) < 0.4
    batch = batch.with_columns(keep_N=batch.keep_N & ~off)
    healthy = world.grad(batch)
    for poison in POISONS:
        sick = world.grad(_poisoned(batch, {"N": off}, poison))
        yield same(healthy, sick, f"policy with {poison} on dropped tokens")


def _poisoned(batch: Batch, rows: Mapping[str, Tensor], value: float) -> Batch:
    sick: dict[str, Tensor] = {}
    for name, x in batch.columns.items():
        where = rows.get(name.rpartition("_")[2][:1])
        if where is not None and x.is_floating_point() and name not in _INPUTS:
            sick[name] = torch.where(where.view(-1, *[1] * (x.dim() - 1)), torch.full_like(x, value), x)
    return batch.with_columns(**sick)


def failures(method: Method, seed: int) -> str:
    """A failed episode leaves no trace: the gradient is as if it had never been drawn, also at the next step, after
    memory has seen it. The reward of an open episode is not read before it ends."""
    episodes = random_episodes(seed)
    still = [replace(e, reward={"task": -5.0}) if e.status == Status.OPEN else e for e in episodes]
    without = [e for e in still if e.status.judged or e.status == Status.OPEN]
    clean, world = World(method, seed), World(method, seed)

    def check(when: str) -> Iterable[str]:
        for role in world.learner.trained:
            yield same(clean.gradient(without, role), world.gradient(episodes, role), f"{role}, failed episodes {when}")

    now = first(check("in the batch"))
    if now or not remembers(method):
        return now
    observe(clean, without)
    observe(world, episodes)
    return first(check("in the step before"))


def unused(method: Method, seed: int) -> str:
    """Episodes of use `none` leave no trace; tokens of use `baseline` are neither learned nor counted; rewards of use
    `apart` are in no other episode's advantage."""
    world = World(method, seed)
    episodes = random_episodes(seed)
    said = _apart(world, episodes) or first(_apart_in_objectives(method.but(select=()), seed))
    if said:
        return said
    without = [e for e in episodes if e.use != Use.NONE]
    batch = world.prepared(world.packed(episodes))
    idle_N = ~batch.spread((batch.use_E == Use.LEARN) | (batch.use_E == Use.APART), "E", "N")
    for role in world.learner.trained:
        slopes = world.slopes(batch, world.statistics(batch, role), role)
        loud = sum(float(g[idle_N].abs().sum()) for k, g in slopes.items() if k.endswith("_N"))
        if loud != 0:
            return f"{role}: gradient {loud:.2e} on unused episodes"
        plain = world.grad(batch, role)
        said = same(world.gradient(without, role), plain, f"{role} with unused episodes") or same(
            world.grad(_never_written(batch, idle_N), role), plain, f"{role}, tokens of unused episodes are counted"
        )
        if said:
            return said
    return ""


def _turned(episodes: list[Episode]) -> list[Episode]:
    """Right is wrong and wrong is right, in episodes apart."""
    return [replace(e, reward=e.reward | {"task": 1 - e.reward["task"]}) if e.use == Use.APART else e for e in episodes]


def _apart(world: World, episodes: list[Episode]) -> str:
    other = _turned(episodes)

    def others(batch: Batch) -> dict[str, Tensor]:
        """The credit of the other episodes. An episode apart may itself be dropped for its reward."""
        out: dict[str, Tensor] = {}
        for name, x in world.method.credit(world.ctx, batch).items():
            level: Any = name.rpartition("_")[2][:1]
            mine = x if level in "GP" else x[batch.spread(batch.use_E != Use.APART, "E", level)]
            out[name] = mine.double()  # pairs are integers
        return out

    one, two = (others(world.packed(some)) for some in (episodes, other))
    for k in one:
        if one[k].shape != two[k].shape:
            return f"{k} has another number of rows by rewards of episodes apart"
    return first(same(one[k], two[k], f"{k} by rewards of episodes apart") for k in one)


def _apart_in_objectives(method: Method, seed: int) -> Iterable[str]:
    """The same of objectives and penalties: what they make of the others' tokens."""
    world = World(method, seed)
    one, two = (world.prepared(world.packed(some)) for some in (random_episodes(seed), _turned(random_episodes(seed))))
    others = one.spread(one.use_E != Use.APART, "E", "N")
    for role in world.learner.trained:
        stats = world.statistics(one, role)
        left, right = (world.slopes(batch, stats, role) for batch in (one, two))
        for k in (k for k in left if k.endswith("_N")):
            yield same(left[k][others], right[k][others], f"{role}, {k} of others by rewards of episodes apart")


def _never_written(batch: Batch, rows: Tensor) -> Batch:
    """As if the policy had not written these tokens."""
    return batch.with_columns(source_N=torch.where(rows, torch.full_like(batch.source_N, Source.ENV), batch.source_N))


def keep_and_weight(method: Method, seed: int) -> str:
    """Dropped tokens are neither in the objective nor in its denominators, as if the policy had not written them.
    Weights do not change the denominators: a token of weight 0 has no gradient, and doubling all weights doubles
    additive terms. Another role respects the selection of tokens completely, or not at all."""
    world = World(_minding(method), seed)
    batch = world.prepared(world.packed(random_episodes(seed)))
    off = torch.rand(batch.size("N"), generator=torch.Generator().manual_seed(seed)) < 0.4
    muted = {
        "keep": batch.with_columns(keep_N=batch.keep_N & ~off),
        "never written": _never_written(batch, off),
        "weight": batch.with_columns(weight_N=torch.where(off, torch.zeros_like(batch.weight_N), batch.weight_N)),
        "plain": batch,
        "twice": batch.with_columns(weight_N=2 * batch.weight_N),
    }
    for role in world.learner.trained:
        if not world.method.objectives[world.goal(role).named]:
            continue
        stats = world.statistics(batch, role)
        all_slopes = {name: world.slopes(b, stats, role) for name, b in muted.items()}
        slope = {name: torch.cat([g.flatten() for g in s.values()]) for name, s in all_slopes.items()}
        if not world.goal(role).writes:
            wholly = not same(slope["keep"], slope["never written"], "")
            if not wholly and same(slope["keep"], slope["plain"], ""):
                return f"{role}: dropped tokens are neither learned nor left out of the count"
            continue
        said = _muted(all_slopes, off) or same(slope["keep"], slope["never written"], "dropped tokens still count")
        if said:
            return said
        if all(t.additive for t in world.goal(role).terms(batch)):
            said = same(2 * slope["plain"], slope["twice"], "twice all weights")
            if said:
                return said
    return ""


def _minding(method: Method) -> Method:
    """Without what has a rule for tokens that selection dropped: penalties, and objectives that say so."""
    minding = {r: tuple(o for o in chain if "dropped" not in o.reads) for r, chain in method.objectives.items()}
    return method.but(penalties=(), objective=minding)


def _muted(slopes: Mapping[str, Mapping[str, Tensor]], off: Tensor) -> str:
    for name in ("keep", "weight"):
        loud = sum(float(g[off].abs().sum()) for k, g in slopes[name].items() if k.endswith("_N"))
        if loud != 0:
            return f"gradient {loud:.2e} on tokens with {name} = 0"
    return ""
