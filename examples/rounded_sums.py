"""Data and a reward function of your own: sums, rounded down to tens. Run it from the folder above:

python examples/rounded_sums.py > examples/rounded_sums.jsonl
gruppo train task=./examples/rounded_sums.jsonl task.reward=./examples/rounded_sums.py:near task.args.credit=0.5

The built-in policy has only seen exact sums, so it has to find out from the reward what is wanted.
"""

import json
import random

from gruppo.tasks import Task
from gruppo.tasks.extract import number


def rows(count: int = 240) -> list[dict[str, object]]:
    """Different pairs of two-digit numbers; 57+68= is answered by 120."""
    pairs = [(a, b) for a in range(10, 100) for b in range(a, 100)]
    chosen = random.Random(0).sample(pairs, count)
    return [{"question": f"{a}+{b}=", "answer": (a + b) // 10 * 10, "a": a, "b": b} for a, b in chosen]


def near(task: Task, text: str, credit: float = 0.5, reach: float = 10.0) -> dict[str, float]:
    """1 for the right number; up to `credit` for one that is nearer than `reach`. `task` is what counts as accuracy."""
    said = number(text)  # the last number in the text
    if said is None:
        return {"task": 0.0, "near": 0.0}
    off = abs(float(said) - float(task.answer))
    return {"task": float(off == 0), "near": credit * max(0.0, 1.0 - off / reach)}


class Fresh:
    """Like `near`, but the same answer to the same question pays less every time: a scorer with a state.

    The state is in the judge's process. It sees the answers of training and of evaluation, begins anew when an answer
    took longer than task.seconds, and begins anew when a run is resumed.
    """

    def __init__(self, credit: float = 0.5, fading: float = 0.99) -> None:
        self.credit, self.fading = credit, fading
        self.times: dict[tuple[str, str], int] = {}

    def __call__(self, task: Task, text: str) -> dict[str, float]:
        found = near(task, text, self.credit)
        seen = self.times[task.uid, text] = self.times.get((task.uid, text), 0) + 1
        return {**found, "near": found["near"] * self.fading ** (seen - 1)}


if __name__ == "__main__":
    for row in rows():
        print(json.dumps(row))
