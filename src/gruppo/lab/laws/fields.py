"""Laws about hyper-parameters: every field changes something, and schedules are followed."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields, replace
from typing import Any, Literal, get_args, get_origin

import numpy as np

from gruppo.data import Episode
from gruppo.lab.laws.desk import Desk
from gruppo.lab.laws.episodes import random_episodes, with_notes
from gruppo.lab.laws.same import drifted, observe, remembers
from gruppo.lab.laws.world import NothingToLearn, World
from gruppo.stages import ROOMS, Method, Schedule, kind
from gruppo.stages.occupant import hints_of
from gruppo.stages.walk import noted

BEFORE_THE_BATCH = ("curriculum", "prompting", "rollout")
DIRECTLY_SEEN = (*BEFORE_THE_BATCH, "replay", "reward", "update")  # others are seen in the gradient only


def fields_matter(method: Method, seed: int, slots: Sequence[tuple[str, Any, Any]] | None = None) -> str:
    """Every field of every occupant changes something: no argument is ever ignored. `slots`: of these occupants."""
    known: dict[Any, str] = {}

    def plain(room: str, slot: Any, occupant: Any, n: int) -> str:
        """The fingerprint before a change; rooms that only the gradient shows have one in common."""
        own = room in DIRECTLY_SEEN or hasattr(occupant, "episodes")
        key = (room, slot, n) if own else n
        if key not in known:
            known[key] = _fingerprint(method, room, slot, n)
        return known[key]

    def shows(room: str, slot: Any, new: Any) -> bool:
        changed = _with(method, room, slot, new)
        return any(plain(room, slot, new, n) != _fingerprint(changed, room, slot, n) for n in range(4))

    for room, slot, occupant in slots_of(method) if slots is None else slots:
        for f in fields(occupant):
            tries = list(_tries(occupant, f))
            if not any(shows(room, slot, new) for new in tries):
                values = [getattr(new, f.name) for new in tries]
                return (
                    f"{kind(occupant)}.{f.name} in {room}: none of {values} changed anything; name a witness, or drop "
                    "the field"
                )
    return ""


def schedules(method: Method, seed: int) -> str:
    """A field that takes a schedule reads its value at the current step."""
    for room, slot, occupant in slots_of(method):
        hints = hints_of(type(occupant))
        for f in fields(occupant):
            if Schedule not in get_args(hints[f.name]):
                continue
            low = float(f.metadata.get("low", 0.0))
            high = low + (0.3 if low < 1 else 30.0)  # a number of turns is whole
            moving, step = Schedule(f"linear({low!r}, {high!r}, steps=10)"), World(method, seed).ctx.step
            now = moving.value(step, {})
            left, right = (_with(method, room, slot, replace(occupant, **{f.name: v})) for v in (moving, now))
            if _fingerprint(left, room, slot, seed, (step,)) != _fingerprint(right, room, slot, seed, (step,)):
                return f"{kind(occupant)}.{f.name} in {room}: {moving} is not {now:g} at its step"
    return ""


def slots_of(method: Method) -> Iterable[tuple[str, Any, Any]]:
    for room in ROOMS:
        held = getattr(method, room)
        if isinstance(held, Mapping):
            yield from ((room, (role, i), o) for role, chain in held.items() for i, o in enumerate(chain))
        elif isinstance(held, tuple):
            yield from ((room, i, o) for i, o in enumerate(held))
        else:
            yield room, None, held


def _tries(occupant: Any, f: Field[Any]) -> Iterable[Any]:
    """The occupant with other values of a field: its witnesses, its default, and some usual values."""
    before, named = getattr(occupant, f.name), list(f.metadata.get("witness", ()))
    default = [] if f.default is MISSING else [f.default]
    for value in (*named, *default, *_others(f.name, before, hints_of(type(occupant)).get(f.name))):
        if value != before:
            with suppress(ValueError):  # outside its bounds
                yield replace(occupant, **{f.name: value})


def _others(name: str, value: Any, hint: Any) -> Iterable[Any]:
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    elif name == "mean":
        yield from (7.0, "token", "sequence")
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value + 5, 0)
    elif isinstance(value, float):
        yield from (value * 0.1, value * 3 + 0.1, 0.0, 0.9)


def _with(method: Method, room: str, slot: Any, new: Any) -> Method:
    held = getattr(method, room)
    if isinstance(held, Mapping):
        role, i = slot
        return method.but(**{room: {**held, role: tuple(new if j == i else o for j, o in enumerate(held[role]))}})
    if isinstance(held, tuple):
        return method.but(**{room: tuple(new if i == slot else o for i, o in enumerate(held))})
    return method.but(**{room: new})


def _fingerprint(method: Method, room: str, slot: Any, seed: int, steps: Sequence[int] = ()) -> str:
    """What a room does on one batch, as text, so that NaN equals NaN and is not mistaken for a change.

    Rooms before the batch are looked at in these steps, by default in several.
    """
    try:
        return _shown(method, room, slot, seed, steps)
    except NothingToLearn:
        return "nothing to learn from"


def _shown(method: Method, room: str, slot: Any, seed: int, steps: Sequence[int]) -> str:
    world = World(method, seed)
    held = getattr(method, room)
    occupant = held if slot is None else held[slot[0]][slot[1]] if isinstance(held, Mapping) else held[slot]
    episodes = random_episodes(seed, groups=4, mixed=seed % 2 == 0)
    if room in BEFORE_THE_BATCH:
        return repr(_before_the_batch(world, room, occupant, episodes, steps))
    if room == "replay":
        return repr(_remembered(world, occupant, episodes))
    if room == "reward":
        observe_twice(world, episodes)
        judged = [e for e in with_notes(method, episodes) if e.status.judged]
        found = occupant(world.ctx, judged).items()
        return repr({k: [np.asarray(x).tolist() for x in v] for k, v in found})  # of an episode, or of its turns
    if room == "update":
        return repr(_after_update(world, episodes))
    doors = _door(world, occupant, with_notes(method, episodes)) if hasattr(occupant, "episodes") else None
    observe_twice(world, episodes)
    ready = [*drifted(world.prepared(world.packed(episodes)))][seed % 3]
    return repr((doors, [world.grad(ready, role).tolist() for role in world.learner.trained]))


def observe_twice(world: World, episodes: list[Episode]) -> None:
    """Fill memory and replay, so that what depends on them shows. The second time all rewards are doubled."""
    for step in range(2) if remembers(world.method) else ():
        observe(world, [_times(e, step + 1) for e in episodes], step)


def _times(e: Episode, factor: int) -> Episode:
    turns = [replace(t, reward={k: factor * v for k, v in t.reward.items()}) for t in e.turns]
    return replace(e, reward={k: factor * v for k, v in e.reward.items()}, turns=turns)


def _before_the_batch(
    world: World, room: str, occupant: Any, episodes: list[Episode], steps: Sequence[int] = ()
) -> Any:
    desk = Desk(world)
    observe_twice(world, episodes)
    if room == "curriculum":
        out: list[Any] = []
        for world.ctx.step in steps or range(4):
            asks = desk.asks(occupant)
            out.append([(a.task.uid, a.samples, a.group, dict(a.how), a.key, dict(a.notes)) for a in asks])
        return out
    if room == "prompting":
        prompts = desk.prompts([occupant])
        return [
            (list(p.ids), p.group, p.samples, p.given, None if p.train_as is None else list(p.train_as))
            for p in prompts
        ]
    made: list[Episode] = []
    for world.ctx.step in steps or (1, 6):  # early in a run, and in the middle of it
        made += desk.episodes(occupant)
    return [
        (e.group, e.status, e.use, e.reward, {k: n.values.tolist() for k, n in e.notes.items()},
         [(t.start, t.stop) for t in e.turns], [(list(s.ids), list(s.source), list(s.logp)) for s in e.sequences])
        for e in made
    ]  # fmt: skip


def _remembered(world: World, replay: Any, episodes: list[Episode]) -> Any:
    """What is recalled over some steps, and the settings that the loop reads (see stages.replay.Replay)."""
    store: list[Episode] = []
    stored = _annotated(world, episodes)
    out: list[Any] = [replay.joins, replay.proximal, replay.credited]
    for world.ctx.step in range(8):
        world.ctx.replay = replay.get(world.ctx, store)
        out.append([e.uid for e in world.ctx.replay])
        if hasattr(replay, "insert"):  # in every second step all fail
            out.append([e.uid for e in replay.insert(world.ctx, [_times(e, world.ctx.step % 2) for e in episodes])])
        made = [replace(e, uid=e.uid + 100 * world.ctx.step, step=world.ctx.step) for e in stored[:8]]
        store = replay.put(world.ctx, store, made)
    return out


def _annotated(world: World, episodes: list[Episode]) -> list[Episode]:
    """The episodes with the notes that the loop stores."""
    kept = world.selected(episodes)
    batch = world.prepared(world.joined(kept, episodes))
    return noted(batch, kept, ("logp_old_N", *world.method.credit.writes))


def _door(world: World, occupant: Any, episodes: list[Episode]) -> Any:
    world.ctx.fresh = lambda n: [n]  # type: ignore[assignment, return-value]
    out: list[Any] = []
    for world.ctx.round in range(5):
        out.append([*occupant.episodes(world.ctx, episodes)])
    world.ctx.fresh, world.ctx.round = lambda n: [], 0
    return out


def _after_update(world: World, episodes: list[Episode]) -> Any:
    # Enough to fill windows over steps, with rewards that rise and fall.
    for step in range(9) if remembers(world.method) else ():
        observe(world, [_times(e, 1 + step % 3) for e in episodes], step)
    world.updated(episodes)
    if (warmup := getattr(world.method.update, "warmup", 0)) > world.ctx.step:
        world.ctx.step = warmup
        world.updated(episodes)
    return [p.tolist() for role in world.learner.trained for p in world.models[role].parameters()]
