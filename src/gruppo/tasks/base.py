"""Tasks: one problem, a set of them in two disjoint splits, and families of generated ones.

A family numbers all different problems of a level: 57+68 and 68+57 have one number. A fixed permutation of those
numbers, which no seed can change, holds out one problem in five. The seed of a set only chooses which problems come,
in which order, and how they are written. So nothing is stored, item i costs microseconds, no problem comes twice, and
what is held out for one user is held out for all, also from the shipped weights.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, pairwise
from typing import Any, overload

from gruppo.tasks.numbering import Shuffle, hash64

HELD_OUT = 5  # one problem in five


@dataclass(frozen=True)
class Task:
    """One problem. The last line of `solution` is the answer; the lines before it are the steps.

    `system` is the system prompt, for models with a chat template. `meta["messages"]` are the turns before the prompt,
    `meta["messages_after"]` calls and results of tools after it, and `meta["hints"]` prefixes of a right answer,
    weakest first.
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
        """The source and the level: problems of one kind."""
        return f"{self.source}/{self.level}"

    @property
    def hints(self) -> tuple[str, ...]:
        """Proper prefixes of a right answer, the shortest first.

        They are those of `meta["hints"]`, or the solution cut after each line, or after each word if it is one line.
        """
        given = self.meta.get("hints")
        if given is None:
            lines = self.solution.splitlines()
            return beginnings([f"{x}\n" for x in lines]) if len(lines) > 1 else beginnings(self.solution.split(), " ")
        if isinstance(given, str) or not all(isinstance(h, str) for h in given):
            raise ValueError(f"task {self.uid!r}: meta['hints'] is {given!r}. Give a list of texts, weakest first.")
        return tuple(given)

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps of a right answer: `meta["steps"]`, or the lines of the solution if it has several; else none."""
        lines = self.meta.get("steps") or self.solution.splitlines()
        return tuple(str(line).strip() for line in lines) if len(lines) > 1 else ()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The dialogue of the prompt: system prompt, earlier turns, prompt, calls and results of tools."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        before, after = self.meta.get("messages", ()), self.meta.get("messages_after", ())
        return [*system, *before, {"role": "user", "content": self.prompt}, *after]

    @property
    def uses_tools(self) -> bool:
        """Whether its dialogue has calls or results of tools."""
        return any(m["role"] == "tool" or m.get("tool_calls") for m in self.messages)


def beginnings(parts: Sequence[str], between: str = "") -> tuple[str, ...]:
    """The first part, the first two joined, and so on; never all of them."""
    return tuple(between.join(parts[:n]) for n in range(1, len(parts)))


def answer_in(task: Task, text: str) -> str:
    """The answer in a text: its last line, if all lines before it are steps of the task's solution; else the text."""
    *before, last = text.strip().split("\n")
    return last if before and {s.strip() for s in before} <= set(task.solution.split("\n")[:-1]) else text


@dataclass(frozen=True)
class Scorer:
    """A scorer with arguments: a function gets them with each call, a class or a factory once."""

    path: str
    args: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class TaskSet:
    """Problems to train on and problems held out, with their scorer: an import path, or a `Scorer` with arguments.

    `train` and `held_out` may be lists, or anything with `len(x)` and `x[i]`. `notes` are sentences for the user about
    how the set was made. `digest` changes with its content, so that a resumed run notices other data.

    `env` names the environment that the tasks are played in, or several of them, joined by `+`; each task names its own
    in `meta["env"]`. Such a set needs no scorer.

    `graded` says that a score may be other than 0 and 1, so that the mean is called a score and no accuracy.
    """

    name: str
    train: Sequence[Task]
    held_out: Sequence[Task]
    scorer: str | Scorer
    max_tokens: int  # for one answer, including its end token
    levels: tuple[int, ...] = (1,)
    notes: tuple[str, ...] = ()
    digest: str = ""  # empty for generated tasks, which the settings determine
    text_tokens: int = 0  # max_tokens for a model that writes text, as far as its context goes; 0: the same
    env: str = ""  # empty: answers are judged by the scorer
    graded: bool = False  # where nobody says it, a held-out score of another value does

    def __post_init__(self) -> None:
        if not self.env and not str(self.scorer):
            raise ValueError(f"{self.name}: no scorer and no env, so nothing can be judged. Give one of them.")
        if not len(self.train):
            raise ValueError(f"{self.name}: train is empty, so there is nothing to learn. Give at least one task.")
        if self.max_tokens < 1:
            raise ValueError(f"{self.name}: max_tokens={self.max_tokens}, so no answer can be written. Use at least 1.")
        if isinstance(self.train, (list, tuple)) and isinstance(self.held_out, (list, tuple)):
            self._check_uids()

    def _check_uids(self) -> None:
        """For lists only: generated splits are disjoint by construction."""
        seen: dict[str, str] = {}
        for split in ("train", "held_out"):
            for task in getattr(self, split):
                if task.uid in seen:
                    raise ValueError(
                        f"{self.name}: uid {task.uid!r} is in {seen[task.uid]} and again in {split}, so the memory and "
                        "the accuracy would mix two tasks. Give each problem one uid and one split."
                    )
                seen[task.uid] = split


