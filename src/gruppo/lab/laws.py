"""The laws: what every method must keep, whatever it furnishes. `gruppo methods check NAME` runs them.

A law takes a method and a seed and returns "" or a sentence that says how it is broken. A method that breaks a law on
purpose says so in `breaks`, with the reason; the declaration is in its documentation.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import MISSING, fields, replace
from functools import cache
from typing import Any, get_args, get_type_hints

import numpy as np
import tomli_w
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Status, Use
from gruppo.lab.world import Desk, World, bare, random_cut, random_episodes, with_rewards
from gruppo.pieces.stop import freeze
from gruppo.stages import CHAINS, ROOMS, Method, Schedule, Stats, StepRecord, kind
from gruppo.stages.record import from_table, record_hash, to_table
from gruppo.train.checkpoint import pack_memory, unpack_memory

Law = Callable[[Method, int], str]
EXACT = 1e-9


def far(a: Tensor, b: Tensor) -> float:
    """Relative distance of two gradients; infinite as soon as one of them is not finite."""
    if not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
        return float("inf")
    scale = max(float(a.norm()), float(b.norm()))
    return float((a - b).norm()) / scale if scale > 0 else 0.0


def _same(a: Tensor, b: Tensor, what: str, limit: float = EXACT) -> str:
    off = far(a, b)
    return "" if off <= limit else f"{what}: relative difference {off:.2e}, allowed {limit:.0e}"


def _first(sentences: Iterable[str]) -> str:
    return next((s for s in sentences if s), "")


def micro_batches(method: Method, seed: int) -> str:
    """Any split into micro-batches, also one that cuts groups and shuffles episodes, gives the same gradient."""
    world = World(method, seed)
    batch = world.prepared(world.packed(random_episodes(seed)))

    def check(role: str) -> Iterable[str]:
        for k, near in enumerate(_drifted(batch)):
            whole = world.grad(near, role, [torch.arange(batch.size("S"))])
            yield _same(whole, world.grad(near, role, random_cut(batch, seed + k)), f"{role} in micro-batches")

    return _first(said for role in world.learner.trained for said in check(role))


def _drifted(batch: Batch) -> Iterable[Batch]:
    """The old policy as it is, less sure and surer of everything: a hinge or a bound that sleeps in one case is
    awake in another."""
    for drift in (0.0, -0.7, 0.7):
        yield batch.with_columns(**{k: batch.columns[k] + drift for k in ("logp_old_N",) if k in batch.columns})


def fused_is_two_pass(method: Method, seed: int) -> str:
    """One fused pass and the whole-step objective in two passes agree."""
    world = World(method, seed)
    batch = world.prepared(world.packed(random_episodes(seed)))
    cut = random_cut(batch, seed)
    return _first(
        _same(world.grad(near, role, cut), world.grad(near, role, cut, two_pass=True), f"{role} in two passes")
        for role in world.learner.trained
        for near in _drifted(batch)
    )


def lazy_old(method: Method, seed: int) -> str:
    """logp_old left out of the batch is logp itself: the same gradient as with the column."""
    world = World(method, seed, on_policy=True)
    batch = world.prepared(world.packed(random_episodes(seed)))
    if "logp_old_N" not in batch.columns:
        return ""
    lazy = replace(batch, columns={k: v for k, v in batch.columns.items() if k != "logp_old_N"}, _cache={})
    return _same(world.grad(batch), world.grad(lazy, cut=random_cut(batch, seed)), "lazy logp_old")


def order(method: Method, seed: int) -> str:
    """The order of episodes in the batch does not matter."""
    episodes = random_episodes(seed)
    shuffled = [episodes[i] for i in np.random.default_rng(seed).permutation(len(episodes))]
    world = World(method, seed)
    return _first(
        _same(world.gradient(episodes, role), world.gradient(shuffled, role), f"{role} in another order")
        for role in world.learner.trained
    )


def nan_mask(method: Method, seed: int) -> str:
    """NaN and infinities change nothing on rows that nothing may read: those of failed and unused episodes, given
    tokens that no occupant has a rule for, and for the objective tokens that selection dropped."""
    return _first((*_dead_rows(method, seed), *_dropped_rows(method.but(penalties=()), seed)))


POISONS = (float("nan"), float("inf"), -float("inf"))
_INPUTS = ("weight_N", "temperature_N")  # not statistics: nobody writes NaN there


def _dead_rows(method: Method, seed: int) -> Iterable[str]:
    world = World(method, seed)
    batch = world.packed(random_episodes(seed))
    plain = world.prepared(batch)
    dead_E = ~(batch.alive_E | batch.judged_E)
    known = {Source[s.upper()] for _, o in method.occupants() for s in o.handles} | {Source.POLICY}
    given_N = ~torch.isin(batch.source_N, torch.tensor(sorted(known)))
    dead = {"N": batch.spread(dead_E, "E", "N") | given_N}
    dead |= {level: batch.spread(dead_E, "E", level) for level in ("K", "S", "E")}  # type: ignore[arg-type]
    healthy = {role: world.grad(plain, role) for role in world.learner.trained}
    for poison in POISONS:
        sick = _poisoned(world.prepared(_poisoned(batch, dead, poison)), dead, poison)
        for role in world.learner.trained:
            yield _same(healthy[role], world.grad(sick, role), f"{role} with {poison} on dead rows")


def _dropped_rows(method: Method, seed: int) -> Iterable[str]:
    world = World(method, seed)
    batch = world.prepared(world.packed(random_episodes(seed)))
    off = torch.rand(batch.size("N"), generator=torch.Generator().manual_seed(seed)) < 0.4
    batch = batch.with_columns(keep_N=batch.keep_N & ~off)
    healthy = world.grad(batch)
    for poison in POISONS:
        sick = world.grad(_poisoned(batch, {"N": off}, poison))
        yield _same(healthy, sick, f"policy with {poison} on dropped tokens")


def _poisoned(batch: Batch, rows: Mapping[str, Tensor], value: float) -> Batch:
    sick: dict[str, Tensor] = {}
    for name, x in batch.columns.items():
        where = rows.get(name.rpartition("_")[2][:1])
        if where is not None and x.is_floating_point() and name not in _INPUTS:
            sick[name] = torch.where(where.view(-1, *[1] * (x.dim() - 1)), torch.full_like(x, value), x)
    return batch.with_columns(**sick)


def failures(method: Method, seed: int) -> str:
    """A failed episode leaves no trace: the same gradient as if it had never been drawn, also at the step after,
    when memory has seen it. What an open one may have as reward is not read before it ends."""
    episodes = random_episodes(seed)
    still = [replace(e, reward={"task": -5.0}) if e.status == Status.OPEN else e for e in episodes]
    without = [e for e in still if e.status.judged or e.status == Status.OPEN]
    clean, world = World(method, seed), World(method, seed)

    def check(when: str) -> Iterable[str]:
        for role in world.learner.trained:
            yield _same(
                clean.gradient(without, role), world.gradient(episodes, role), f"{role}, failed episodes {when}"
            )

    now = _first(check("in the batch"))
    _observe(clean, without)
    _observe(world, episodes)
    return now or _first(check("in the step before"))


def _observe(world: World, episodes: list[Episode], step: int = 1) -> None:
    batch = world.prepared(world.packed(episodes))
    with world.ctx.memory.writing() as state:
        for _, o in world.method.occupants():
            o.observe(StepRecord(step, episodes, batch, {}), state)


def unused(method: Method, seed: int) -> str:
    """Episodes of use `none` leave no trace; of use `baseline`, no token of theirs is learned or counted; of use
    `apart`, no reward of theirs is in anyone else's advantage."""
    world = World(method, seed)
    episodes = random_episodes(seed)
    said = _apart(world, episodes)
    if said:
        return said
    without = [e for e in episodes if e.use != Use.NONE]
    batch = world.prepared(world.packed(episodes))
    asleep = ~batch.spread((batch.use_E == Use.LEARN) | (batch.use_E == Use.APART), "E", "N")
    for role in world.learner.trained:
        slopes = world.slopes(batch, world.statistics(batch, role), role)
        loud = sum(float(g[asleep].abs().sum()) for k, g in slopes.items() if k.endswith("_N"))
        if loud != 0:
            return f"{role}: gradient {loud:.2e} on unused episodes"
        plain = world.grad(batch, role)
        said = _same(world.gradient(without, role), plain, f"{role} with unused episodes") or _same(
            world.grad(_never_written(batch, asleep), role), plain, f"{role}, tokens of unused episodes are counted"
        )
        if said:
            return said
    return ""


