"""A method is a record of what it puts in each room, and differs from other records room by room."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from gruppo.fields import setting
from gruppo.stages.cast import PLAIN_CAST, Role
from gruppo.stages.context import Context
from gruppo.stages.curriculum import Uniform
from gruppo.stages.names import nearest
from gruppo.stages.occupant import Occupant
from gruppo.stages.readouts import Need
from gruppo.stages.replay import Forget
from gruppo.stages.rollout import Group
from gruppo.stages.update import Passes

Confidence = Literal["", "code", "paper", "notes", "abstract"]
ROOMS = (
    "curriculum", "prompting", "rollout", "reward", "select", "credit", "objective", "penalties", "update", "replay",
)  # fmt: skip
CHAINS = ("prompting", "reward", "select", "objective", "penalties")


@dataclass(frozen=True)
class Method:
    """Ten rooms, a cast of roles, and facts about the method. `reward` adds to the task's own scorer.

    writers     agents of a world that are written by a trained role of their own: {"verifier": "verifier"}; a role that
                the cast does not have starts as a copy of the policy (gruppo.stages.writers)
    together    rooms that only make sense together: taking one into another method takes all of them
    breaks      laws that the method breaks on purpose, with the reason
    checked     what it was compared with: files of the authors or of another trainer, and where they differ
    confidence  what it was written from: the authors' "code", the "paper", "notes" on it, or only its "abstract"
    """

    name: str
    credit: Any
    objective: Any  # a chain, or {role: chain}
    version: int = setting(1, low=1)
    paper: str = ""
    doc: str = ""
    base: str = ""
    checked: str = ""
    confidence: Confidence = ""
    curriculum: Any = Uniform()
    prompting: tuple[Any, ...] = ()
    rollout: Any = Group()
    reward: tuple[Any, ...] = ()
    select: tuple[Any, ...] = ()
    penalties: tuple[Any, ...] = ()
    update: Any = Passes()
    replay: Any = Forget()
    cast: Mapping[str, Role] = field(default_factory=lambda: MappingProxyType(dict(PLAIN_CAST)))
    writers: Mapping[str, str] = setting({}, added=True)
    together: tuple[str, ...] = ()
    breaks: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        for room in CHAINS:
            object.__setattr__(self, room, _chain(getattr(self, room)))
        object.__setattr__(self, "writers", MappingProxyType(_named(self.name, self.writers)))
        fresh = {role: Role(train=True) for role in self.writers.values() if role not in self.cast}
        if fresh:
            object.__setattr__(self, "cast", MappingProxyType({**self.cast, **fresh}))
        for room, occupant in self.occupants():
            if not dataclasses.is_dataclass(occupant) or not isinstance(occupant, Occupant):
                raise ValueError(
                    f"{self.name}: room {room} holds {occupant!r}, which is no occupant, so the loop cannot call it. "
                    "Write a @dataclass(frozen=True) class that derives from gruppo.stages.Occupant."
                )

    def but(self, **changes: Any) -> "Method":
        """This method with changes.

        A single occupant is added to its chain, where it replaces one of its own class; a tuple replaces the chain. A
        single objective also replaces the chain: to add one, write `(*m.objective, Mine())`.
        """
        known = {f.name for f in dataclasses.fields(self)}
        for name in changes:
            if name not in known:
                raise ValueError(
                    f"but({name}=…): a method has no {name}{nearest(name, known)}. Rooms: {', '.join(ROOMS)}."
                )
        for room in CHAINS:
            if isinstance(changes.get(room), Occupant) and room != "objective":
                changes[room] = added(getattr(self, room), changes[room])
        if "cast" in changes:
            changes["cast"] = MappingProxyType({**self.cast, **changes["cast"]})
        if "name" in changes:
            fresh: dict[str, Any] = {"base": self.name, "version": 1, "together": (), "breaks": {}}
            changes = fresh | dict.fromkeys(("doc", "paper", "checked", "confidence"), "") | changes
        return dataclasses.replace(self, **changes)

    def occupants(self) -> Iterator[tuple[str, Any]]:
        """(room, occupant) for every occupant, in the order of the walk."""
        for room in ROOMS:
            held = getattr(self, room)
            if isinstance(held, Mapping):
                yield from ((room, o) for chain in held.values() for o in chain)
            elif isinstance(held, tuple):
                yield from ((room, o) for o in held)
            else:
                yield room, held

    @property
    def objectives(self) -> dict[str, tuple[Any, ...]]:
        """{role: chain of objectives}."""
        return dict(self.objective) if isinstance(self.objective, Mapping) else {"policy": self.objective}

    @property
    def remembers_episodes(self) -> bool:
        """Whether the replay keeps anything; its episodes then have their log π_old and credit as notes."""
        return not isinstance(self.replay, Forget)

    def needs(self, ctx: Context) -> list[tuple[str, Any, Need]]:
        """(room, occupant, need) for everything that the rooms read from models in this step."""
        return [(room, o, n) for room, o in self.occupants() for n in o.needs(ctx)]


def _named(method: str, writers: Any) -> dict[str, str]:
    """Agents and roles by name. Roles become names of files."""
    given = dict(writers) if isinstance(writers, Mapping) else {"": writers}
    for agent, role in given.items():
        if not (isinstance(agent, str) and agent and isinstance(role, str) and re.fullmatch(r"[A-Za-z]\w*", role)):
            raise ValueError(
                f"{method}: writers has {agent!r}: {role!r}, which is no agent with a role, so nobody would know whose "
                'turn is whose. Write writers={"AGENT": "ROLE"}, with a word for the role.'
            )
        if role == "old":
            raise ValueError(
                f"{method}: writers has {agent!r}: 'old', which is every writer at the start of the step. Name "
                f"a role of its own, such as {agent!r}."
            )
    return given


def _chain(held: Any) -> Any:
    """A single occupant as a chain of one; for objectives by role, each role's chain."""
    if isinstance(held, Mapping):
        return {role: _chain(chain) for role, chain in held.items()}
    return (held,) if isinstance(held, Occupant) else held


