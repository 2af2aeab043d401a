"""The laws: what every method must satisfy, whatever is in its rooms. `gruppo methods check NAME` runs them.

A law takes a method and a seed, and returns "" or a sentence that says how it is broken. A method that breaks a law on
purpose declares it in `breaks`, with the reason, which is also in its documentation.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import tomli_w
import torch
from torch import Tensor

from gruppo.data import Batch, Use
from gruppo.lab.laws.declared import columns, refused
from gruppo.lab.laws.episodes import random_episodes, with_rewards
from gruppo.lab.laws.fields import fields_matter, schedules
from gruppo.lab.laws.finite import finite
from gruppo.lab.laws.prefixes import shared_prefixes
from gruppo.lab.laws.rows import failures, keep_and_weight, nan_mask, unused
from gruppo.lab.laws.same import EXACT, drifted, first, observe, remembers, same
from gruppo.lab.laws.world import World, bare, random_cut
from gruppo.pieces.stop import freeze
from gruppo.stages import ByUpdate, Method, StepRecord
from gruppo.stages.check import least_samples
from gruppo.stages.record import from_table, record_hash, to_table
from gruppo.train.checkpoint import pack_memory, unpack_memory

Law = Callable[[Method, int], str]


def micro_batches(method: Method, seed: int) -> str:
    """Any split into micro-batches gives the same gradient, even if it cuts groups and shuffles episodes."""
    world = World(method, seed)
    batch = world.prepared(world.packed(random_episodes(seed)))

    def check(role: str) -> Iterable[str]:
        rows = torch.arange(batch.size("S"))
        for k, near in enumerate(drifted(batch)):
            uncut = world.grad(near, role, [rows])
            cut = random_cut(batch, seed + k) if k else [rows[::2], rows[1::2]]  # splits every episode of two sequences
            yield same(uncut, world.grad(near, role, cut), f"{role} in micro-batches")

    return first(said for role in world.learner.trained for said in check(role))


def fused_is_two_pass(method: Method, seed: int) -> str:
    """One fused pass and two passes give the same gradient."""
    world = World(method, seed)
    batch = world.prepared(world.packed(random_episodes(seed)))
    cut = random_cut(batch, seed)
    return first(
        same(world.grad(near, role, cut), world.grad(near, role, cut, two_pass=True), f"{role} in two passes")
        for role in world.learner.trained
        for near in drifted(batch)
    )


def lazy_old(method: Method, seed: int) -> str:
    """If log π_old is left out of the batch, log π takes its place: the gradient is the same as with the column."""
    world = World(method, seed, on_policy=True)
    batch = world.prepared(world.packed(random_episodes(seed)))
    if "logp_old_N" not in batch.columns:
        return ""
    lazy = replace(batch, columns={k: v for k, v in batch.columns.items() if k != "logp_old_N"}, _cache={})
    return same(world.grad(batch), world.grad(lazy, cut=random_cut(batch, seed)), "lazy logp_old")


def order(method: Method, seed: int) -> str:
    """The order of episodes in the batch does not matter."""
    episodes = random_episodes(seed)
    shuffled = [episodes[i] for i in np.random.default_rng(seed).permutation(len(episodes))]
    world = World(method, seed)
    return first(
        same(world.gradient(episodes, role), world.gradient(shuffled, role), f"{role} in another order")
        for role in world.learner.trained
    )


def equal_rewards(method: Method, seed: int) -> str:
    """With equal rewards, no penalties and an empty memory, there is nothing to learn."""
    world = World(bare(method), seed, on_policy=True)
    for reward in (0.7, 0.1):  # their mean is rounded
        size = float(world.gradient(with_rewards(random_episodes(seed), reward)).norm())
        if not size <= 1e-12:
            return f"gradient of norm {size:.2e} from rewards that are all {reward:.2g}"
    return ""


def shift(method: Method, seed: int) -> str:
    """Adding a constant to every reward changes nothing, if the credit claims so."""
    return _moved(method, seed, "shift", lambda r: r + 3.7)


def scale(method: Method, seed: int) -> str:
    """Multiplying rewards by a constant changes nothing, if the credit claims so (up to its eps)."""
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
    limit = EXACT if law == "shift" else max(1e-4, 10 * getattr(method.credit, "eps", 0.0))  # deviations are above 0.1
    return same(world.gradient(episodes), world.gradient(moved), f"after {law}", limit)


def direction(method: Method, seed: int) -> str:
    """On-policy, the objective pushes right answers up against wrong ones, in every group that has both."""
    world = World(bare(method), seed, on_policy=True)
    plain = [
        replace(e, use=Use.LEARN, reward={"task": e.total}, turns=[replace(t, reward={}) for t in e.turns])
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
    """Log-ratios of ±60 and ±800, of one sign or alternating, give a finite objective and gradient, although exp(800)
    overflows; so do values of ±1e6."""
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
    columns |= {k: _far_off(x, 1250.0 * gap_N) for k, x in batch.columns.items() if k.startswith("value_")}
    wide = world.prepared(batch.with_columns(**columns))
    value, slopes = world.value(wide, stats, role), world.slopes(wide, stats, role)
    finite = bool(torch.isfinite(value)) and all(bool(torch.isfinite(g).all()) for g in slopes.values())
    return "" if finite else f"objective {float(value)} or its gradient is not finite"


def _far_off(x: Tensor, far_N: Tensor) -> Tensor:
    """A column of any level and width, with these numbers in it."""
    rows = far_N[torch.arange(len(x)) % max(len(far_N), 1)]
    return rows.view(-1, *[1] * (x.dim() - 1)).expand_as(x)


def finite_differences(method: Method, seed: int) -> str:
    """Autograd agrees with finite differences, with stop-gradient parts held fixed."""
    world = World(method, seed)
    batch = world.prepared(world.packed(random_episodes(seed)))
    generator = torch.Generator().manual_seed(seed)
    for role in world.learner.trained:
        stats = world.statistics(batch, role)
        ways = {k: torch.randn(v.shape, generator=generator, dtype=v.dtype) for k, v in stats.items()}
        ways |= {k: torch.zeros_like(v) for k, v in stats.items() if k not in world.own(role)}
        with freeze() as tape:
            slopes = world.slopes(batch, stats, role)
            ends: list[float] = []
            for h in (1e-6, -1e-6):
                tape.rewind()
                ends.append(float(world.value(batch, {k: v + h * ways[k] for k, v in stats.items()}, role)))
        parts = torch.cat([(slopes[k] * ways[k]).flatten() for k in stats])
        by_autograd, measured = float(parts.sum()), (ends[0] - ends[1]) / 2e-6
        allowed = 1e-5 * float(parts.abs().sum()) + 1e-9 * max(1.0, abs(ends[0]))
        if not abs(by_autograd - measured) <= allowed:
            return f"{role}: autograd says {by_autograd:.8g}, finite differences {measured:.8g}"
    return ""


def alone(method: Method, seed: int) -> str:
    """If a method learns nothing from groups of one, one of its occupants requires two samples or more."""
    if least_samples(method) > 1:
        return ""
    episodes = [replace(e, group=f"{e.group}-{e.uid}") for e in random_episodes(seed, dead=False)]
    size = float(World(bare(method), seed).gradient(episodes).norm())
    return (
        ""
        if size > 1e-9
        else "groups of one teach nothing, and no occupant says so. Add to the credit:  requires = (Samples(2),)"
    )


def roles(method: Method, seed: int) -> str:
    """The update changes every trained role, and no other model but those that it is said to move."""
    world = World(method, seed)
    batch = world.prepared(world.packed(random_episodes(seed)))
    before = {role: deepcopy(model.state_dict()) for role, model in world.models.items()}
    learning = [role for role in world.learner.trained if float(world.grad(batch, role).norm()) > 0]
    learning += [role for role in world.models if isinstance(method.cast[role].refresh, ByUpdate)]
    world.updated(random_episodes(seed))
    for role, model in world.models.items():
        moved = any(not torch.equal(x, before[role][k]) for k, x in model.state_dict().items())
        if moved != (role in learning):
            return f"role {role!r} {'was changed, and is not trained' if moved else 'is trained, and was not changed'}"
    return ""


def memory(method: Method, seed: int) -> str:
    """Rooms only read memory: the same episodes give the same gradient twice, and memory does not change. What
    `observe` writes, also at a step without a batch, is saved and loaded exactly."""
    world = World(method, seed)
    episodes = random_episodes(seed)
    for step in range(2):
        before = deepcopy(world.ctx.memory.plain)
        once, again = world.gradient(episodes), world.gradient(episodes)
        said = same(once, again, "the same episodes a second time", 0.0)
        if said or not _equal(before, world.ctx.memory.plain):
            return said or f"memory {before} became {world.ctx.memory.plain} without observe"
        if not remembers(method):
            return ""
        observe(world, episodes, step)
    with world.ctx.memory.writing() as state:
        for _, o in method.occupants():
            o.observe(StepRecord(2, [], None, {}, world.ctx), state)
    tensors: dict[str, Tensor] = {}
    back = unpack_memory(pack_memory(world.ctx.memory.plain, tensors), tensors)
    if not _equal(world.ctx.memory.plain, back):
        return f"memory {world.ctx.memory.plain} came back as {back}"
    before = world.gradient(episodes)
    world.ctx.memory = type(world.ctx.memory)(back)
    world.learner.ctx = world.ctx
    return same(before, world.gradient(episodes), "after save and load", 0.0)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def record(method: Method, seed: int) -> str:
    """The record is the same after writing it to a run file and reading it back, and so is its hash."""
    back = from_table(tomllib.loads(tomli_w.dumps(to_table(method))))
    return "" if back == method and record_hash(back) == record_hash(method) else "the record changed on its round trip"


LAWS: dict[str, Law] = {
    f.__name__: f
    for f in (
        finite, columns, micro_batches, shared_prefixes, fused_is_two_pass, lazy_old, order, nan_mask, failures, unused,
        equal_rewards, shift, scale, direction, extremes, finite_differences, keep_and_weight, alone, roles, memory,
        record, fields_matter, schedules,
    )
}  # fmt: skip
UNTESTED = "not tested:"
RARE = 64  # seeds on which a law that is declared as broken is tried: some break it now and then
ONCE = frozenset({"record", "fields_matter", "schedules"})  # these do not depend on the seed


def excused(law: str, method: Method) -> str:
    """Why a law that is not broken says nothing about a method; empty if it was put to the test."""
    if law in ("shift", "scale") and law not in method.credit.ignores:
        return f"not tested: the credit does not claim it ({law!r} is not in `ignores`)"
    return f"broken on purpose: {method.breaks[law]}" if law in method.breaks else ""


def verdict(law: str, method: Method, seed: int = 0) -> str:
    """What a law says about a method; if an occupant raises, the law is broken."""
    try:
        return LAWS[law](method, seed)
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


def check_laws(method: Method, seeds: Iterable[int] = range(3)) -> dict[str, str]:
    """{law: "" or how it is broken}. A law that the method breaks on purpose must really be broken."""
    return dict(law_by_law(method, seeds))


def law_by_law(method: Method, seeds: Iterable[int] = range(3)) -> Iterator[tuple[str, str]]:
    """`check_laws`, one law at a time. What is not finite is told once: every other law would fail by it, too.

    A method that a run would refuse breaks no law: it is told as "refused", and no law is tested.
    """
    said = refused(method)
    if said:
        yield "refused", said
    broken = f"{UNTESTED} a run would refuse the method" if said else ""
    for name in LAWS:
        if broken:
            yield name, broken
            continue
        tried = range(RARE) if name in method.breaks else seeds
        said = first(verdict(name, method, seed) for seed in (tried if name not in ONCE else (0,)))
        if name in method.breaks and not said.startswith("raised "):
            holds = f"declared as broken ({method.breaks[name]}), but it holds: take the declaration away"
            said = "" if said else holds
        yield name, said
        what, found, _ = said.partition(" is not finite")
        broken = f"{UNTESTED} {what}{found}" if name == "finite" and found else ""