def _apart(world: World, episodes: list[Episode]) -> str:
    other = [replace(e, reward={"task": 1 - e.reward["task"]}) if e.use == Use.APART else e for e in episodes]
    left, right = (world.packed(some) for some in (episodes, other))
    first, second = (world.method.credit(world.ctx, batch) for batch in (left, right))

    def others(name: str, x: Tensor) -> Tensor:
        level: Any = name.rpartition("_")[2][:1]
        return x if level == "G" else x[left.spread(left.use_E != Use.APART, "E", level)]

    return _first(_same(others(k, first[k]), others(k, second[k]), f"{k} by rewards of episodes apart") for k in first)


def _never_written(batch: Batch, rows: Tensor) -> Batch:
    """As if the policy had not written these tokens."""
    return batch.with_columns(source_N=torch.where(rows, torch.full_like(batch.source_N, Source.ENV), batch.source_N))


def equal_rewards(method: Method, seed: int) -> str:
    """Equal rewards, no penalty, neutral memory: nothing to learn."""
    world = World(bare(method), seed, on_policy=True)
    for reward in (0.7, 0.1):  # numbers whose mean is rounded
        size = float(world.gradient(with_rewards(random_episodes(seed), reward)).norm())
        if not size <= 1e-12:
            return f"gradient of norm {size:.2e} from rewards that are all {reward:.2g}"
    return ""


