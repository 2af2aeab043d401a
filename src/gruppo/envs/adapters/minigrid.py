"""MiniGrid and BabyAI (Chevalier-Boisvert et al. 2023) in words: a mission, and what lies where in front of the agent.

Distances are steps `forward`, and `left` or `right` of the way ahead. For levels of BabyAI a bot knows the way: gold.
"""

from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from gruppo.envs.adapters import facts_of
from gruppo.envs.base import POLICY, Seen
from gruppo.envs.world import NOTHING, read
from gruppo.tasks.base import Task
from gruppo.tasks.imports import library, nearest

IGNORED = ("unseen", "empty", "wall", "floor", "agent")
DOORS = ("open", "closed", "locked")


class MiniGrid:
    """`turns` ends an episode earlier than the level does; other options go to `gymnasium.make`.

    The reward is the level's: 1 - 0.9 · turns / (all turns) for a success, and 0 without.
    """

    seats = (POLICY,)

    def __init__(self, which: str, turns: int = 0, **options: Any) -> None:
        gym = library("gymnasium", f"env:minigrid/{which} needs it", "envs")
        library("minigrid", f"env:minigrid/{which} needs it", "envs")  # registers its levels
        self._core: Any = library("minigrid.core.constants", f"env:minigrid/{which} needs it", "envs")
        self.name, self.turns = f"env:minigrid/{which}", turns
        known = [name for name in gym.registry if name.startswith(("MiniGrid-", "BabyAI-"))]
        if which not in known:
            raise ValueError(f"{self.name}: no such level.{nearest(which, known)}")
        try:
            self._env: Any = gym.make(which, **options)
        except TypeError as error:
            raise ValueError(f"{self.name} cannot be made with {options}: {error}") from None
        inner = self._env.unwrapped
        self._words = [a.name for a in sorted(inner.actions)][: int(self._env.action_space.n)]
        self._solved = which.startswith("BabyAI-")
        self.can = frozenset({"actions", "gold"} if self._solved else {"actions"})

    def reset(self, task: Task) -> Seen:
        with redirect_stdout(StringIO()):  # it tells of levels that it drew and did not take
            observation, _ = self._env.reset(seed=facts_of(task)[0])
        self._count = 0
        self._bot: Any = library("minigrid.utils.baby_ai_bot", self.name).BabyAIBot(self._env) if self._solved else None
        self._plan(None)
        text = f"{observation['mission']}\n{self._text(observation)}\nactions: {', '.join(self._words)}"
        self.seen = Seen(text, state=self._key())
        return self.seen

    def step(self, action: str) -> Seen:
        if self.seen.done:
            return Seen(self.seen.text, state=self.seen.state, valid=False, done=True)
        self._count += 1
        out = 0 < self.turns <= self._count
        words = read(action)
        if len(words) != 1 or words[0] not in self._words:
            rewards = {"task": 0.0} if out else {}
            self.seen = Seen(NOTHING, POLICY, self.seen.state, False, rewards, done=out, truncated=out)
            return self.seen
        chosen = self._words.index(words[0])
        observation, reward, ended, cut, _ = self._env.step(chosen)
        cut = (bool(cut) or out) and not ended
        done = bool(ended) or cut
        if not done:
            self._plan(self._env.unwrapped.actions(chosen))
        rewards = {"task": float(reward)} if done else {}
        self.seen = Seen(self._text(observation), POLICY, self._key(), True, rewards, done=done, truncated=cut)
        return self.seen

    def look(self) -> Seen:
        return self.seen

    def actions(self) -> Sequence[str]:
        return self._words

    def gold(self) -> str:
        """What the bot would do; empty where it does not know any further."""
        return "" if self.seen.done else self._next

    def _plan(self, taken: Any) -> None:
        """Lets the bot see what was done, also if it was not its own plan."""
        try:
            self._next = self._words[int(self._bot.replan(taken))] if self._bot is not None else ""
        except Exception:  # it gives up in several ways
            self._bot, self._next = None, ""

    def _key(self) -> str:
        inner = self._env.unwrapped
        held = inner.carrying
        return f"{inner.hash()} {f'{held.color} {held.type}' if held else ''} {self._count if self._moves() else ''}"

    def _moves(self) -> bool:
        """Whether things move by themselves, so that the number of turns is part of the state."""
        return "Dynamic" in self.name

    def _text(self, observation: Any) -> str:
        held = self._env.unwrapped.carrying
        carried = f"you carry a {held.color} {held.type}" if held else "you carry nothing"
        return (
            f"you see {', '.join([*self._things(observation['image']), *self._walls(observation['image'])])}\n{carried}"
        )

    def _things(self, image: Any) -> list[str]:
        """What is in view, the nearest first. The agent is in the middle of the last row, and looks up."""
        wide, high = image.shape[:2]
        out: list[tuple[int, str]] = []
        for x in range(wide):
            for y in range(high):
                kind, colour, state = (int(v) for v in image[x, y])
                thing = self._core.IDX_TO_OBJECT[kind]
                ahead, aside = high - 1 - y, x - wide // 2
                if thing in IGNORED or (ahead, aside) == (0, 0):  # there it shows what is carried
                    continue
                how = f"{DOORS[state]} " if thing == "door" else ""
                tint = "" if thing in ("goal", "lava") else f"{self._core.IDX_TO_COLOR[colour]} "
                out.append((ahead + abs(aside), f"a {how}{tint}{thing}{_where(ahead, aside)}"))
        return [text for _, text in sorted(out)]

    def _walls(self, image: Any) -> list[str]:
        """The nearest wall ahead and to both sides."""
        wide, high = image.shape[:2]
        wall, here = self._core.OBJECT_TO_IDX["wall"], (wide // 2, high - 1)
        out = [f"a wall{_where(n, 0)}" for n in range(1, high) if int(image[here[0], high - 1 - n, 0]) == wall][:1]
        for side in (-1, 1):
            reach = range(1, wide // 2 + 1)
            out += [
                f"a wall{_where(0, side * n)}" for n in reach if int(image[here[0] + side * n, here[1], 0]) == wall
            ][:1]
        return out or ["nothing"]


def _where(ahead: int, aside: int) -> str:
    forward = f" {ahead} forward" if ahead else ""
    return forward + (f" {abs(aside)} {'left' if aside < 0 else 'right'}" if aside else "")
