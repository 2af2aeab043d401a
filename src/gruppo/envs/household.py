"""A household: find things in closed containers, carry them through rooms, and put them where they belong.

Rooms form rings, containers can be closed again and things put back, so states recur. At higher levels a container is
locked, and its key is somewhere else.

With free hands you look for something: then a room is shown without what is open and empty, and an empty container is
followed by the room as it is now. So the last text always names what can still be opened there.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gruppo.envs.household_make import CONTAINERS, KEY, ROOMS, THINGS, drawn_house
from gruppo.envs.world import WON, Draws, Facts, Moved, World, nothing, spoken, wanted


class State(NamedTuple):
    room: str
    held: str  # the thing in your hands; empty: none
    opened: tuple[str, ...]  # sorted
    where: tuple[str, ...]  # the container of each thing, in the order of House.things; empty: taken
    key: bool  # whether you have the key


class House:
    """What does not change: rooms and doors, where containers stand, what belongs where."""

    def __init__(self, facts: Facts) -> None:
        self.start: str = wanted(facts, "start", str, "household")
        self.places: dict[str, str] = dict(wanted(facts, "places", Mapping, "household"))
        inside: dict[str, str] = dict(wanted(facts, "things", Mapping, "household"))
        self.things, self.first = tuple(inside), tuple(inside.values())
        self.index = {thing: i for i, thing in enumerate(self.things)}
        self.goals: list[tuple[str, str]] = [(a, b) for a, b in wanted(facts, "goals", list, "household")]
        self.locked = frozenset(facts.get("locked", ()))
        self.exits: dict[str, list[str]] = {room: [] for room in {self.start, *self.places.values()}}
        for a, b in wanted(facts, "doors", list, "household"):
            self.exits.setdefault(a, []).append(b)
            self.exits.setdefault(b, []).append(a)
        self.here = {room: [c for c, r in self.places.items() if r == room] for room in self.exits}
        self._check()
        self.ways = {room: self._ways(room) for room in self.exits}

    def _check(self) -> None:
        named = {*self.first, *(c for _, c in self.goals), *self.locked}
        missing = sorted(named - set(self.places)) + sorted({t for t, _ in self.goals} - set(self.things))
        if missing or not self.goals:
            what = f"{missing[0]!r} is named, but it is nowhere" if missing else "there is no goal"
            raise ValueError(f"household: {what}. Write its container into places, its things into things, or a goal.")

    def _ways(self, target: str) -> dict[str, str]:
        """For each room, the next room on a shortest way to the target."""
        next_room, queue = {target: target}, deque([target])
        while queue:
            room = queue.popleft()
            for other in self.exits[room]:
                if other not in next_room:
                    next_room[other] = room
                    queue.append(other)
        return next_room


class Household(World[State]):
    name = "household"
    about = "rooms, containers, things and goals; locked containers from level 3 on"
    # Actions have at most 5 tokens; with more room they grow in training. The rest: benchmarks/LOG.md.
    usual = {
        "prompts": "16",
        "steps": "320",
        "sampling.max_tokens": "5",
        "eval.every": "40",
        "optim.lr": "then({0: linear(5e-5, 5e-4, steps=40), 40: cosine(5e-4, 2e-5, steps=280)})",
    }
    rules = (
        "You are in a house. Find things in containers and put them where they belong. You carry one thing; a key goes "
        "into your pocket and opens what is locked. Actions: go ROOM, open CONTAINER, close CONTAINER, take THING, put "
        "THING in CONTAINER, look."
    )
    words = spoken("in with open to has is empty closed locked go close take put look you and win nothing happens") | {
        *ROOMS,
        *CONTAINERS,
        *THINGS,
        KEY,
    }
    # rooms, containers, things, goals, locked, turns
    levels = {1: (2, 3, 1, 1, 0, 8), 2: (3, 4, 2, 1, 0, 16), 3: (4, 6, 3, 1, 1, 30), 4: (6, 8, 4, 2, 1, 50)}

    @classmethod
    def drawn(cls, level: int, draw: Draws) -> dict[str, Any]:
        return drawn_house(draw, *cls.levels[level])

    @classmethod
    def suits(cls, facts: Facts) -> bool:
        met = all(facts["things"][thing] == place for thing, place in facts["goals"])
        return not met and super().suits(facts)

    @classmethod
    def asked(cls, facts: Facts) -> str:
        return "put " + " and ".join(f"{thing} in {place}" for thing, place in facts["goals"])

    def begin(self, facts: Facts) -> State:
        self.house = House(facts)
        return State(self.house.start, "", (), self.house.first, False)

    def move(self, state: State, words: list[str]) -> Moved[State]:
        if words == ["look"]:
            return Moved(state)
        if len(words) == 2:
            verb, what = words
            act = {"go": self._go, "open": self._open, "close": self._close, "take": self._take}.get(verb)
            return act(state, what) if act else nothing(state)
        if words[0] == "put" and (len(words) == 3 or (len(words) == 4 and words[2] == "in")):
            return self._put(state, words[1], words[-1])
        return nothing(state)

    def _go(self, state: State, room: str) -> Moved[State]:
        return Moved(state._replace(room=room)) if room in self.house.exits[state.room] else nothing(state)

    def _open(self, state: State, place: str) -> Moved[State]:
        if self.house.places.get(place) != state.room:
            return nothing(state)
        if place in self.house.locked and not state.key:
            return Moved(state, f"{place} is locked")
        if place not in state.opened:
            state = state._replace(opened=tuple(sorted((*state.opened, place))))
        inside = [thing for thing, at in zip(self.house.things, state.where, strict=True) if at == place]
        if inside:
            return Moved(state, f"{place} has {' '.join(inside)}")
        return Moved(state, f"{place} is empty" if state.held else f"{place} is empty {self.view(state)}")

    def _close(self, state: State, place: str) -> Moved[State]:
        if place not in state.opened or self.house.places[place] != state.room:
            return nothing(state)
        return Moved(state._replace(opened=tuple(c for c in state.opened if c != place)), f"{place} is closed")

    def _take(self, state: State, thing: str) -> Moved[State]:
        i = self.house.index.get(thing)
        place = "" if i is None else state.where[i]
        if i is None or place not in state.opened or self.house.places[place] != state.room:
            return nothing(state)
        if thing != KEY and state.held:
            return nothing(state)
        where = (*state.where[:i], "", *state.where[i + 1 :])
        state = state._replace(where=where, key=True) if thing == KEY else state._replace(where=where, held=thing)
        return Moved(state, f"you take {thing}")

    def _put(self, state: State, thing: str, place: str) -> Moved[State]:
        if not thing or state.held != thing or place not in state.opened or self.house.places[place] != state.room:
            return nothing(state)
        i = self.house.index[thing]
        state = state._replace(held="", where=(*state.where[:i], place, *state.where[i + 1 :]))
        if all(state.where[self.house.index[t]] == at for t, at in self.house.goals):
            return Moved(state, WON, True, True, 1.0)
        return Moved(state, f"you put {thing} in {place}")

    def view(self, state: State) -> str:
        parts = ["in", state.room, *(["with", state.held] if state.held else [])]
        for place in self.house.here[state.room]:
            if place not in state.opened:
                parts.append(place)
            elif state.held or place in state.where:
                parts += [place, "open"]
        exits = self.house.exits[state.room]
        return " ".join([*parts, *(["to", *exits] if exits else [])])

    def key(self, state: State) -> str:
        return f"{state.room}|{state.held}|{' '.join(state.opened)}|{' '.join(state.where)}|{state.key:d}"

    def choices(self, state: State) -> Sequence[str]:
        house, out = self.house, [f"go {room}" for room in self.house.exits[state.room]]
        for place in house.here[state.room]:
            if place not in state.opened:
                out.append(f"open {place}")
                continue
            out.append(f"close {place}")
            inside = [thing for thing, at in zip(house.things, state.where, strict=True) if at == place]
            out += [f"take {thing}" for thing in inside if thing == KEY or not state.held]
            out += [f"put {state.held} in {place}"] if state.held else []
        return [*out, "look"]

    # ---- the winning player --------------------------------------------------------------------------

    def best(self, state: State) -> str:
        for thing, target in self.house.goals:
            place = state.where[self.house.index[thing]]
            if place == target:
                continue
            if state.held == thing:
                return self._reach(state, target) or f"put {thing} in {target}"
            return self._reach(state, place) or self._fetch(state, thing, place)
        return ""

    def _reach(self, state: State, place: str) -> str:
        """The next action on the way to an open container; empty if you are there and it is open."""
        house = self.house
        if place in house.locked and place not in state.opened and not state.key:
            at = state.where[house.index[KEY]]
            return self._reach(state, at) or f"take {KEY}"
        if house.places[place] != state.room:
            return f"go {house.ways[house.places[place]][state.room]}"
        return "" if place in state.opened else f"open {place}"

    def _fetch(self, state: State, thing: str, place: str) -> str:
        return f"put {state.held} in {place}" if state.held else f"take {thing}"