def shift(method: Method, seed: int) -> str:
    """A constant added to every reward changes nothing, where the credit claims it."""
    return _moved(method, seed, "shift", lambda r: r + 3.7)


def scale(method: Method, seed: int) -> str:
    """Rewards times a constant change nothing, where the credit claims it (up to its eps)."""
    return _moved(method, seed, "scale", lambda r: r * 40.0)


def _moved(method: Method, seed: int, law: str, f: Callable[[float], float]) -> str:
    if law not in method.credit.ignores:
        return ""
    world = World(bare(method), seed)
    episodes = random_episodes(seed)
    moved = [replace(e, reward={k: f(v) for k, v in e.reward.items()}) for e in episodes]
    if law == "scale":
        moved = [
            replace(e, turns=[replace(t, reward={k: f(v) for k, v in t.reward.items()}) for t in e.turns])
            for e in moved
        ]
    limit = EXACT if law == "shift" else 1e-4
    return _same(world.gradient(episodes), world.gradient(moved), f"after {law}", limit)


def direction(method: Method, seed: int) -> str:
    """On-policy, the objective pushes right answers up against wrong ones, in every group that has both."""
    world = World(bare(method), seed, on_policy=True)
    plain = [
        replace(e, use=Use.LEARN, turns=[replace(t, reward={}) for t in e.turns])
        for e in random_episodes(seed, dead=False)
    ]
    batch = world.packed(plain)
    batch = batch.with_columns(**{k: torch.zeros_like(v) for k, v in batch.columns.items() if k.startswith("value_")})
    batch = world.prepared(batch)
    stats = world.statistics(batch)
    if "logp_old_N" in batch.columns and "logp_N" in stats:
        batch = batch.with_columns(logp_old_N=stats["logp_N"])
    push_E = batch.gather(world.slopes(batch, stats)["logp_N"], "N", "E", "sum")
    better_E = batch.reward_E - batch.spread(batch.gather(batch.reward_E, "E", "G", "mean"), "G", "E")
    along_G = batch.gather(push_E * better_E, "E", "G", "sum")
    worst, total = float(along_G.min()), float(along_G.sum())
    if not worst >= -1e-12:
        return f"in one group the push along better answers is {worst:.2e}, below 0"
    return "" if total > 0 else f"the push along better answers is {total:.2e}, not above 0"


def extremes(method: Method, seed: int) -> str:
    """Log-ratios of ±60 and ±800, alike or in turns, give a finite objective and a finite gradient (exp(800) has
    no number); so do values of ±1e6."""
    world = World(method, seed)
    batch = world.packed(random_episodes(seed))
    turns = torch.where(torch.arange(batch.size("N")) % 2 == 0, 1.0, -1.0).double()
    for role in world.learner.trained:
        for gap in (60.0, -60.0, 800.0, -800.0):
            for sign in (torch.ones_like(turns), turns):
                said = _extreme(world, batch, role, gap * sign)
                if said:
                    return f"{role}: {said} at log-ratio {gap}{'' if bool((sign > 0).all()) else ' in turns'}"
    return ""


