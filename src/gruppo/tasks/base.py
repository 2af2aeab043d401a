"""Tasks: one problem, a set of them in two disjoint splits, and families of generated ones.

A family numbers all different problems of a level: 57+68 and 68+57 have one number. A fixed shuffle of those
numbers, which no seed can change, holds one problem in five out. The seed of a set only chooses which
problems come, in which order, and how they are written down. So nothing is stored, item i costs microseconds,
no problem comes twice, and what is held out for one user is held out for all, the shipped weights included.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, overload

from gruppo.tasks.numbering import Shuffle, hash64

HELD_OUT = 5  # one problem in five


@dataclass(frozen=True)
class Task:
    """One problem. The last line of `solution` is the answer; the lines before it are the steps.

    `system` is the system prompt, for models with a chat template; `meta["messages"]` are turns before the prompt;
    `meta["hints"]` are beginnings of a right answer, weakest first.
    """

    uid: str
    prompt: str
    answer: str
    level: int
    source: str
    solution: str = ""
    system: str = ""
    meta: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)

    @property
    def domain(self) -> str:
        """Problems of one kind: those of one source and level."""
        return f"{self.source}/{self.level}"

    @property
    def hints(self) -> tuple[str, ...]:
        """Beginnings of a right answer, weakest first, each longer than the one before; none says all.

        Those of `meta["hints"]`; else the solution cut after each of its lines, or of its words if it is one line.
        """
        given = self.meta.get("hints")
        if given is None:
            lines = self.solution.splitlines()
            return beginnings([f"{x}\n" for x in lines]) if len(lines) > 1 else beginnings(self.solution.split(), " ")
        if isinstance(given, str) or not all(isinstance(h, str) for h in given):
            raise ValueError(
                f"task {self.uid!r}: meta['hints'] is {given!r}, so there is no first hint. Give a list of texts, the "
                "weakest first."
            )
        return tuple(given)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The dialogue that asks: system prompt, earlier turns, prompt."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.meta.get("messages", ()), {"role": "user", "content": self.prompt}]


def beginnings(parts: Sequence[str], between: str = "") -> tuple[str, ...]:
    """The parts joined: the first alone, the first two, and so on; never all of them."""
    return tuple(between.join(parts[:n]) for n in range(1, len(parts)))


def answer_in(task: Task, text: str) -> str:
    """The answer of a text: its last line, if all lines before it are steps of the task's solution; else the text."""
    *before, last = text.strip().split("\n")
    return last if before and {s.strip() for s in before} <= set(task.solution.split("\n")[:-1]) else text


@dataclass(frozen=True)
class Scorer:
    """A scorer with arguments: a function gets them with each call, a class or a factory once, when it is made."""

    path: str
    args: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class TaskSet:
    """Problems to train on and problems held out, with their scorer: an import path, or that with arguments.

    `train` and `held_out` may be lists, or anything with `len(x)` and `x[i]`. `notes` are sentences for the user
    about how the set was made; `digest` changes with its content, so that a run can go on with the same data only.
    """

    name: str
    train: Sequence[Task]
    held_out: Sequence[Task]
    scorer: str | Scorer
    max_tokens: int  # for one answer, its end included
    levels: tuple[int, ...] = (1,)
    notes: tuple[str, ...] = ()
    digest: str = ""  # empty: generated, so the settings say it all

    def __post_init__(self) -> None:
        if not len(self.train):
            raise ValueError(f"{self.name}: train is empty, so there is nothing to learn. Give at least one task.")
        if self.max_tokens < 1:
            raise ValueError(
                f"{self.name}: max_tokens={self.max_tokens}, so no answer can be written. Give at least 1."
            )
        if isinstance(self.train, (list, tuple)) and isinstance(self.held_out, (list, tuple)):
            self._check_uids()

    def _check_uids(self) -> None:
        """Own lists are checked; a `Split` is disjoint by construction."""
        seen: dict[str, str] = {}
        for split in ("train", "held_out"):
            for task in getattr(self, split):
                if task.uid in seen:
                    raise ValueError(
                        f"{self.name}: uid {task.uid!r} is in {seen[task.uid]} and again in {split}: "
                        "memory and the measured accuracy would mix two tasks. Give each problem one uid and "
                        "one split."
                    )
                seen[task.uid] = split


_READ: list[tuple[Sequence[Task], Mapping[str, Sequence[int]]]] = []  # the last that was read through


def domains_of(tasks: Sequence[Task]) -> Mapping[str, Sequence[int]]:
    """{domain: places of its tasks}. A split that can tell without making tasks does; others are read through."""
    if hasattr(tasks, "domains"):
        return tasks.domains  # type: ignore[attr-defined]
    if not _READ or _READ[0][0] is not tasks:
        found: dict[str, list[int]] = {}
        for i, task in enumerate(tasks):
            found.setdefault(task.domain, []).append(i)
        _READ[:] = [(tasks, found)]
    return _READ[0][1]


