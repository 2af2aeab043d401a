"""The laws: what every method must keep, whatever it furnishes. `gruppo methods check NAME` runs them.

A law takes a method and a seed and returns "" or a sentence that says how it is broken. A method that breaks a law on
purpose says so in `breaks`, with the reason; the declaration is in its documentation.
"""

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Use
from gruppo.lab.world import World, random_cut, random_episodes, without_penalties
from gruppo.pieces.stop import freeze
from gruppo.stages import CHAINS, Method, StepRecord, kind
from gruppo.stages.record import from_table, record_hash, to_table
from gruppo.train.checkpoint import pack_memory, unpack_memory

Law = Callable[[Method, int], str]
EXACT = 1e-9


def far(a: Tensor, b: Tensor) -> float:
    """Relative distance of two gradients."""
    scale = max(float(a.norm()), float(b.norm()))
    return float((a - b).norm()) / scale if scale > 0 else 0.0


def _same(a: Tensor, b: Tensor, what: str, limit: float = EXACT) -> str:
    off = far(a, b)
    return "" if off <= limit else f"{what}: relative difference {off:.2e}, allowed {limit:.0e}"


def micro_batches(method: Method, seed: int) -> str:
    """Any split into micro-batches, also one that cuts groups and shuffles episodes, gives the same gradient."""
    world = World(method, seed)
    batch = world.prepared(world.packed(random_episodes(seed)))
    for role in world.learner.trained:
        whole = world.grad(batch, role, [torch.arange(batch.size("S"))])
        for k in range(3):
            said = _same(whole, world.grad(batch, role, random_cut(batch, seed + k)), f"{role} in micro-batches")
            if said:
                return said
    return ""


def fused_is_two_pass(method: Method, seed: int) -> str:
    """One fused pass and the whole-step objective in two passes agree."""
    world = World(method, seed)
    batch = world.prepared(world.packed(random_episodes(seed)))
    cut = random_cut(batch, seed)
    for role in world.learner.trained:
        said = _same(world.grad(batch, role, cut), world.grad(batch, role, cut, two_pass=True), f"{role} in two passes")
        if said:
            return said
    return ""


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
    for role in world.learner.trained:
        said = _same(world.gradient(episodes, role), world.gradient(shuffled, role), f"{role} in another order")
        if said:
            return said
    return ""


def nan_mask(method: Method, seed: int) -> str:
    """NaN and infinities on rows that nothing may learn from change nothing."""
    world = World(method, seed)
    batch = world.packed(random_episodes(seed))
    dead = ~batch.spread(batch.learn_E, "E", "N")
    plain = world.prepared(batch)
    for poison in (float("nan"), float("inf"), -float("inf")):
        sick = _poisoned(world.prepared(_poisoned(batch, dead, poison)), dead, poison)
        for role in world.learner.trained:
            said = _same(world.grad(plain, role), world.grad(sick, role), f"{role} with {poison} on dead rows")
            if said:
                return said
    return ""


def _poisoned(batch: Batch, rows: Tensor, value: float) -> Batch:
    skip = ("weight_N", "temperature_N", "logp_gen_N")
    floats = {k: v for k, v in batch.columns.items() if k.endswith("_N") and v.is_floating_point() and k not in skip}
    return batch.with_columns(**{k: torch.where(rows, torch.full_like(v, value), v) for k, v in floats.items()})


def failures(method: Method, seed: int) -> str:
    """A failed episode leaves no trace: the same gradient as if it had never been drawn."""
    episodes = random_episodes(seed)
    without = [e for e in episodes if e.status.judged]
    world = World(method, seed)
    return _same(world.gradient(without), world.gradient(episodes), "with failed episodes")


def unused(method: Method, seed: int) -> str:
    """Episodes of use `none` teach nothing; of use `baseline`, no token of theirs is learned."""
    world = World(method, seed)
    batch = world.prepared(world.packed(random_episodes(seed)))
    stats = {k: v.requires_grad_() for k, v in world.statistics(batch).items()}
    slopes = torch.autograd.grad(world.value(batch, stats), list(stats.values()), allow_unused=True)
    asleep = ~batch.spread(batch.use_E == Use.LEARN, "E", "N")
    loud = [float(g[asleep].abs().max()) for g in slopes if g is not None and bool(asleep.any())]
    return f"gradient {max(loud):.2e} on unused episodes" if loud and max(loud) > 0 else ""


def equal_rewards(method: Method, seed: int) -> str:
    """Equal rewards, no penalty, neutral memory: nothing to learn."""
    world = World(without_penalties(method), seed, on_policy=True)
    episodes = [replace(e, reward={"task": 0.7} if e.reward else {}) for e in random_episodes(seed)]
    grad = world.gradient(episodes)
    size = float(grad.norm())
    return "" if size <= 1e-12 else f"gradient of norm {size:.2e} from equal rewards"


