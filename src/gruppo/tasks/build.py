"""From tables of rows to a task set: removes duplicates, splits, chooses a scorer, and reports what it did."""

from collections.abc import Sequence
from hashlib import blake2b

from gruppo.tasks.base import Scorer, Task, TaskSet, parse_levels
from gruppo.tasks.extract import is_number
from gruppo.tasks.imports import is_path, nearest, split_path
from gruppo.tasks.rows import Read, Reader, Table
from gruppo.tasks.scorers import SCORERS
from gruppo.tasks.settings import TaskConfig, plain

SHARE = 0.1  # of the rows, held out by default
LEAST, MOST, UNKNOWN = 16, 512, 64  # tokens of an answer that is nothing but the reference, letter by letter
# Of one in sentences. A token of such a model is about four characters, so as many tokens as the longest reference has
# characters are about four times what it needs.
TEXT_LEAST, TEXT_MOST, TEXT_UNKNOWN = 256, 1024, 512


def task_set(
    name: str, train: Table, held_out: Table | float, settings: TaskConfig, digest: str = "", tokens: int = 0
) -> TaskSet:
    """The set of one table that is split, or of two. `tokens` per answer; 0: enough for the longest answer."""
    needs_answer = SCORERS[settings.reward][1] if settings.reward in SCORERS else not settings.reward
    needs_answer = needs_answer and not settings.agent
    reader = Reader(train, settings, needs_answer)
    if needs_answer and not reader.may_answer:
        raise ValueError(
            f"{train.name} has no field with the right answer (answer, output, completion, ...), so "
            f"{settings.reward or 'exact'} cannot judge.{nearest('answer', train.fields)} Fields: "
            f"{', '.join(train.fields)}. Name it with task.answer=FIELD, or use task.reward=./file.py:function."
        )
    rows, notes = _read(reader)
    fields = ", ".join(f"{part}={field}" for part, field in reader.names.items() if field)
    notes = [f"{name}: {len(train.rows)} rows; {fields}", *notes]
    if isinstance(held_out, Table):
        kept, more = _read(Reader(held_out, settings, needs_answer))
        prompts = {r.prompt_hash for r in kept}
        rest = [r for r in rows if r.prompt_hash not in prompts]
        notes += [*more, *_counted(len(rows) - len(rest), "left out: the same prompt is held out")]
    else:
        kept, rest = split_rows(rows, held_out, train.name)
    levels = tuple(sorted({r.task.level for r in rest + kept}))
    if settings.level:
        levels = parse_levels(name, settings.level, levels)
    chosen = in_order([r.task for r in rest if r.task.level in levels], f"seed {settings.seed}")
    if not chosen:
        raise ValueError(f"{name}: every row is held out, so there is nothing to train on. Hold out fewer rows.")
    chosen = chosen[: settings.train_size or None]
    held = in_order([r.task for r in kept if r.task.level in levels], "held out")
    reward = settings.reward or _usual_scorer(chosen + held)
    scorer = scorer_of(reward, settings)
    longest = max(max(len(t.solution), len(t.answer)) for t in (*chosen, *held))
    words = 0 if tokens else text_tokens(longest)
    tokens = tokens or answer_tokens(longest + 1 if longest else 0)
    shown = next((n for n, (path, *_) in SCORERS.items() if path == str(scorer)), str(scorer))
    shown = "task.agent" if settings.agent else shown
    notes.append(
        f"{name}: {len(chosen)} tasks to train on, {len(held)} held out, judged by {shown} (task.held_out, task.reward)"
    )
    facts = (tokens, levels, tuple(notes), digest or _digest(chosen + held), words)
    return TaskSet(name, chosen, held, scorer, *facts, graded=is_graded(reward))


