"""Snapshots of worlds that cannot be copied: the actions so far are the snapshot, and playing them restores it."""

from typing import Any

from gruppo.envs.base import Seen, name_of
from gruppo.tasks.base import Task


class Replayed:
    """An environment with snapshots, whatever is inside. `replays` counts the steps that restoring has cost."""

    def __init__(self, env: Any) -> None:
        self.env, self.replays = env, 0
        self.can = frozenset({*getattr(env, "can", ()), "snapshot"})
        self._task: Task | None = None
        self._actions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return name_of(self.env)

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not made yet: a copy asks for it
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, task: Task) -> Seen:
        self._task, self._actions = task, ()
        return self.env.reset(task)

    def step(self, action: str) -> Seen:
        self._actions = (*self._actions, action)
        return self.env.step(action)

    def snapshot(self) -> tuple[Task, tuple[str, ...]]:
        if self._task is None:
            raise ValueError("nothing has been reset yet, so there is nothing to come back to. Call reset(task) first.")
        return self._task, self._actions

    def restore(self, snapshot: tuple[Task, tuple[str, ...]]) -> Seen:
        """The world after these actions. What they lead to is the same, because it depends on nothing else."""
        task, actions = snapshot
        seen = self.reset(task)
        for action in actions:
            seen = self.step(action)
        self.replays += len(actions)
        return seen
