"""Tasks of several distributions: `task=mix:addition@1+addition@3+chain`.

The parts are built-in tasks, each at a level (`@2`, `@1-3`) or at its default one, and take turns. A domain is a task
at a level, so a curriculum can choose among them without generating the others. Each answer is judged by the scorer
of its own task, or by its environment if it is a world.
"""

from collections.abc import Mapping
from typing import Any

from gruppo.tasks.answers import answer
from gruppo.tasks.base import Family, Scorer, Task, TaskSet, interleaved, parse_levels
from gruppo.tasks.imports import load_object
from gruppo.tasks.settings import TaskConfig, refuse_unused


def load(settings: TaskConfig, held_out_size: int) -> TaskSet:
    """The set of a mixture; `train_size` and `held_out_size` count all parts together."""
    if settings.level:
        raise ValueError(
            f"task.level={settings.level} of a mixture does not say which part is meant. Write it behind each part, as "
            "in task=mix:addition@2+chain."
        )
    refuse_unused(settings, ("seed", "train_size"))
    parts = _parts(settings.name)

    def split(name: str, limit: int) -> Any:
        tasks = [family.split(levels, name, settings.seed, limit) for family, levels in parts]
        return interleaved(f"{settings.name}.{name}", tasks, limit)

    scorers = {family.name: family.scorer for family, _ in parts if family.scorer}
    worlds = dict.fromkeys(family.name for family, _ in parts if not family.scorer)
    return TaskSet(
        name=settings.name,
        train=split("train", settings.train_size or 20_000),
        held_out=split("held_out", held_out_size),
        scorer=Scorer("gruppo.tasks.mixture:BySource", {"scorers": scorers}) if scorers else "",
        env="+".join(worlds),
        max_tokens=max(family.max_tokens[n] for family, levels in parts for n in levels),
        levels=tuple(sorted({n for _, levels in parts for n in levels})),
    )


def _parts(name: str) -> list[tuple[Family, tuple[int, ...]]]:
    """The family and the levels of each part."""
    from gruppo.tasks import family

    out: list[tuple[Family, tuple[int, ...]]] = []
    seen: set[tuple[str, int]] = set()
    for part in name.partition(":")[2].replace(" ", "").split("+"):
        what, _, level = part.partition("@")
        if not what:
            raise ValueError(f"task={name!r} has an empty part. Name built-in tasks, as in task=mix:addition@2+chain.")
        found = family(what)
        levels = parse_levels(what, level or found.default, found.levels)
        for n in levels:
            if (what, n) in seen:
                raise ValueError(
                    f"task={name!r} has {what}@{n} twice, so the same problems would come twice. Name it once."
                )
            seen.add((what, n))
        out.append((found, levels))
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