def shift(method: Method, seed: int) -> str:
    """A constant added to every reward changes nothing, where the credit claims it."""
    return _moved(method, seed, "shift", lambda r: r + 3.7)


def scale(method: Method, seed: int) -> str:
    """Rewards times a constant change nothing, where the credit claims it (up to its eps)."""
    return _moved(method, seed, "scale", lambda r: r * 40.0)


def _moved(method: Method, seed: int, law: str, f: Callable[[Tensor], Tensor]) -> str:
    if law not in method.credit.ignores:
        return ""
    world = World(without_penalties(method), seed)
    batch = world.packed(random_episodes(seed))
    moved = batch.with_columns(reward_E=f(batch.reward_E))
    limit = EXACT if law == "shift" else 1e-4
    return _same(world.grad(world.prepared(batch)), world.grad(world.prepared(moved)), f"after {law}", limit)


def direction(method: Method, seed: int) -> str:
    """On-policy, the objective pushes right answers up against wrong ones of their group."""
    world = World(without_penalties(method), seed, on_policy=True)
    episodes = [replace(e, use=Use.LEARN) for e in random_episodes(seed, dead=False)]
    batch = world.packed(episodes)
    batch = batch.with_columns(**{k: torch.zeros_like(v) for k, v in batch.columns.items() if k.startswith("value_")})
    batch = world.prepared(batch)
    stats = {k: v.requires_grad_() for k, v in world.statistics(batch).items()}
    if "logp_old_N" in batch.columns and "logp_N" in stats:
        batch = batch.with_columns(logp_old_N=stats["logp_N"].detach())
    slope = torch.autograd.grad(world.value(batch, stats), stats["logp_N"])[0]
    push_E = batch.gather(slope, "N", "E", "sum")
    better_E = batch.reward_E - batch.spread(batch.gather(batch.reward_E, "E", "G", "mean"), "G", "E")
    along = float((push_E * better_E).sum())
    return "" if along > 0 else f"the push along better answers is {along:.2e}, not above 0"


def extremes(method: Method, seed: int) -> str:
    """Ratios of e^±60 give a finite objective and a finite gradient."""
    world = World(method, seed)
    batch = world.prepared(world.packed(random_episodes(seed)))
    for gap in (60.0, -60.0):
        stats = world.statistics(batch)
        wide = batch
        for name in ("logp_old_N", "logp_ref_N"):
            if name in batch.columns and "logp_N" in stats:
                sign = torch.where(torch.arange(batch.size("N")) % 2 == 0, 1.0, -1.0).double()
                wide = wide.with_columns(**{name: stats["logp_N"] + gap * sign})
        leaves = {k: v.requires_grad_() for k, v in stats.items()}
        value = world.value(wide, leaves)
        slopes = [g for g in torch.autograd.grad(value, list(leaves.values()), allow_unused=True) if g is not None]
        if not bool(torch.isfinite(value)) or not all(bool(torch.isfinite(g).all()) for g in slopes):
            return f"objective {float(value)} or its gradient is not finite at log-ratio {gap}"
    return ""


def finite_differences(method: Method, seed: int) -> str:
    """Autograd agrees with finite differences, stopped parts held at the base point."""
    world = World(method, seed)
    batch = world.prepared(world.packed(random_episodes(seed)))
    for role in world.learner.trained:
        stats = world.statistics(batch, role)
        leaves = {k: v.clone().requires_grad_() for k, v in stats.items()}
        generator = torch.Generator().manual_seed(seed)
        ways = {k: torch.randn(v.shape, generator=generator, dtype=v.dtype) for k, v in stats.items()}
        with freeze() as tape:
            value = world.value(batch, leaves, role)
            tape.rewind()
            slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
            told = sum(float((g * ways[k]).sum()) for k, g in zip(leaves, slopes, strict=True) if g is not None)
            ends: list[float] = []
            for h in (1e-6, -1e-6):
                ends.append(float(world.value(batch, {k: v + h * ways[k] for k, v in stats.items()}, role)))
                tape.rewind()
        seen = (ends[0] - ends[1]) / 2e-6
        if abs(told - seen) > 1e-6 * max(1.0, abs(told), abs(seen)):
            return f"{role}: autograd says {told:.8g}, finite differences {seen:.8g}"
    return ""


def keep_and_weight(method: Method, seed: int) -> str:
    """A token that selection dropped, or weighs 0, is not in the objective's gradient."""
    world = World(method.but(penalties=()), seed)
    batch = world.prepared(world.packed(random_episodes(seed)))
    generator = torch.Generator().manual_seed(seed)
    off = torch.rand(batch.size("N"), generator=generator) < 0.4
    for name, muted in (
        ("keep", batch.with_columns(keep_N=batch.keep_N & ~off)),
        ("weight", batch.with_columns(weight_N=torch.where(off, torch.zeros_like(batch.weight_N), batch.weight_N))),
    ):
        stats = {k: v.requires_grad_() for k, v in world.statistics(muted).items()}
        slopes = torch.autograd.grad(world.value(muted, stats), list(stats.values()), allow_unused=True)
        loud = [float(g[off].abs().max()) for g in slopes if g is not None and len(g) == len(off) and bool(off.any())]
        if loud and max(loud) > 0:
            return f"gradient {max(loud):.2e} on tokens with {name} = 0"
    return ""


