"""The base of the built-in worlds: rules as pure functions of an immutable state.

A world writes down `begin`, `move`, `view` and `key`; everything else, such as snapshots, turn limits, and what happens
after the end, is here once. Because the state is immutable, a snapshot is a reference to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from gruppo.envs.base import POLICY, Called, Player, Seen
from gruppo.tasks.base import Task
from gruppo.tasks.imports import nearest
from gruppo.tasks.numbering import hash64

S = TypeVar("S")
T = TypeVar("T")
Facts = Mapping[str, Any]  # a task in the world's own terms, as JSON could hold it

LONGEST = 200  # characters of an action that are read; a longer one is no action
NOTHING = "nothing happens"
WON = "you win"
LOST = "you lose"


class Draws:
    """Keyed random numbers for making tasks: the same key gives the same numbers in every Python version."""

    def __init__(self, *key: int | str) -> None:
        self._key, self._count = hash64(*key), 0

    def below(self, n: int) -> int:
        self._count += 1
        return hash64(self._key, self._count) % n

    def between(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return low + self.below(high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def some(self, items: Sequence[T], n: int) -> list[T]:
        """n different ones, in random order."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in range(n)]


class Moved(NamedTuple, Generic[S]):
    """What a move did. An empty text is the view of the new state."""

    state: S
    text: str = ""
    valid: bool = True
    over: bool = False
    won: float = 0.0  # at the end, in a world with one seat
    outcomes: Mapping[str, float] | None = None  # at the end of a game
    tools: tuple[Called, ...] = ()  # that were called


class World(Generic[S]):
    """A world with one seat. Subclasses give the rules; none of their methods may change the world itself."""

    name: ClassVar[str] = ""
    about: ClassVar[str] = ""  # a line for `gruppo env list`
    rules: ClassVar[str] = ""  # for a language model: what there is to do, and how an action is written
    seats: ClassVar[tuple[str, ...]] = (POLICY,)
    can: ClassVar[frozenset[str]] = frozenset({"actions", "gold", "snapshot"})
    players: ClassVar[Mapping[str, Player]] = {}
    words: ClassVar[frozenset[str]] = frozenset()  # all words that it says and understands, numbers aside
    options: ClassVar[tuple[str, ...]] = ("turns",)  # facts that task.options may set
    levels: ClassVar[Mapping[int, Any]] = {}
    default: ClassVar[int] = 1
    graded: ClassVar[bool] = False  # whether a score may be other than 0 and 1
    usual: ClassVar[Mapping[str, str]] = {}  # settings of a run in it, where nothing else is said

    facts: Facts
    now: S
    turn: int

    # ---- the rules of a world ----------------------------------------------------------------------

    def begin(self, facts: Facts) -> S:
        """The first state. It may keep what depends on the facts alone, such as a map."""
        raise NotImplementedError

    def move(self, state: S, words: list[str]) -> Moved[S]:
        raise NotImplementedError

    def view(self, state: S) -> str:
        raise NotImplementedError

    def key(self, state: S) -> str:
        raise NotImplementedError

    def best(self, state: S) -> str:
        """An action on the way to a win; empty if there is none."""
        return ""

    def choices(self, state: S) -> Sequence[str]:
        """Actions that are allowed."""
        return ()

    def seat(self, state: S) -> str:
        return POLICY

    # ---- the tasks of a world ----------------------------------------------------------------------

    @classmethod
    def count(cls, level: int) -> int:
        """How many different tasks a level has, if `numbered` numbers them; 0: they are drawn."""
        return 0

    @classmethod
    def numbered(cls, level: int, rank: int) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def drawn(cls, level: int, draw: Draws) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def suits(cls, facts: Facts) -> bool:
        """Whether drawn facts are a task: the winning player wins, and its turns are enough."""
        world = cls()
        state = world.begin(facts)
        for _ in range(int(facts["turns"])):
            moved = world.move(state, read(world.best(state)) or [""])
            if moved.over or not moved.valid:
                return moved.won > 0
            state = moved.state
        return False

    @classmethod
    def asked(cls, facts: Facts) -> str:
        """The prompt: what the agent is to do, said once at the beginning."""
        raise NotImplementedError

    @classmethod
    def answer(cls, facts: Facts) -> str:
        """The right answer, for worlds that ask a question."""
        return ""

    # ---- the protocol ------------------------------------------------------------------------------

    def reset(self, task: Task) -> Seen:
        facts = task.meta.get("facts")
        if not isinstance(facts, Mapping):
            raise ValueError(
                f"task {task.uid!r} has no meta['facts'], so {self.name} does not know what to build. Take tasks from "
                f"task={self.name}, or from a file of levels: docs/environments.md."
            )
        self.facts, self.turn = facts, 0
        self.limit = int(facts["turns"])
        self.now = self.begin(facts)
        self.seen = Seen(self.view(self.now), self.seat(self.now), self.key(self.now))
        return self.seen

    def step(self, action: str) -> Seen:
        if self.seen.done:
            return replace(self.seen, valid=False, rewards={}, outcomes={}, tools=())
        self.turn += 1
        moved = self.moved(self.now, read(action))
        self.now = state = moved.state
        out = not moved.over and self.turn >= self.limit
        rewards, outcomes = self.paid(moved) if moved.over or out else ({}, {})
        self.seen = Seen(
            moved.text or self.view(state),
            self.seat(state),
            self.key(state),
            moved.valid,
            rewards,
            outcomes,
            moved.over or out,
            out,
            tools=moved.tools,
        )
        return self.seen

    def moved(self, state: S, words: list[str]) -> Moved[S]:
        return self.move(state, words) if words else nothing(state)

    def paid(self, moved: Moved[S]) -> tuple[Mapping[str, float], Mapping[str, float]]:
        return {"task": moved.won if moved.over else 0.0}, {}

    def look(self) -> Seen:
        """What was seen last. Looking changes nothing."""
        return self.seen

    def snapshot(self) -> Any:
        return self.facts, self.limit, self.turn, self.now, self.seen

    def restore(self, snapshot: Any) -> Seen:
        facts, self.limit, self.turn, state, self.seen = snapshot
        if facts is not getattr(self, "facts", None):
            self.facts = facts
            self.begin(facts)  # the map
        self.now = state
        return self.seen

    def gold(self) -> str:
        return "" if self.seen.done else self.best(self.now)

    def actions(self) -> Sequence[str]:
        return () if self.seen.done else self.choices(self.now)


