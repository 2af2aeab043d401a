"""A world for runs of policies that know nothing: what pays is luck, so some episodes win and some do not."""

from typing import Any

from gruppo.envs.base import Seen
from gruppo.tasks import Task
from gruppo.tasks.numbering import hash64


class Lucky:
    """Three turns. The words of an action decide whether it counts, and the first two states recur."""

    def reset(self, task: Task) -> Seen:
        self.said = ""
        self.turn, self.over = 0, False
        return Seen("go", state="0")

    def step(self, action: str) -> Seen:
        if self.over:
            return Seen("over", state="over", valid=False, done=True)
        self.said += f"{action}|"
        self.turn += 1
        self.over = self.turn == 3
        rewards = {"task": float(hash64(self.said) % 2)} if self.over else {}
        return Seen("on", state=str(self.turn), rewards=rewards, done=self.over)


class Breaks(Lucky):
    """It fails in the second turn of some episodes."""

    def step(self, action: str) -> Seen:
        seen = super().step(action)
        if self.turn == 2 and hash64("breaks", self.said) % 5 == 0:
            raise ConnectionError("no answer")
        return seen


def rows(world: str, n: int = 12) -> list[dict[str, Any]]:
    """Tasks of a JSONL file."""
    return [{"env": world, "prompt": f"{i}"} for i in range(n)]