def _extreme(world: World, batch: Batch, role: str, gap_N: Tensor) -> str:
    stats = world.statistics(batch, role)
    logp_N = stats.get("logp_N", torch.full_like(gap_N, -1.0))
    columns = {k: logp_N + gap_N for k in batch.columns if k.startswith("logp_") and k.endswith("_N")}
    columns["logp_gen_N"] = torch.where(torch.isnan(batch.logp_gen_N), batch.logp_gen_N, logp_N - gap_N)
    columns |= {k: 1250.0 * gap_N for k in batch.columns if k.startswith("value_")}
    wide = world.prepared(batch.with_columns(**columns))
    value, slopes = world.value(wide, stats, role), world.slopes(wide, stats, role)
    finite = bool(torch.isfinite(value)) and all(bool(torch.isfinite(g).all()) for g in slopes.values())
    return "" if finite else f"objective {float(value)} or its gradient is not finite"


def finite_differences(method: Method, seed: int) -> str:
    """Autograd agrees with finite differences, stopped parts held at the base point."""
    world = World(method, seed)
    batch = world.prepared(world.packed(random_episodes(seed)))
    generator = torch.Generator().manual_seed(seed)
    for role in world.learner.trained:
        stats = world.statistics(batch, role)
        ways = {k: torch.randn(v.shape, generator=generator, dtype=v.dtype) for k, v in stats.items()}
        with freeze() as tape:
            slopes = world.slopes(batch, stats, role)
            ends: list[float] = []
            for h in (1e-6, -1e-6):
                tape.rewind()
                ends.append(float(world.value(batch, {k: v + h * ways[k] for k, v in stats.items()}, role)))
        parts = torch.cat([(slopes[k] * ways[k]).flatten() for k in stats])
        told, seen = float(parts.sum()), (ends[0] - ends[1]) / 2e-6
        allowed = 1e-5 * float(parts.abs().sum()) + 1e-9 * max(1.0, abs(ends[0]))
        if not abs(told - seen) <= allowed:
            return f"{role}: autograd says {told:.8g}, finite differences {seen:.8g}"
    return ""


def keep_and_weight(method: Method, seed: int) -> str:
    """Dropped tokens leave the objective and its denominators, as if the policy had not written them. Weights leave
    the denominators alone: a token that weighs 0 has no gradient, and twice all weights is twice the objective of
    additive terms. Another role minds the selection of tokens wholly or not at all."""
    world = World(method.but(penalties=()), seed)
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
        stats = world.statistics(batch, role)
        all_slopes = {name: world.slopes(b, stats, role) for name, b in muted.items()}
        slope = {name: torch.cat([g.flatten() for g in s.values()]) for name, s in all_slopes.items()}
        if role != "policy":
            wholly = not _same(slope["keep"], slope["never written"], "")
            if not wholly and _same(slope["keep"], slope["plain"], ""):
                return f"{role}: dropped tokens are neither learned nor left out of the count"
            continue
        said = _muted(all_slopes, off) or _same(slope["keep"], slope["never written"], "dropped tokens still count")
        if said:
            return said
        if all(t.additive for t in world.learner.terms(role, batch, Stats(stats))):
            said = _same(2 * slope["plain"], slope["twice"], "twice all weights")
            if said:
                return said
    return ""


def _muted(slopes: Mapping[str, Mapping[str, Tensor]], off: Tensor) -> str:
    for name in ("keep", "weight"):
        loud = sum(float(g[off].abs().sum()) for k, g in slopes[name].items() if k.endswith("_N"))
        if loud != 0:
            return f"gradient {loud:.2e} on tokens with {name} = 0"
    return ""


def alone(method: Method, seed: int) -> str:
    """A method that learns nothing from groups of one says so: an occupant has min_samples of 2 or more."""
    if any(o.min_samples > 1 for _, o in method.occupants()):
        return ""
    episodes = [replace(e, group=f"{e.group}-{e.uid}") for e in random_episodes(seed, dead=False)]
    size = float(World(bare(method), seed).gradient(episodes).norm())
    return "" if size > 1e-9 else "groups of one teach nothing, and no occupant has min_samples"


def roles(method: Method, seed: int) -> str:
    """The update trains every trained role, and changes no other model."""
    world = World(method, seed)
    batch = world.prepared(world.packed(random_episodes(seed)))
    before = {role: deepcopy(model.state_dict()) for role, model in world.models.items()}
    learning = [role for role in world.learner.trained if float(world.grad(batch, role).norm()) > 0]
    method.update(world.ctx, world.learner, batch)
    for role, model in world.models.items():
        moved = any(not torch.equal(x, before[role][k]) for k, x in model.state_dict().items())
        if moved != (role in learning):
            return f"role {role!r} {'was changed, and is not trained' if moved else 'is trained, and was not changed'}"
    return ""


