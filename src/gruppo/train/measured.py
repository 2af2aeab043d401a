"""Held-out figures: what they are called, and which ones of a run can be compared.

A run may go on with another reward, other data or another task (`--allow-changes`). Then it measures anew before the
next step, in a row of its own, and figures from before that row are of something else.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from gruppo.tasks.settings import JUDGING
from gruppo.train.depends import differences
from gruppo.train.folder import table_changes
from gruppo.train.progress import ANEW, change_words

DEPENDS_ON = ("task", "eval.prompts", "eval.samples", "eval.temperature", "sampling.max_tokens")
HOW = "the way of measuring"
APART_FROM = tuple(f"task.{name}:" for name in (*JUDGING, "hosted", "seed", "train_size"))  # never what is held out


def measured_otherwise(before: bytes | None, now: bytes) -> list[str]:
    """What held-out figures depend on and has changed since the record of a checkpoint (`RunFolder.record`)."""
    if before is None:
        return []
    old, new = json.loads(before), json.loads(now)
    changes = table_changes(tomllib.loads(old["config"]), tomllib.loads(new["config"]))
    changes += differences(old["depends"], new["depends"])
    return [c for c in changes if c.startswith(DEPENDS_ON) and not c.startswith(APART_FROM)]


def changed_words(changes: Sequence[str], data: bool) -> str:
    """`the reward has`: which of the things that held-out figures depend on are others; "" if none is."""
    found = dict.fromkeys(_what(c) for c in changes)
    if data and "the task" not in found:
        found = {"the data": None, **found}
    have = "has" if len(found) == 1 and "the data" not in found else "have"
    return f"{' and '.join(found)} {have}" if found else ""


def _what(change: str) -> str:
    if change.startswith(("task.reward", "task.args")):
        return "the reward"
    return "the task" if change.startswith("task") else HOW


def comparable(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The rows since the run last measured anew; all of them if it never did."""
    return rows[max((i for i, row in enumerate(rows) if row.get(ANEW)), default=0) :]


def since(rows: Sequence[Mapping[str, Any]]) -> int:
    """The step at which the run last measured anew; 0 if it never did."""
    return max((int(row["step"]) for row in rows if row.get(ANEW)), default=0)


def steps_words(summary: Mapping[str, Any]) -> str:
    """`202 steps`, or `155 of 202 steps` if its figures are compared since a later one."""
    done, after = int(summary["steps"]), int(summary.get("measured_since", 0))
    return f"{f'{done - after} of ' if after else ''}{done} {'step' if done == 1 else 'steps'}"


def since_words(step: int) -> str:
    return f" since step {step} (measured anew)" if step else ""


def result_words(summary: Mapping[str, Any]) -> str:
    """`held-out accuracy 0.384 → 0.986`, of the summary of a run."""
    both = change_words((summary["accuracy_before"], summary["accuracy_after"]))
    return f"held-out {summary.get('measure', 'accuracy')} {both}{since_words(summary.get('measured_since', 0))}"
