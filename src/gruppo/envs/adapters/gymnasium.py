"""Gymnasium (Towers et al. 2024) with discrete actions: numbers, or words where their meaning is known.

What is observed is written as numbers. Environments with pictures or continuous actions are refused.
"""

from collections.abc import Sequence
from typing import Any

from gruppo.envs.adapters import facts_of
from gruppo.envs.base import POLICY, Seen
from gruppo.envs.world import NOTHING, number, read
from gruppo.tasks.base import Task
from gruppo.tasks.imports import library, nearest

NAMES = {
    "FrozenLake": ("left", "down", "right", "up"),
    "FrozenLake8x8": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("left", "right"),
    "MountainCar": ("left", "wait", "right"),
    "Acrobot": ("left", "wait", "right"),
}
MOST = 32  # numbers of an observation


class Gymnasium:
    """`turns` ends an episode that the environment does not end; other options go to `gymnasium.make`."""

    seats = (POLICY,)
    can = frozenset({"actions"})

    def __init__(self, which: str, turns: int = 200, **options: Any) -> None:
        gym = library("gymnasium", f"env:gymnasium/{which} needs it", "envs")
        self.name, self.turns = f"env:gymnasium/{which}", turns
        try:
            self._env: Any = gym.make(which, **options)
        except (gym.error.Error, TypeError) as error:
            known = nearest(which, gym.registry)
            raise ValueError(f"{self.name} cannot be made ({type(error).__name__}: {error}).{known}") from None
        space = self._env.action_space
        if not isinstance(space, gym.spaces.Discrete):
            raise ValueError(
                f"{self.name} has actions of the kind {type(space).__name__}. Only Discrete ones are words."
            )
        self._first = int(space.start)
        words = NAMES.get(which.partition("-v")[0], ())
        self._words = words if len(words) == space.n else tuple(str(self._first + i) for i in range(int(space.n)))

    def reset(self, task: Task) -> Seen:
        observation, _ = self._env.reset(seed=facts_of(task)[0])
        self._count = 0
        text = self._text(observation)
        self.seen = Seen(f"{text} actions {' '.join(self._words)}", state=text)
        return self.seen

    def step(self, action: str) -> Seen:
        if self.seen.done:
            return Seen(self.seen.text, state=self.seen.state, valid=False, done=True)
        self._count += 1
        chosen = self._read(action)
        out = self._count >= self.turns
        if chosen is None:
            rewards = {"task": 0.0} if out else {}
            self.seen = Seen(NOTHING, POLICY, self.seen.state, False, rewards, done=out, truncated=out)
            return self.seen
        observation, reward, ended, cut, _ = self._env.step(chosen)
        text = self._text(observation)
        cut = (bool(cut) or out) and not ended
        self.seen = Seen(text, POLICY, text, True, {"task": float(reward)}, done=bool(ended) or cut, truncated=cut)
        return self.seen

    def look(self) -> Seen:
        return self.seen

    def actions(self) -> Sequence[str]:
        return self._words

    def _read(self, action: Any) -> int | None:
        words = read(action)
        if len(words) != 1:
            return None
        if words[0] in self._words:
            return self._first + self._words.index(words[0])
        n = number(words[0])
        return n if n is not None and 0 <= n - self._first < len(self._words) else None

    def _text(self, observation: Any) -> str:
        values = _numbers(observation)
        if len(values) > MOST:
            raise ValueError(f"{self.name} shows {len(values)} numbers at once, which is no text. Use another wrapper.")
        return " ".join(f"{v:g}" for v in values)


def _numbers(observation: Any) -> list[float]:
    """All numbers of an observation, rounded, in order."""
    if isinstance(observation, dict):
        return [v for part in observation.values() for v in _numbers(part)]
    if isinstance(observation, tuple | list):
        return [v for part in observation for v in _numbers(part)]
    if hasattr(observation, "ravel"):
        return [round(float(v), 3) for v in observation.ravel().tolist()]
    return [round(float(observation), 3)]
