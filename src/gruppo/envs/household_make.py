"""Houses for the world `household`: rooms in a ring, with at most two containers and three doors each."""

from itertools import pairwise
from typing import Any

from gruppo.envs.world import Luck

ROOMS = ("hall", "kitchen", "garden", "attic", "cellar", "bedroom", "bathroom", "office")
CONTAINERS = ("box", "shelf", "fridge", "drawer", "chest", "closet", "basket", "safe")
THINGS = ("cup", "book", "lamp", "coin", "apple", "spoon", "hat")
KEY = "key"


def drawn_house(
    luck: Luck, rooms: int, containers: int, things: int, goals: int, locked: int, turns: int
) -> dict[str, Any]:
    """Facts of a house. A locked container holds a goal's thing, or is its target; the key lies elsewhere."""
    names: list[str] = [*luck.some(ROOMS, rooms)]
    places = _placed(luck, names, [*luck.some(CONTAINERS, containers)])
    mine = luck.some(THINGS, things)
    shut = luck.some(list(places), locked)
    free = [c for c in places if c not in shut]
    wanted: list[list[str]] = []
    inside: dict[str, str] = {}
    for i, thing in enumerate(mine):
        inside[thing] = luck.pick(free)
        if i < goals:
            wanted.append([thing, luck.pick([c for c in places if c != inside[thing]])])
    if shut and not any(target in shut for _, target in wanted):
        inside[wanted[0][0]] = shut[0]
    if shut:
        inside[KEY] = luck.pick(free)
    facts: dict[str, Any] = {"start": luck.pick(names), "doors": _doors(luck, names), "places": places}
    return {**facts, "things": inside, "goals": wanted, "locked": shut, "turns": turns}


def _placed(luck: Luck, rooms: list[str], containers: list[str]) -> dict[str, str]:
    """A room for each container: one in every room first, and never more than two."""
    seats = [*luck.some(rooms, len(rooms)), *luck.some(rooms, len(rooms))]
    return dict(zip(containers, seats, strict=False))


def _doors(luck: Luck, rooms: list[str]) -> list[list[str]]:
    """A ring, and from five rooms on a door across it."""
    ring = [[a, b] for a, b in pairwise(rooms)]
    if len(rooms) > 2:
        ring.append([rooms[-1], rooms[0]])
    if len(rooms) > 4:
        i = luck.below(len(rooms) - 3)
        ring.append([rooms[i], rooms[i + 3 if i + 3 < len(rooms) else i + 2]])
    return ring