def added(chain: tuple[Any, ...], occupant: Any) -> tuple[Any, ...]:
    """The chain with the occupant: in place of one of its own class, else at the end."""
    if any(type(o) is type(occupant) for o in chain):
        return tuple(occupant if type(o) is type(occupant) else o for o in chain)
    return (*chain, occupant)


@dataclass(frozen=True)
class Change:
    where: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.where.split(".")[0] in CHAINS and "nothing" in (self.before, self.after):  # the others of a chain stay
            return f"{self.where}: + {self.after}" if self.before == "nothing" else f"{self.where}: - {self.before}"
        return f"{self.where}: {_legible(self.before)} → {_legible(self.after)}"


def _legible(x: Any) -> Any:
    """A string in quotes if it is invisible without them: empty, or with a line break."""
    return repr(x) if isinstance(x, str) and (not x.strip() or not x.isprintable()) else x


def difference(a: Method, b: Method) -> list[Change]:
    """What differs from a to b, room by room and field by field."""
    out: list[Change] = []
    for room in (*ROOMS, "cast", "writers"):
        out += _differ(room, getattr(a, room), getattr(b, room))
    return out


def _differ(where: str, a: Any, b: Any) -> list[Change]:
    if isinstance(a, Mapping) or isinstance(b, Mapping):
        a = a if isinstance(a, Mapping) else {"policy": a}
        b = b if isinstance(b, Mapping) else {"policy": b}
        roles, none = list(dict.fromkeys((*a, *b))), () if where == "objective" else None
        return [c for r in roles for c in _differ(f"{where}.{r}", a.get(r, none), b.get(r, none))]
    if isinstance(a, tuple) and isinstance(b, tuple):
        left, right = ({kind(o): o for o in chain} for chain in (a, b))
        return [c for k in dict.fromkeys((*left, *right)) for c in _differ(where, left.get(k), right.get(k))]
    if type(a) is type(b) and dataclasses.is_dataclass(a):
        pairs = [(f.name, getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a)]
        return [Change(f"{where}.{kind(a)}.{name}", x, y) for name, x, y in pairs if x != y]
    return [] if a == b else [Change(where, _short(a), _short(b))]


def _short(x: Any) -> Any:
    return "nothing" if x is None else x


def kind(occupant: Any) -> str:
    """The snake-case name of an occupant's class."""
    name = (occupant if isinstance(occupant, type) else type(occupant)).__name__
    out = "".join(
        f"_{c.lower()}" if c.isupper() and i and not name[i - 1].isupper() else c.lower() for i, c in enumerate(name)
    )
    return out.lstrip("_")