Domains = Mapping[str, Sequence[int]]  # {domain: indices of its tasks}


@dataclass(frozen=True, eq=False)
class Tasks(Sequence[Task]):
    """A sequence of `size` tasks. `make(index)` writes one down when it is needed."""

    name: str
    size: int
    make: Callable[[int], Task]
    find_domains: Callable[[], Domains]

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self.make(i) for i in range(self.size)[index]]
        if not -self.size <= index < self.size:
            raise IndexError(f"{self.name}[{index}]: there are {self.size} tasks.")
        return self.make(index % self.size)

    @cached_property
    def domains(self) -> Domains:
        return self.find_domains()


def interleaved(name: str, parts: Sequence[Tasks], limit: int) -> Tasks:
    """Parts that take turns, up to `limit` tasks in all; a part that has run out is skipped."""
    turns = Turns(tuple(map(len, parts)))
    size = min(limit, len(turns))

    def make(index: int) -> Task:
        part, position = turns(index)
        return parts[part].make(position)

    def domains() -> Domains:
        out: dict[str, Sequence[int]] = {}
        for k, part in enumerate(parts):
            indices = turns.indices(k, size)
            for domain, own in part.domains.items():
                mine = indices if len(own) == len(part) else [indices[j] for j in own if j < len(indices)]
                if len(mine):
                    out[domain] = sorted([*out[domain], *mine]) if domain in out else mine
        return out

    return Tasks(name, size, make, domains)


