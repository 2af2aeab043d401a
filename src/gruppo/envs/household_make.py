"""Houses for the world `household`: rooms in a ring, with at most two containers and three doors each."""

from itertools import pairwise
from typing import Any

from gruppo.envs.world import Draws

ROOMS = ("hall", "kitchen", "garden", "attic", "cellar", "bedroom", "bathroom", "office")
CONTAINERS = ("box", "shelf", "fridge", "drawer", "chest", "closet", "basket", "safe")
THINGS = ("cup", "book", "lamp", "coin", "apple", "spoon", "hat")
KEY = "key"


def drawn_house(
    draw: Draws, rooms: int, containers: int, things: int, goals: int, locked: int, turns: int
) -> dict[str, Any]:
    """Facts of a house. A locked container holds a goal's thing, or is its target; the key lies elsewhere."""
    names: list[str] = [*draw.some(ROOMS, rooms)]
    places = _placed(draw, names, [*draw.some(CONTAINERS, containers)])
    mine = draw.some(THINGS, things)
    shut = draw.some(list(places), locked)
    free = [c for c in places if c not in shut]
    wanted: list[list[str]] = []
    inside: dict[str, str] = {}
    for i, thing in enumerate(mine):
        inside[thing] = draw.pick(free)
        if i < goals:
            wanted.append([thing, draw.pick([c for c in places if c != inside[thing]])])
    if shut and not any(target in shut for _, target in wanted):
        inside[wanted[0][0]] = shut[0]
    if shut:
        inside[KEY] = draw.pick(free)
    facts: dict[str, Any] = {"start": draw.pick(names), "doors": _doors(draw, names), "places": places}
    return {**facts, "things": inside, "goals": wanted, "locked": shut, "turns": turns}


def _placed(draw: Draws, rooms: list[str], containers: list[str]) -> dict[str, str]:
    """A room for each container: one in every room first, and never more than two."""
    seats = [*draw.some(rooms, len(rooms)), *draw.some(rooms, len(rooms))]
    return dict(zip(containers, seats, strict=False))


def _doors(draw: Draws, rooms: list[str]) -> list[list[str]]:
    """A ring, and from five rooms on a door across it."""
    ring = [[a, b] for a, b in pairwise(rooms)]
    if len(rooms) > 2:
        ring.append([rooms[-1], rooms[0]])
    if len(rooms) > 4:
        i = draw.below(len(rooms) - 3)
        ring.append([rooms[i], rooms[i + 3 if i + 3 < len(rooms) else i + 2]])
    return ring
