"""Tasks of several distributions: `task=mix:addition@1+addition@3+chain`.

Parts are built-in tasks, each with a level (`@2`, `@1-3`) or its default one. They take turns, and one that has run out
leaves the round to the others. A domain is a task at a level, so that a curriculum can choose among them and never
makes a problem that it does not ask for. Every answer is judged by the scorer of its own task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

from gruppo.tasks.answers import answer
from gruppo.tasks.base import Family, Scorer, Task, TaskSet, Turns, domains_of, parse_levels
from gruppo.tasks.imports import load_object
from gruppo.tasks.settings import TaskConfig, refuse_unused

PREFIX = "mix:"


def load(settings: TaskConfig, held_out_size: int) -> TaskSet:
    """The set of a mixture; `train_size` and `held_out_size` count all parts together."""
    if settings.level:
        raise ValueError(
            f"task.level={settings.level} of a mixture: which part is meant cannot be known. Write it behind each "
            "part, as in task=mix:addition@2+chain."
        )
    refuse_unused(settings, ("seed", "train_size"))
    sets = [
        family.task_set(level or None, settings.seed, settings.train_size or 20_000, held_out_size)
        for family, level in _parts(settings.name)
    ]
    return TaskSet(
        name=settings.name,
        train=Mixed(tuple(s.train for s in sets), settings.train_size or 20_000),
        held_out=Mixed(tuple(s.held_out for s in sets), held_out_size),
        scorer=Scorer("gruppo.tasks.mixture:BySource", {"scorers": {s.name: str(s.scorer) for s in sets}}),
        max_tokens=max(s.max_tokens for s in sets),
        levels=tuple(sorted({n for s in sets for n in s.levels})),
    )


def _parts(name: str) -> list[tuple[Family, str]]:
    """(family, level) of each part; one that is named twice, or not at all, is refused."""
    from gruppo.tasks import family

    out: list[tuple[Family, str]] = []
    seen: set[tuple[str, int]] = set()
    for part in name.removeprefix(PREFIX).replace(" ", "").split("+"):
        what, _, level = part.partition("@")
        if not what:
            raise ValueError(
                f"task={name!r} has an empty part, so it is not known what to mix. Write two or more built-in tasks, "
                "as in task=mix:addition@2+chain."
            )
        found = family(what)
        mine = {(what, n) for n in parse_levels(what, level or found.default, found.levels)}
        if mine & seen:
            twice, n = sorted(mine & seen)[0]
            raise ValueError(
                f"task={name!r} has {twice}@{n} twice: the same problems would come under one name. Name each part "
                "once, or another level."
            )
        seen |= mine
        out.append((found, level))
    return out


@dataclass(frozen=True)
class Mixed(Sequence[Task]):
    """Parts that take turns, up to `limit` tasks in all."""

    parts: tuple[Sequence[Task], ...]
    limit: int

    @cached_property
    def _turns(self) -> Turns:
        return Turns(tuple(map(len, self.parts)))

    def __len__(self) -> int:
        return min(self.limit, len(self._turns))

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = index + len(self) if index < 0 else index
        if not 0 <= i < len(self):
            raise IndexError(f"mixture[{index}]: there are {len(self)} tasks.")
        part, place = self._turns(i)
        return self.parts[part][place]

    @cached_property
    def domains(self) -> Mapping[str, Sequence[int]]:
        """{domain: places of its tasks}, by arithmetic."""
        out: dict[str, Sequence[int]] = {}
        for k, part in enumerate(self.parts):
            places = self._turns.places(k, len(self))
            for domain, own in domains_of(part).items():
                mine = places if len(own) == len(part) else [places[j] for j in own if j < len(places)]
                if len(mine):
                    out[domain] = mine
        return out


class BySource:
    """Each answer by the scorer of its task's source."""

    def __init__(self, scorers: Mapping[str, str]) -> None:
        self.scorers: dict[str, Any] = {source: load_object(path) for source, path in scorers.items()}

    def __call__(self, task: Task, text: str) -> Any:
        return self.scorers[task.source](task, text)

    def answer(self, task: Task, text: str) -> str:
        return answer(self.scorers[task.source], task, text)