def memory(method: Method, seed: int) -> str:
    """Rooms only read: the same episodes give the same gradient twice, and memory stays as it is. What `observe`
    writes, also at a step without a batch, survives save and load exactly."""
    world = World(method, seed)
    episodes = random_episodes(seed)
    for step in range(2):
        before = deepcopy(dict(world.ctx.memory))
        first, again = world.gradient(episodes), world.gradient(episodes)
        said = _same(first, again, "the same episodes a second time", 0.0)
        if said or not _equal(before, dict(world.ctx.memory)):
            return said or f"memory {before} became {dict(world.ctx.memory)} without observe"
        _observe(world, episodes, step)
    with world.ctx.memory.writing() as state:
        for _, o in method.occupants():
            o.observe(StepRecord(2, [], None, {}), state)
    tensors: dict[str, Tensor] = {}
    back = unpack_memory(pack_memory(dict(world.ctx.memory), tensors), tensors)
    if not _equal(dict(world.ctx.memory), back):
        return f"memory {dict(world.ctx.memory)} came back as {back}"
    first = world.gradient(episodes)
    world.ctx.memory = type(world.ctx.memory)(back)
    world.learner.ctx = world.ctx
    return _same(first, world.gradient(episodes), "after save and load", 0.0)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def record(method: Method, seed: int) -> str:
    """The record survives its round trip through the text of a run file, with the same hash."""
    back = from_table(tomllib.loads(tomli_w.dumps(to_table(method))))
    return "" if back == method and record_hash(back) == record_hash(method) else "the record changed on its round trip"


def fields_matter(method: Method, seed: int) -> str:
    """Every field of every occupant changes something: no argument is ever ignored."""
    plain = cache(lambda room, place, batch: _fingerprint(method, room, place, batch))

    def shows(room: str, place: Any, new: Any) -> bool:
        changed = _with(method, room, place, new)
        return any(plain(room, place, n) != _fingerprint(changed, room, place, n) for n in range(4))

    for room, place, occupant in _places(method):
        for f in fields(occupant):
            before = getattr(occupant, f.name)
            named = occupant.witness.get(f.name, list(_others(before)))
            tries = [*(named if isinstance(named, list) else [named]), *([] if f.default is MISSING else [f.default])]
            tries = [v for v in tries if v != before]
            if not any(shows(room, place, replace(occupant, **{f.name: v})) for v in tries):
                return (
                    f"{kind(occupant)}.{f.name} in {room}: none of {tries} changed anything; name a witness, or drop "
                    "the field"
                )
    return ""


def schedules(method: Method, seed: int) -> str:
    """A field that takes a schedule reads it at the step: the same as the number that the schedule has there."""
    for room, place, occupant in _places(method):
        hints = get_type_hints(type(occupant))
        for f in fields(occupant):
            if Schedule not in get_args(hints[f.name]):
                continue
            number = 0.3 if occupant.witness.get(f.name) != 0.3 else 0.2
            moving = Schedule(f"linear(0.0, {number!r}, steps=10)")
            now = moving.value(World(method, seed).ctx.step, {})
            left, right = (_with(method, room, place, replace(occupant, **{f.name: v})) for v in (moving, now))
            if _fingerprint(left, room, place, seed) != _fingerprint(right, room, place, seed):
                return f"{kind(occupant)}.{f.name} in {room}: {moving} is not {now:g} at its step"
    return ""


def _places(method: Method) -> Iterable[tuple[str, Any, Any]]:
    for room in ROOMS:
        held = getattr(method, room)
        if isinstance(held, Mapping):
            yield from ((room, role, o) for role, o in held.items())
        elif isinstance(held, tuple):
            yield from ((room, i, o) for i, o in enumerate(held))
        else:
            yield room, None, held


