"""Answers that are written down: what learning from given answers and from preferences begins with.

A task brings them in `meta["answers"]`, a list of {"text": …, "reward": …}, or {"text": …, "label": true or false} for
1 and 0; of a preference file the chosen one has 1 and the rejected one 0. Without a reward an answer is judged by the
run's scorer. The built-in problems are answered by the writers of mixed care, once rightly and once with a slip. Of a
task with neither, the one recorded answer is its `answer`.

`Task.solution` is not used: it holds the steps too, and scorers of one's own may not take them as an answer.
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
    "task {!r} has no recorded answer, so there is nothing to learn from. Give it meta['answers'] = [{{'text': …, "
    "'reward': …}}], an answer, or use a rollout that samples: method.rollout=group."
)


@dataclass(frozen=True)
class Answer:
    text: str
    reward: float = nan  # NaN: for the scorer to say


def recorded(task: Task) -> tuple[Answer, ...]:
    """The answers of a task, in the order of its file; none where nothing is written down."""
    if "answers" in task.meta:
        return tuple(_read(task, i, given) for i, given in enumerate(task.meta["answers"]))
    if task.source in CARE:
        return _written(task)
    return (Answer(task.answer, 1.0),) if task.answer else ()


def demonstration(task: Task) -> str:
    """A text that the task's scorer takes as right: the best of its recorded answers (the first, if none is judged)."""
    if not recorded(task):
        raise ValueError(NO_ANSWER.format(task.uid))
    return max(recorded(task), key=lambda a: a.reward if isfinite(a.reward) else 0.0).text


@lru_cache(maxsize=65536)
def _written(task: Task) -> tuple[Answer, ...]:
    """A right answer and a slip. The scorer judges them, so that a reward of one's own counts here too."""
    draw = Random(hash64("answers", task.uid))
    return tuple(Answer(write(task, care, draw)) for care in (1.0, 0.0))


def _read(task: Task, i: int, given: Any) -> Answer:
    where = f"task {task.uid!r}: meta['answers'][{i}]"
    if not isinstance(given, dict) or not isinstance(given.get("text"), str):
        raise ValueError(
            f"{where} is {given!r}, which has no text, so there is nothing to learn. Write {{'text': …, 'reward': …}}."
        )
    strange = [k for k in given if k not in ("text", "reward", "label")]
    if strange:
        raise ValueError(
            f"{where} has {strange[0]!r}{nearest(strange[0], ('text', 'reward', 'label'))}: it would have no effect. "
            "An answer has text, and reward or label."
        )
    reward = given.get("reward", given.get("label", nan))
    if not isinstance(reward, (bool, int, float)) or reward in (float("inf"), float("-inf")):
        raise ValueError(
            f"{where} has the reward {reward!r}, so it cannot be compared. Give a finite number, or a label true or "
            "false; leave it out, and the scorer judges."
        )
    return Answer(given["text"], float(reward))
