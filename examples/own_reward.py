"""A reward function of your own, instead of the task's scorer. Run it from the folder above:

gruppo train task=addition task.reward=./examples/own_reward.py:near task.seconds=1

A function of `(task, text)` judges one answer, one of `(tasks, texts)` all answers of a draw at once. Both run in
a process of their own, at most `task.seconds` per answer. Return a number, or named parts: `task` is the one that
counts as accuracy, and the reward is the sum. If an answer cannot be judged, raise: it is left out, and never counts
as 0.
"""

from gruppo.tasks import Task


def near(task: Task, text: str) -> dict[str, float]:
    """1 for the right number, and up to 0.2 for one that is near."""
    answer = text.strip()
    if not answer.isdecimal():
        return {"task": 0.0, "near": 0.0}
    off = abs(int(answer) - int(task.answer))
    return {"task": float(off == 0), "near": 0.2 / (1 + off)}


def near_all(tasks: list[Task], texts: list[str]) -> list[dict[str, float]]:
    """The same, for all answers at once: task.reward=./examples/own_reward.py:near_all"""
    return [near(task, text) for task, text in zip(tasks, texts, strict=True)]