def memory(method: Method, seed: int) -> str:
    """State survives save and load exactly, and a room that only reads gives the same twice."""
    world = World(method, seed)
    episodes = random_episodes(seed)
    for step in range(3):
        batch = world.prepared(world.packed(episodes))
        with world.ctx.memory.writing() as state:
            for _, o in method.occupants():
                o.observe(StepRecord(step, episodes, batch, {}), state)
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
    """The record survives its round trip through plain tables, with the same hash."""
    back = from_table(to_table(method))
    return "" if back == method and record_hash(back) == record_hash(method) else "the record changed on its round trip"


def fields_matter(method: Method, seed: int) -> str:
    """Every field of every occupant changes something: no argument is ever ignored."""
    for room, place, occupant in _places(method):
        for f in fields(occupant):
            before = getattr(occupant, f.name)
            named = occupant.witness.get(f.name, list(_others(before)))
            tries = named if isinstance(named, list) else [named]
            if not any(_shows(method, room, place, occupant, replace(occupant, **{f.name: v})) for v in tries if v != before):
                return f"{kind(occupant)}.{f.name} in {room}: none of {tries} changed anything; name a witness, or drop the field"
    return ""


def _places(method: Method) -> Iterable[tuple[str, Any, Any]]:
    for room in ("reward", "select", "credit", "objective", "penalties", "update"):
        held = getattr(method, room)
        if isinstance(held, dict) or hasattr(held, "items"):
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


def _shows(method: Method, room: str, place: Any, old: Any, new: Any) -> bool:
    held = getattr(method, room)
    if room in CHAINS:
        changed = method.but(**{room: tuple(new if i == place else o for i, o in enumerate(held))})
    else:
        changed = method.but(**{room: new if place is None else {**held, place: new}})
    return any(_fingerprint(method, room, old, s) != _fingerprint(changed, room, new, s) for s in range(8))


def _fingerprint(method: Method, room: str, occupant: Any, seed: int) -> Any:
    """What a room does on one batch, as plain numbers."""
    world = World(method, seed)
    episodes = random_episodes(seed, groups=4, mixed=seed % 2 == 0)
    if room == "reward":
        judged = [e for e in episodes if e.status.judged]
        return {k: np.asarray(v).tolist() for k, v in occupant(world.ctx, judged).items()}
    if room == "select" and hasattr(occupant, "episodes"):
        return _door(world, occupant, episodes)
    if room == "update":
        return _after_update(world, episodes)
    batch = world.packed(episodes)
    for step in range(2):  # so that what depends on memory shows
        with world.ctx.memory.writing() as state:
            for _, o in method.occupants():
                o.observe(StepRecord(step, episodes, batch.with_columns(reward_E=batch.reward_E * (step + 1)), {}), state)
    ready = world.prepared(batch)
    return [world.grad(ready, role).tolist() for role in world.learner.trained]


def _door(world: World, occupant: Any, episodes: list[Episode]) -> Any:
    world.ctx.fresh = lambda n: [n]  # type: ignore[assignment, return-value]
    out: list[Any] = []
    for world.ctx.round in range(5):
        out.append([*occupant.episodes(world.ctx, episodes)])
    return out


def _after_update(world: World, episodes: list[Episode]) -> Any:
    batch = world.prepared(world.packed(episodes))
    world.method.update(world.ctx, world.learner, batch)
    return [p.tolist() for p in world.models["policy"].parameters()]


LAWS: dict[str, Law] = {
    f.__name__: f
    for f in (
        micro_batches, fused_is_two_pass, lazy_old, order, nan_mask, failures, unused, equal_rewards, shift, scale,
        direction, extremes, finite_differences, keep_and_weight, memory, record, fields_matter,
    )
}  # fmt: skip
ONCE = frozenset({"record", "fields_matter"})  # these do not depend on the seed


def check_laws(method: Method, seeds: Iterable[int] = range(3)) -> dict[str, str]:
    """{law: "" or how it is broken}. A law that the method breaks on purpose must really be broken."""
    out: dict[str, str] = {}
    for name, law in LAWS.items():
        said = next((s for seed in (seeds if name not in ONCE else (0,)) if (s := law(method, seed))), "")
        if name in method.breaks:
            said = "" if said else f"declared as broken ({method.breaks[name]}), but it holds: take the declaration away"
        out[name] = said
    return out