def _others(value: Any) -> Iterable[Any]:
    """Values to try for a field that names no witness."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value + 5, 0)
    elif isinstance(value, float):
        yield from (value * 0.1, value * 3 + 0.1, 0.0, 0.9)


def _with(method: Method, room: str, place: Any, new: Any) -> Method:
    held = getattr(method, room)
    if room in CHAINS:
        return method.but(**{room: tuple(new if i == place else o for i, o in enumerate(held))})
    return method.but(**{room: new if place is None else {**held, place: new}})


def _fingerprint(method: Method, room: str, place: Any, seed: int) -> str:
    """What a room does on one batch, as text: so NaN is equal to NaN, and cannot pass for a change."""
    world = World(method, seed)
    held = getattr(method, room)
    occupant = held if place is None else held[place]
    episodes = random_episodes(seed, groups=4, mixed=seed % 2 == 0)
    if room in ("curriculum", "prompting", "rollout"):
        return repr(_before_the_batch(world, room, occupant, episodes))
    if room == "replay":
        return repr(_remembered(world, occupant, episodes))
    if room == "reward":
        judged = [e for e in episodes if e.status.judged]
        return repr({k: np.asarray(v).tolist() for k, v in occupant(world.ctx, judged).items()})
    if room == "update":
        return repr(_after_update(world, episodes))
    doors = _door(world, occupant, episodes) if hasattr(occupant, "episodes") else None
    _observe_twice(world, episodes)
    ready = [*_drifted(world.prepared(world.packed(episodes)))][seed % 3]
    return repr((doors, [world.grad(ready, role).tolist() for role in world.learner.trained]))


def _observe_twice(world: World, episodes: list[Episode]) -> None:
    """So that what depends on memory shows."""
    batch = world.packed(episodes)
    for step in range(2):
        with world.ctx.memory.writing() as state:
            for _, o in world.method.occupants():
                o.observe(
                    StepRecord(step, episodes, batch.with_columns(reward_E=batch.reward_E * (step + 1)), {}), state
                )


def _before_the_batch(world: World, room: str, occupant: Any, episodes: list[Episode]) -> Any:
    desk = Desk(world)
    _observe_twice(world, episodes)
    if room == "curriculum":
        out: list[Any] = []
        for world.ctx.step in range(4):
            out.append([(a.task.uid, a.samples, a.group, dict(a.how)) for a in desk.asks(occupant)])
        return out
    if room == "prompting":
        made = desk.prompts([occupant])
        return [
            (list(p.ids), p.group, p.samples, p.given, None if p.train_as is None else list(p.train_as)) for p in made
        ]
    made = desk.episodes(occupant)
    return [(e.group, e.status, [(list(s.ids), list(s.source), list(s.logp)) for s in e.sequences]) for e in made]


def _remembered(world: World, replay: Any, episodes: list[Episode]) -> Any:
    """What comes back over some steps, and what the loop reads beside it (see stages.replay.Replay)."""
    store: list[Episode] = []
    out: list[Any] = [replay.stores, replay.proximal]
    for world.ctx.step in range(8):
        out.append([e.uid for e in replay.get(world.ctx, store)])
        made = [replace(e, uid=e.uid + 100 * world.ctx.step, step=world.ctx.step) for e in episodes[:8]]
        store = replay.put(world.ctx, store, made)
    return out


def _door(world: World, occupant: Any, episodes: list[Episode]) -> Any:
    world.ctx.fresh = lambda n: [n]  # type: ignore[assignment, return-value]
    out: list[Any] = []
    for world.ctx.round in range(5):
        out.append([*occupant.episodes(world.ctx, episodes)])
    world.ctx.fresh, world.ctx.round = lambda n: [], 0
    return out


def _after_update(world: World, episodes: list[Episode]) -> Any:
    batch = world.prepared(world.packed(episodes))
    world.method.update(world.ctx, world.learner, batch)
    return [p.tolist() for role in world.learner.trained for p in world.models[role].parameters()]


LAWS: dict[str, Law] = {
    f.__name__: f
    for f in (
        micro_batches, fused_is_two_pass, lazy_old, order, nan_mask, failures, unused, equal_rewards, shift, scale,
        direction, extremes, finite_differences, keep_and_weight, alone, roles, memory, record, fields_matter,
        schedules,
    )
}  # fmt: skip
ONCE = frozenset({"record", "fields_matter", "schedules"})  # these do not depend on the seed


def verdict(law: str, method: Method, seed: int = 0) -> str:
    """What a law says of a method; an occupant that raises breaks it."""
    try:
        return LAWS[law](method, seed)
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


def check_laws(method: Method, seeds: Iterable[int] = range(3)) -> dict[str, str]:
    """{law: "" or how it is broken}. A law that the method breaks on purpose must really be broken."""
    out: dict[str, str] = {}
    for name in LAWS:
        said = _first(verdict(name, method, seed) for seed in (seeds if name not in ONCE else (0,)))
        if name in method.breaks and not said.startswith("raised "):
            said = (
                "" if said else f"declared as broken ({method.breaks[name]}), but it holds: take the declaration away"
            )
        out[name] = said
    return out