def scorer_of(reward: str, settings: TaskConfig) -> str | Scorer:
    """A scorer by name or import path, with its arguments."""
    if reward not in SCORERS and not is_path(reward):
        raise ValueError(
            f"task.reward={reward!r} is no import path and no scorer has that name, so nothing can be judged."
            f"{nearest(reward, SCORERS)} Scorers: {', '.join(SCORERS)}; or your own, ./file.py:function."
        )
    path = SCORERS[reward][0] if reward in SCORERS else reward
    split_path(path)  # refuses a malformed path now, and not in the worker
    return Scorer(path, plain(settings.args)) if settings.args else path


def is_graded(reward: str) -> bool:
    """Whether a scorer with a name gives other scores than 0 and 1; of your own nobody knows."""
    return reward in SCORERS and SCORERS[reward][2]


def answer_tokens(longest: int) -> int:
    """Tokens per answer, from the length of the longest one; 0: unknown."""
    return min(MOST, max(LEAST, longest)) if longest else UNKNOWN


def text_tokens(longest: int) -> int:
    """The same for a model that writes text: it explains before it answers, and its first answers are long."""
    return min(TEXT_MOST, max(TEXT_LEAST, longest)) if longest else TEXT_UNKNOWN


def _read(reader: Reader) -> tuple[list[Read], list[str]]:
    """The rows of a table without repetitions, and notes about those left out."""
    table = reader.table
    if not len(table.rows):
        raise ValueError(f"{table.name} has no rows, so there are no tasks. Name a file or split that has some.")
    read = [row for row in map(reader, range(len(table.rows))) if row is not None]
    found: dict[str, Read] = {}
    for row in read:
        found.setdefault(row.task.uid, row)
    if not found:
        raise ValueError(f"{table.name}: in every row both answers are the same, so there is no preference to learn.")
    several = len(found) - len({r.prompt_hash for r in found.values()})
    notes = _counted(len(read) - len(found), f"of {table.name} left out: they repeat an earlier one")
    notes += _counted(len(table.rows) - len(read), f"of {table.name} left out: both answers are the same")
    if several and not any(_is_scored(r.task) for r in found.values()):
        notes += _counted(several, f"of {table.name} with the prompt of an earlier one and another answer")
    return list(found.values()), notes


def _counted(count: int, what: str) -> list[str]:
    return [f"{count} row{'s' if count > 1 else ''} {what}"] if count else []


def split_rows(rows: list[Read], share: float, where: str) -> tuple[list[Read], list[Read]]:
    """Holds out the share of the prompts with the smallest hashes, whatever the seed and the order of the rows."""
    if not 0 < share < 1:
        raise ValueError(
            f"task.held_out={share:g} is no share of the rows between 0 and 1. Use for example 0.1, or a file."
        )
    prompts = sorted({r.prompt_hash for r in rows})
    if len(prompts) < 2:
        raise ValueError(
            f"{where} has only one prompt, so nothing can be held out. Add rows, or name a file with others: "
            "task.held_out=./other.jsonl."
        )
    held = set(prompts[: min(max(1, round(share * len(prompts))), len(prompts) - 1)])
    return [r for r in rows if r.prompt_hash in held], [r for r in rows if r.prompt_hash not in held]


def in_order(tasks: list[Task], key: str) -> list[Task]:
    """Sorted by a keyed hash, so that the first n are a random sample, whatever the order of the rows."""
    return sorted(tasks, key=lambda t: blake2b(t.uid.encode(), digest_size=8, key=key.encode()).digest())


def _usual_scorer(tasks: Sequence[Task]) -> str:
    """listed for answers with rewards, numeric if every answer is a number, else exact."""
    if any(_is_scored(t) for t in tasks):
        return "listed"
    return "numeric" if all(is_number(t.answer) for t in tasks) else "exact"


def _is_scored(task: Task) -> bool:
    return any("reward" in a for a in task.meta.get("answers", ()))


def _digest(tasks: Sequence[Task]) -> str:
    return blake2b("\n".join(sorted(t.uid for t in tasks)).encode(), digest_size=8).hexdigest()
