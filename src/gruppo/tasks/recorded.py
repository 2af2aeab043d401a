"""Recorded answers, for supervised learning and for learning from preferences.

They are in `meta["answers"]`, a list of {"text": …, "reward": …}, or {"text": …, "label": true or false} for 1 and 0;
in a preference file, the chosen answer has 1 and the rejected one 0. An answer without a reward is judged by the
run's scorer. Built-in problems have a right answer and one with an error, by the writers. For other tasks, the only
recorded answer is `Task.answer`; `Task.solution` also has the steps, which a scorer may not accept.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, nan
from random import Random
from typing import Any

from gruppo.tasks.base import Task
from gruppo.tasks.imports import nearest
from gruppo.tasks.numbering import hash64
from gruppo.tasks.writers import CARE, write

NO_ANSWER = (
    "task {!r} has no recorded answer, so there is nothing to learn from. Add an answer or meta['answers'] = "
    "[{{'text': …, 'reward': …}}], or use a rollout that samples: method.rollout=group."
)


@dataclass(frozen=True)
class Answer:
    text: str
    reward: float = nan  # NaN: the scorer decides


def recorded(task: Task) -> tuple[Answer, ...]:
    """The recorded answers of a task, in the order of its file."""
    if "answers" in task.meta:
        return tuple(_read(task, i, given) for i, given in enumerate(task.meta["answers"]))
    if task.source in CARE:
        return _written(task)
    return (Answer(task.answer, 1.0),) if task.answer else ()


def demonstration(task: Task) -> str:
    """The best recorded answer of a task, or the first if none has a reward."""
    if not recorded(task):
        raise ValueError(NO_ANSWER.format(task.uid))
    return max(recorded(task), key=lambda a: a.reward if isfinite(a.reward) else 0.0).text


@lru_cache(maxsize=65536)
def _written(task: Task) -> tuple[Answer, ...]:
    """A right answer and one with an error, without rewards, so that the run's own scorer judges them."""
    draw = Random(hash64("answers", task.uid))
    return tuple(Answer(write(task, care, draw)) for care in (1.0, 0.0))


def _read(task: Task, i: int, given: Any) -> Answer:
    where = f"task {task.uid!r}: meta['answers'][{i}]"
    if not isinstance(given, dict) or not isinstance(given.get("text"), str):
        raise ValueError(f"{where} is {given!r}, which has no text. Write {{'text': …, 'reward': …}}.")
    unknown = [k for k in given if k not in ("text", "reward", "label")]
    if unknown:
        near = nearest(unknown[0], ("text", "reward", "label"))
        raise ValueError(f"{where} has {unknown[0]!r}.{near} An answer has text, and reward or label.")
    reward = given.get("reward", given.get("label", nan))
    if not isinstance(reward, (bool, int, float)) or reward in (float("inf"), float("-inf")):
        raise ValueError(
            f"{where} has the reward {reward!r}, so it cannot be compared. Use a finite number, a label true or false, "
            "or nothing, and the scorer judges."
        )
    return Answer(given["text"], float(reward))