@dataclass(frozen=True)
class Family:
    """A generated task: `count(level)` different problems, and `make(level, rank, pick)` writes one down.

    `pick` is a hash that chooses among the ways to write the same problem (the order of its numbers).
    """

    name: str
    count: Callable[[int], int]
    make: Callable[[int, int, int], Task]
    scorer: str
    max_tokens: Mapping[int, int]  # by level; its keys are the levels
    default: int  # the level when none is asked for
    split_as: str = ""  # the family whose held-out problems are held out here too; empty: its own

    @property
    def levels(self) -> tuple[int, ...]:
        return tuple(sorted(self.max_tokens))

    def held_out(self, level: int, rank: int) -> bool:
        """Whether the problem is held out: for everyone, whatever the seed."""
        size = self.count(level)
        return self._order(level, size).back(rank) < size // HELD_OUT

    def rank(self, level: int, split: str, seed: int, index: int) -> int:
        """The number of the problem that is item `index` of a split."""
        size = self.count(level)
        held = size // HELD_OUT
        first, length = (0, held) if split == "held_out" else (held, size - held)
        place = Shuffle(length, hash64("order", self.name, level, split, seed))(index)
        return self._order(level, size)(first + place)

    def size(self, level: int, split: str) -> int:
        held = self.count(level) // HELD_OUT
        return held if split == "held_out" else self.count(level) - held

    def _order(self, level: int, size: int) -> Shuffle:
        return Shuffle(size, hash64("split", self.split_as or self.name, level))

    def task_set(
        self,
        level: int | str | None = None,
        seed: int = 0,
        train_size: int = 20_000,
        held_out_size: int = 1_000,
        scorer: str | None = None,
    ) -> TaskSet:
        """The set of one level or of a mixture; a split has fewer tasks than asked for if no more exist."""
        levels = parse_levels(self.name, self.default if level is None else level, self.levels)
        for name, size in (("train_size", train_size), ("held_out_size", held_out_size)):
            if size < 1:
                raise ValueError(f"{name}={size}: the split would be empty. Give at least 1.")
        return TaskSet(
            name=self.name,
            train=Split(self, "train", levels, seed, train_size),
            held_out=Split(self, "held_out", levels, seed, held_out_size),
            scorer=scorer or self.scorer,
            max_tokens=max(self.max_tokens[n] for n in levels),
            levels=levels,
        )


@dataclass(frozen=True)
class Turns:
    """Lists of these sizes take turns, and one that has run out leaves the round to the others: who has item i?"""

    sizes: tuple[int, ...]

    @cached_property
    def _rounds(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """(first item, first index, lists still there), a row each time a list runs out; then the end."""
        rows, item, index = [], 0, 0
        for size in sorted(set(self.sizes)):
            there = tuple(i for i, own in enumerate(self.sizes) if own > index)
            rows.append((item, index, there))
            item, index = item + (size - index) * len(there), size
        return [*rows, (item, index, ())]

    def __len__(self) -> int:
        return self._rounds[-1][0]

    def __call__(self, item: int) -> tuple[int, int]:
        """(which list, index in it)."""
        first, start, there = self._rounds[bisect_right(self._rounds, item, key=lambda row: row[0]) - 1]
        turn, place = divmod(item - first, len(there))
        return there[place], start + turn

    def places(self, which: int, limit: int) -> Sequence[int]:
        """The items below `limit` that one list has, in its order."""
        parts: list[range] = []
        for (first, _, there), (end, _, _) in pairwise(self._rounds):
            if which in there:
                parts.append(range(first + there.index(which), min(end, limit), len(there)))
        return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))


@dataclass(frozen=True)
class Split(Sequence[Task]):
    """One split of a family: levels take turns, and one that has run out leaves the round to the others."""

    family: Family
    name: str
    levels: tuple[int, ...]
    seed: int
    limit: int

    @cached_property
    def _turns(self) -> "Turns":
        return Turns(tuple(self.family.size(n, self.name) for n in self.levels))

    def __len__(self) -> int:
        return min(self.limit, len(self._turns))

    @cached_property
    def domains(self) -> Mapping[str, Sequence[int]]:
        """{domain: places of its tasks}, by arithmetic: one task of each level is made."""
        places = [self._turns.places(i, len(self)) for i in range(len(self.levels))]
        return {self[p[0]].domain: p for p in places if len(p)}

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = index + len(self) if index < 0 else index
        if not 0 <= i < len(self):
            raise IndexError(f"{self.family.name}.{self.name}[{index}]: there are {len(self)} tasks.")
        which, turn = self._turns(i)
        return self._make(self.levels[which], turn)

    def _make(self, level: int, index: int) -> Task:
        rank = self.family.rank(level, self.name, self.seed, index)
        return self.family.make(level, rank, hash64("pick", self.family.name, level, self.seed, rank))


def parse_levels(name: str, level: int | str, known: tuple[int, ...]) -> tuple[int, ...]:
    """`2` or `"2"` is one level, `"1-3"` a mixture of three."""
    first, dash, last = str(level).replace(" ", "").partition("-")
    if not first.isdecimal() or not (last.isdecimal() if dash else True):
        raise ValueError(
            f"level={level!r}: not a level, so {name} has nothing to choose. Write level=2 or level='1-3'."
        )
    levels = tuple(range(int(first), int(last or first) + 1))
    if not levels or not set(levels) <= set(known):
        raise ValueError(
            f"level={level!r}: {name} has the levels {known[0]} to {known[-1]}, so there is no such problem. "
            f"Use one of them, or a mixture such as level='{known[0]}-{known[-1]}'."
        )
    return levels