def dealt(part: Tasks, hands: int) -> list[Tasks]:
    """The tasks in so many parts, dealt out one by one: when these take turns, their order is that of the whole."""

    def hand(first: int) -> Tasks:
        def domains() -> Domains:
            found = {d: [j // hands for j in own if j % hands == first] for d, own in part.domains.items()}
            return {domain: mine for domain, mine in found.items() if mine}

        size = len(range(first, len(part), hands))
        return Tasks(part.name, size, lambda index: part.make(index * hands + first), domains)

    return [hand(first) for first in range(hands)] if hands > 1 else [part]


_READ: list[tuple[Sequence[Task], Domains]] = []  # the sequence that was read last


def domains_of(tasks: Sequence[Task]) -> Domains:
    """{domain: indices of its tasks}, without making the tasks where possible; a list is read once."""
    own = getattr(tasks, "domains", None)
    if own is not None:
        return own
    if not _READ or _READ[0][0] is not tasks:
        found: dict[str, list[int]] = {}
        for i, task in enumerate(tasks):
            found.setdefault(task.domain, []).append(i)
        _READ[:] = [(tasks, found)]
    return _READ[0][1]


@dataclass(frozen=True)
class Family:
    """A generated task: `count(level)` different problems, of which `make(level, rank, pick)` writes one down.

    `pick` is a hash that chooses among the ways to write the same problem (the order of its numbers).
    """

    name: str
    count: Callable[[int], int]
    make: Callable[[int, int, int], Task]
    scorer: str  # empty: the family is a world, and its tasks are played in it
    max_tokens: Mapping[int, int]  # by level; its keys are the levels
    default: int  # level
    split_as: str = ""  # the family whose held-out problems are also held out here; empty: its own
    graded: bool = False  # whether a score may be other than 0 and 1

    @property
    def levels(self) -> tuple[int, ...]:
        return tuple(sorted(self.max_tokens))

    def held_out(self, level: int, rank: int) -> bool:
        """Whether the problem is held out, for every user and seed."""
        size = self.count(level)
        return self._order(level, size).back(rank) < size // HELD_OUT

    def rank(self, level: int, split: str, seed: int, index: int) -> int:
        """The number of the problem that is item `index` of a split."""
        size = self.count(level)
        first = 0 if split == "held_out" else size // HELD_OUT
        order = Shuffle(self.size(level, split), hash64("order", self.name, level, split, seed))
        return self._order(level, size)(first + order(index))

    def size(self, level: int, split: str) -> int:
        held = self.count(level) // HELD_OUT
        return held if split == "held_out" else self.count(level) - held

    def _order(self, level: int, size: int) -> Shuffle:
        return Shuffle(size, hash64("split", self.split_as or self.name, level))

    def task(self, level: int, split: str, seed: int, index: int) -> Task:
        """Item `index` of a split of one level."""
        rank = self.rank(level, split, seed, index)
        return self.make(level, rank, hash64("pick", self.name, level, seed, rank))

    def split(self, levels: tuple[int, ...], split: str, seed: int, limit: int) -> Tasks:
        """One split; the levels take turns."""
        if limit < 1:
            raise ValueError(f"{split}_size={limit}: the split would be empty. Use at least 1.")
        return interleaved(f"{self.name}.{split}", [self._of_level(n, split, seed) for n in levels], limit)

    def _of_level(self, level: int, split: str, seed: int) -> Tasks:
        size, make = self.size(level, split), partial(self.task, level, split, seed)
        return Tasks(f"{self.name}.{split}", size, make, lambda: {make(0).domain: range(size)} if size else {})

    def task_set(
        self, level: int | str | None = None, seed: int = 0, train_size: int = 20_000, held_out_size: int = 1_000
    ) -> TaskSet:
        """The set of one level or of a mixture. A split is smaller than asked if there are not enough problems."""
        levels = parse_levels(self.name, self.default if level is None else level, self.levels)
        return TaskSet(
            name=self.name,
            train=self.split(levels, "train", seed, train_size),
            held_out=self.split(levels, "held_out", seed, held_out_size),
            scorer=self.scorer,
            max_tokens=max(self.max_tokens[n] for n in levels),
            levels=levels,
            env="" if self.scorer else self.name,
            graded=self.graded,
        )


@dataclass(frozen=True)
class Turns:
    """Lists of these sizes take turns, and a list that has run out is skipped: which list has item i?"""

    sizes: tuple[int, ...]

    @cached_property
    def _rounds(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """(first item, first index, remaining lists), one row each time a list runs out; then the end."""
        rows, item, index = [], 0, 0
        for size in sorted(set(self.sizes)):
            remaining = tuple(i for i, own in enumerate(self.sizes) if own > index)
            rows.append((item, index, remaining))
            item, index = item + (size - index) * len(remaining), size
        return [*rows, (item, index, ())]

    def __len__(self) -> int:
        return self._rounds[-1][0]

    def __call__(self, item: int) -> tuple[int, int]:
        """(which list, index in it)."""
        first, start, remaining = self._rounds[bisect_right(self._rounds, item, key=lambda row: row[0]) - 1]
        turn, position = divmod(item - first, len(remaining))
        return remaining[position], start + turn

    def indices(self, which: int, limit: int) -> Sequence[int]:
        """The items below `limit` that one list has, in its order."""
        parts: list[range] = []
        for (first, _, remaining), (end, _, _) in pairwise(self._rounds):
            if which in remaining:
                parts.append(range(first + remaining.index(which), min(end, limit), len(remaining)))
        return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))


def parse_levels(name: str, level: int | str, known: tuple[int, ...]) -> tuple[int, ...]:
    """`2` or `"2"` is one level, `"1-3"` a mixture of three."""
    first, dash, last = str(level).replace(" ", "").partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise ValueError(f"level={level!r} of {name} is not a level. Write level=2 or level='1-3'.")
    low, high = (min(int(n), max(known) + 1) for n in (first, last or first))  # no further: nobody needs to count there
    levels = tuple(range(low, high + 1))
    if not levels or not set(levels) <= set(known):
        raise ValueError(
            f"level={level!r}: {name} has the levels {known[0]} to {known[-1]}, so there is no such problem. "
            f"Use one of them, or a mixture such as level='{known[0]}-{known[-1]}'."
        )
    return levels
