"""Tasks of several distributions: `task=mix:addition@1+addition@3+chain`.

The parts are built-in tasks, each at a level (`@2`, `@1-3`) or at its default one, and take turns in training:
`3*addition@1+chain` has three of the first for each one of the second. Held-out problems take turns one by one. A
domain is a task at a level, so a curriculum can choose among them without generating the others. Each answer is judged
by the scorer of its own task, or by its environment if it is a world.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from gruppo.tasks.answers import answer
from gruppo.tasks.base import Family, Scorer, Task, Tasks, TaskSet, dealt, interleaved, parse_levels
from gruppo.tasks.imports import load_object
from gruppo.tasks.settings import TaskConfig, refuse_unused

MOST_TURNS = 1000  # of a part in a round


def load(settings: TaskConfig, held_out_size: int) -> TaskSet:
    """The set of a mixture; `train_size` and `held_out_size` count all parts together."""
    if settings.level:
        raise ValueError(
            f"task.level={settings.level} of a mixture does not say which part is meant. Write it behind each part, as "
            "in task=mix:addition@2+chain."
        )
    refuse_unused(settings, ("seed", "train_size"))
    parts = _parts(settings.name)

    def split(name: str, limit: int) -> list[Tasks]:
        return [part.family.split(part.levels, name, settings.seed, limit) for part in parts]

    most = settings.train_size or 20_000
    train = [hand for part, tasks in zip(parts, split("train", most), strict=True) for hand in dealt(tasks, part.turns)]
    mixed = interleaved(f"{settings.name}.train", train, most)
    families = [part.family for part in parts]
    scorers = {family.name: family.scorer for family in families if family.scorer}
    worlds = dict.fromkeys(family.name for family in families if not family.scorer)
    return TaskSet(
        name=settings.name,
        train=mixed,
        held_out=interleaved(f"{settings.name}.held_out", split("held_out", held_out_size), held_out_size),
        scorer=Scorer("gruppo.tasks.mixture:BySource", {"scorers": scorers}) if scorers else "",
        env="+".join(worlds),
        max_tokens=max(part.family.max_tokens[n] for part in parts for n in part.levels),
        levels=tuple(sorted({n for part in parts for n in part.levels})),
        notes=_used_up(settings.name, parts, mixed),
        graded=any(family.graded for family in families),
    )


def _used_up(name: str, parts: list["Part"], mixed: Tasks) -> tuple[str, ...]:
    """Says so if parts with numbers cannot come as often as these say, because one has too few problems."""
    rounds = sum(part.turns for part in parts)
    if rounds == len(parts):
        return ()
    counts = [sum(len(mixed.domains.get(f"{p.family.name}/{n}", ())) for n in p.levels) for p in parts]
    short = [i for i, p in enumerate(parts) if counts[i] + p.turns <= len(mixed) * p.turns // rounds]
    if not short:
        return ()
    i = min(short, key=lambda i: counts[i] / parts[i].turns)
    part, size = parts[i], counts[i] * rounds // parts[i].turns
    return (
        f"{name}: {part.family.name} has {counts[i]} problems to train on, so it is {counts[i] / len(mixed):.0%} of "
        f"them and not {part.turns / rounds:.0%}; task.train_size={size} would keep the shares",
    )


class Part(NamedTuple):
    family: Family
    levels: tuple[int, ...]
    turns: int  # that it takes in a round of training


def _parts(name: str) -> list[Part]:
    """The parts of a mixture, in their order."""
    from gruppo.tasks import family

    out: list[Part] = []
    seen: set[tuple[str, int]] = set()
    for part in name.partition(":")[2].replace(" ", "").split("+"):
        times, star, rest = part.rpartition("*")
        what, _, level = rest.partition("@")
        if not what:
            raise ValueError(f"task={name!r} has an empty part. Name built-in tasks, as in task=mix:addition@2+chain.")
        if star and not (times.isdecimal() and 1 <= int(times) <= MOST_TURNS):
            raise ValueError(
                f"task={name!r}: {times!r} before the * is not how often a part comes. Use a whole number from 1 to "
                f"{MOST_TURNS} there, as in 3*addition."
            )
        found = family(what)
        levels = parse_levels(what, level or found.default, found.levels)
        for n in levels:
            if (what, n) in seen:
                raise ValueError(
                    f"task={name!r} has {what}@{n} twice, so the same problems would come twice. Name it once; "
                    f"2*{what}@{n} comes twice as often."
                )
            seen.add((what, n))
        out.append(Part(found, levels, int(times) if star else 1))
    return out


class BySource:
    """Judges each answer with the scorer of its task's source."""

    stateless = True

    def __init__(self, scorers: Mapping[str, str]) -> None:
        self.scorers: dict[str, Any] = {source: load_object(path) for source, path in scorers.items()}

    def __call__(self, task: Task, text: str) -> Any:
        return self.scorers[task.source](task, text)

    def answer(self, task: Task, text: str) -> str:
        return answer(self.scorers[task.source], task, text)
