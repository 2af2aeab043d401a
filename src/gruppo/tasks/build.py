"""From tables of rows to a task set: duplicates out, a split that nothing moves, a scorer, and a report."""

from collections.abc import Sequence
from hashlib import blake2b

from gruppo.tasks.base import Scorer, Task, TaskSet, parse_levels
from gruppo.tasks.extract import is_number
from gruppo.tasks.imports import is_path, nearest, split_path
from gruppo.tasks.rows import Read, Reader, Table, names_of
from gruppo.tasks.scorers import SCORERS
from gruppo.tasks.settings import TaskConfig, plain

SHARE = 0.1  # held out where nothing is said
LEAST, MOST, UNKNOWN = 16, 512, 64  # tokens of an answer


def task_set(
    name: str, train: Table, held_out: Table | float, settings: TaskConfig, digest: str = "", tokens: int = 0
) -> TaskSet:
    """The set of one table that is split, or of two; `tokens` an answer, or 0: as the longest answer needs."""
    names = names_of(train, settings)
    needs = _needs_answer(settings)
    if needs and not (names.answer or names.solution or names.chosen or _lists(train)):
        raise ValueError(_no_answer(train, settings))
    rows, notes = _read(train, Reader(train, settings, names, needs))
    notes = [f"{name}: {len(train.rows)} rows; {names.told()}", *notes]
    if isinstance(held_out, Table):
        kept, more = _read(held_out, Reader(held_out, settings, names_of(held_out, settings), needs))
        asked = {r.asks for r in kept}
        rest = [r for r in rows if r.asks not in asked]
        notes += [*more, *_counted(len(rows) - len(rest), "left out: the same prompt is held out")]
    else:
        kept, rest = _split(rows, held_out, train.name)
    kept, rest, levels = _of_level(name, settings, kept, rest)
    if not rest:
        raise ValueError(f"{name}: every row is held out, so there is nothing to train on. Hold out fewer.")
    chosen = _in_order(rest, f"seed {settings.seed}")[: settings.train_size or None]
    held = _in_order(kept, "held out")
    scorer = scorer_of(settings.reward or _usual_scorer(chosen + held), settings)
    longest = max(max(len(t.solution), len(t.answer)) for t in (*chosen, *held))
    tokens = tokens or (min(MOST, max(LEAST, longest + 1)) if longest else UNKNOWN)
    notes.append(
        f"{name}: {len(chosen)} tasks to train on, {len(held)} held out, judged by {_said(scorer)}, at most {tokens} "
        "tokens an answer (task.held_out, task.reward, sampling.max_tokens)"
    )
    return TaskSet(name, chosen, held, scorer, tokens, levels, tuple(notes), digest or _digest(chosen + held))


def scorer_of(reward: str, settings: TaskConfig) -> str | Scorer:
    """A scorer by name or import path, with its arguments."""
    if reward not in SCORERS and not is_path(reward):
        raise ValueError(
            f"task.reward={reward!r} is no import path and no scorer has that name, so nothing can be judged."
            f"{nearest(reward, SCORERS)} Scorers: {', '.join(SCORERS)}; or one of your own, ./file.py:function."
        )
    path = SCORERS[reward][0] if reward in SCORERS else reward
    split_path(path)  # a path that cannot be one is refused here, not in the worker
    return Scorer(path, plain(settings.args)) if settings.args else path


def _said(scorer: str | Scorer) -> str:
    path = str(scorer)
    return next((n for n, (p, _) in SCORERS.items() if p == path), path)


def _needs_answer(settings: TaskConfig) -> bool:
    return SCORERS[settings.reward][1] if settings.reward in SCORERS else not settings.reward


def _lists(table: Table) -> bool:
    """Rows may hold their answers in messages or in a list of scored answers: the reader says if one does not."""
    return bool({"answers", "messages", "conversations"} & set(table.fields))


def _no_answer(table: Table, settings: TaskConfig) -> str:
    near = nearest("answer", table.fields)
    return (
        f"{table.name} has no field with the right answer (answer, output, completion, ...), so "
        f"{settings.reward or 'exact'} cannot judge.{near} Fields: {', '.join(table.fields)}. Name it with "
        "task.answer=FIELD, or judge without one: task.reward=./file.py:function."
    )


def _read(table: Table, reader: Reader) -> tuple[list[Read], list[str]]:
    if not len(table.rows):
        raise ValueError(f"{table.name} has no rows, so there are no tasks. Name a file or split that has some.")
    found: dict[str, Read] = {}
    equal = 0
    for i in range(len(table.rows)):
        read = reader(i)
        if read is None:
            equal += 1
        else:
            found.setdefault(read.task.uid, read)
    if not found:
        raise ValueError(f"{table.name}: in every row both answers are the same, so there is nothing to prefer.")
    twice = len(table.rows) - equal - len(found)
    several = len(found) - len({r.asks for r in found.values()})
    notes = _counted(twice, f"of {table.name} left out: they say the same as an earlier one")
    notes += _counted(equal, f"of {table.name} left out: both answers are the same")
    if several and not any(_is_scored(r.task) for r in found.values()):
        notes += _counted(several, f"of {table.name} ask what an earlier one asks, with another answer")
    return list(found.values()), notes


def _counted(count: int, what: str) -> list[str]:
    return [f"{count} row{'s' if count > 1 else ''} {what}"] if count else []


def _split(rows: list[Read], share: float, where: str) -> tuple[list[Read], list[Read]]:
    """The share of the prompts with the smallest hashes: no seed, order or other row's answer moves it."""
    if not 0 < share < 1:
        raise ValueError(
            f"task.held_out={share:g} is no share of the rows between 0 and 1, so nothing could be trained or "
            "measured. Use for example task.held_out=0.1, or a file."
        )
    prompts = sorted({r.asks for r in rows})  # a hash already, so its order is chance
    if len(prompts) < 2:
        raise ValueError(
            f"{where} asks one thing only, so nothing can be held out. Add rows, or name a file of others: "
            "task.held_out=./other.jsonl."
        )
    held = set(prompts[: min(max(1, round(share * len(prompts))), len(prompts) - 1)])
    return [r for r in rows if r.asks in held], [r for r in rows if r.asks not in held]


def _of_level(
    name: str, settings: TaskConfig, kept: list[Read], rest: list[Read]
) -> tuple[list[Read], list[Read], tuple[int, ...]]:
    known = tuple(sorted({r.task.level for r in (*kept, *rest)}))
    if not settings.level:
        return kept, rest, known
    levels = parse_levels(name, settings.level, known)
    return [r for r in kept if r.task.level in levels], [r for r in rest if r.task.level in levels], levels


def _in_order(rows: list[Read], key: str) -> list[Task]:
    """By a hash of key and content: the first n are a fair sample, whatever the order of the rows."""

    def place(task: Task) -> bytes:
        return blake2b(task.uid.encode(), digest_size=8, key=key.encode()).digest()

    return sorted((r.task for r in rows), key=place)


def _usual_scorer(tasks: Sequence[Task]) -> str:
    """listed for answers that come with rewards, numeric if every answer is a number, else exact."""
    if any(_is_scored(t) for t in tasks):
        return "listed"
    return "numeric" if all(is_number(t.answer) for t in tasks) else "exact"


def _is_scored(task: Task) -> bool:
    """A preference, or answers that come with rewards."""
    return any("reward" in a for a in task.meta.get("answers", ()))


def _digest(tasks: Sequence[Task]) -> str:
    return blake2b("\n".join(sorted(t.uid for t in tasks)).encode(), digest_size=8).hexdigest()
