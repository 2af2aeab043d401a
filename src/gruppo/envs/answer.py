"""A task with a scorer as an environment of one turn: the prompt is seen, the action is the answer.

`Retry(Answer(tasks.scorer))` makes a task of several tries from it. The scorer runs in this process, so it must be one
that can be trusted to return; the judge of `gruppo train` runs scorers in processes of their own.
"""

from typing import Any

from gruppo.envs.base import POLICY, Seen
from gruppo.tasks.base import Scorer, Task
from gruppo.tasks.imports import load_object


class Answer:
    """An empty answer is invalid and is not judged. Any other ends the episode."""

    name = "answer"
    seats = (POLICY,)
    can = frozenset({"gold", "snapshot"})

    def __init__(self, scorer: str | Scorer) -> None:
        given = scorer if isinstance(scorer, Scorer) else Scorer(scorer)
        found = load_object(given.path)
        self._score: Any = found(**given.args) if isinstance(found, type) else found
        self._args = {} if isinstance(found, type) else dict(given.args)

    def reset(self, task: Task) -> Seen:
        self.task, self.seen = task, Seen(task.prompt, state=task.uid)
        return self.seen

    def step(self, action: str) -> Seen:
        if self.seen.done:
            return Seen(self.seen.text, state=self.seen.state, valid=False, done=True)
        if not isinstance(action, str) or not action.strip():
            return Seen(self.seen.text, state=self.seen.state, valid=False)
        given = self._score(self.task, action, **self._args)
        rewards = {k: float(v) for k, v in given.items()} if isinstance(given, dict) else {"task": float(given)}
        self.seen = Seen(
            "right" if rewards["task"] >= 1 else "wrong", state=self.seen.state, rewards=rewards, done=True
        )
        return self.seen

    def look(self) -> Seen:
        return self.seen

    def snapshot(self) -> Any:
        return self.task, self.seen

    def restore(self, snapshot: Any) -> Seen:
        self.task, self.seen = snapshot
        return self.seen

    def gold(self) -> str:
        return "" if self.seen.done else self.task.solution or self.task.answer