class Game(World[S]):
    """A world with several seats, which ends with an outcome for each. A second illegal action in a row loses."""

    can = frozenset({"actions", "players", "snapshot"})

    strikes: int

    def reset(self, task: Task) -> Seen:
        self.strikes = 0
        return super().reset(task)

    def moved(self, state: S, words: list[str]) -> Moved[S]:
        moved = super().moved(state, words)
        self.strikes = 0 if moved.valid else self.strikes + 1
        if self.strikes < 2:
            return moved
        return Moved(state, LOST, False, True, outcomes=self.forfeit(state, self.seat(state)))

    def forfeit(self, state: S, seat: str) -> dict[str, float]:
        """The outcomes if this seat does not play by the rules."""
        return {s: -1.0 if s == seat else 1.0 for s in self.seats}

    def paid(self, moved: Moved[S]) -> tuple[Mapping[str, float], Mapping[str, float]]:
        return {}, moved.outcomes if moved.outcomes is not None else dict.fromkeys(self.seats, 0.0)

    def snapshot(self) -> Any:
        return super().snapshot(), self.strikes

    def restore(self, snapshot: Any) -> Seen:
        inner, self.strikes = snapshot
        return super().restore(inner)


def read(action: Any) -> list[str]:
    """The words of an action; none if it is no text, or too long to be one."""
    if not isinstance(action, str) or len(action) > LONGEST:
        return []
    return action.lower().rstrip(".! \n\t").split()


def spoken(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def nothing(state: S) -> Moved[S]:
    """The answer to an action that is not understood or not allowed."""
    return Moved(state, NOTHING, False)


def number(word: str) -> int | None:
    """A whole number from 0 to 99; None for anything else, other scripts' digits included."""
    return int(word) if word.isascii() and word.isdigit() and len(word) < 3 else None


def wanted(facts: Facts, name: str, kind: type | tuple[type, ...], world: str) -> Any:
    """A fact of a level that somebody wrote; a ValueError says what is missing or of another kind."""
    if name not in facts:
        raise ValueError(f"{world}: the level has no {name!r}.{nearest(name, facts)} It has {', '.join(facts)}.")
    value = facts[name]
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        raise ValueError(f"{world}: {name}={value!r} is {type(value).__name__}, which {world} cannot build.")
    return value
