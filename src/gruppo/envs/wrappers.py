"""Wrappers: an environment with a turn limit, with retries, with a window of the last turns, or against a player.

A wrapper is an environment again, so they can be put around one another. `memory.py` has the one in which the agent
edits what it remembers.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gruppo.envs.base import POLICY, Player, Seen, name_of, need, seats_of
from gruppo.envs.players import opponent
from gruppo.tasks.base import Task
from gruppo.tasks.imports import nearest
from gruppo.tasks.numbering import hash64

AGAIN = "wrong try again"


class Wrapper:
    """An environment around another one. What it does not change is asked of the inner one."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.can = frozenset(getattr(env, "can", ()))

    @property
    def name(self) -> str:
        return name_of(self.env)

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not made yet: a copy asks for it
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, task: Task) -> Seen:
        self.task = task
        self.seen = self.begun(self.env.reset(task))
        return self.seen

    def step(self, action: str) -> Seen:
        if self.seen.done:
            return replace(self.seen, valid=False, rewards={}, outcomes={}, tools=())
        self.seen = self.stepped(action)
        return self.seen

    def look(self) -> Seen:
        return self.seen

    def snapshot(self) -> Any:
        if not hasattr(self.env, "snapshot"):
            need(self.env, "snapshot", "one was asked for")
        return self.env.snapshot(), self.task, self.seen, self.own()

    def restore(self, snapshot: Any) -> Seen:
        inner, self.task, self.seen, own = snapshot
        self.env.restore(inner)
        self.put_back(own)
        return self.seen

    # ---- what a wrapper defines --------------------------------------------------------------------

    def begun(self, seen: Seen) -> Seen:
        return seen

    def stepped(self, action: str) -> Seen:
        return self.env.step(action)

    def own(self) -> Any:
        """What it remembers itself; nothing that a later step changes."""
        return None

    def put_back(self, own: Any) -> None:
        """Undoes `own`."""


class Counting(Wrapper):
    """Counts the steps of an episode."""

    count = 0

    def begun(self, seen: Seen) -> Seen:
        self.count = 0
        return seen

    def stepped(self, action: str) -> Seen:
        self.count += 1
        return self.env.step(action)

    def own(self) -> int:
        return self.count

    def put_back(self, own: int) -> None:
        self.count = own


class TurnLimit(Counting):
    """At most so many turns. Where they run out, a world pays 0 for the task, and a game nothing to every seat."""

    def __init__(self, env: Any, turns: int) -> None:
        super().__init__(env)
        if turns < 1:
            raise ValueError(f"turns={turns}: no action could be taken. Use at least 1.")
        self.turns = turns

    def stepped(self, action: str) -> Seen:
        seen = super().stepped(action)
        return seen if seen.done or self.count < self.turns else cut(self.env, seen)


def cut(env: Any, seen: Seen) -> Seen:
    """The episode ends here, although it is not over."""
    seats = seats_of(env)
    if len(seats) > 1:
        return replace(seen, done=True, truncated=True, outcomes=dict.fromkeys(seats, 0.0))
    return replace(seen, done=True, truncated=True, rewards={"task": 0.0, **seen.rewards})


class Retry(Wrapper):
    """UFO (Liu et al. 2025): after a failure one constant sentence, and the same task again, up to `tries` times.

    R = Σ_t decay^t · right_t − penalty (1 − E/T), with E different answers among T; t counts from 0. An answer is what
    was done in one try, in lower case and without spaces. A try without any valid action is none: it costs a turn of
    the environment, but is in neither count.
    """

    def __init__(
        self, env: Any, tries: int = 5, sentence: str = AGAIN, decay: float = 0.5, penalty: float = 0.5
    ) -> None:
        super().__init__(env)
        if tries < 1 or not 0 < decay <= 1 or penalty < 0 or not sentence.strip():
            raise ValueError(
                f"tries={tries}, decay={decay:g}, penalty={penalty:g}, sentence={sentence!r}: use at least one try, a "
                "decay above 0 and up to 1, no negative penalty, and a sentence that says something."
            )
        if len(seats_of(env)) > 1:
            raise ValueError("retries are for one agent: in a game the other seats would play again, too.")
        self.tries, self.sentence, self.decay, self.penalty = tries, sentence, decay, penalty

    def begun(self, seen: Seen) -> Seen:
        self.said: tuple[str, ...] = ()
        self.now: tuple[str, ...] = ()
        self.failed = 0
        return seen

    def stepped(self, action: str) -> Seen:
        seen = self.env.step(action)
        if seen.valid:
            self.now = (*self.now, "".join(action.lower().split()))
        if not seen.done or seen.error:
            return seen
        self.said = (*self.said, " ".join(self.now)) if self.now else self.said
        self.now = ()
        right = seen.rewards.get("task", 0.0) >= 1
        if not right and self.failed + 1 < self.tries:
            self.failed += 1
            first = self.env.reset(self.task)
            return replace(first, text=f"{self.sentence} {first.text}".strip(), valid=seen.valid, tools=seen.tools)
        return replace(seen, rewards=self._paid(seen, right))

    def _paid(self, seen: Seen, right: bool) -> Mapping[str, float]:
        rest = {name: r for name, r in seen.rewards.items() if name != "task"}
        repeated = self.penalty * (1 - len(set(self.said)) / len(self.said)) if self.said else 0.0
        return {**rest, "task": self.decay**self.failed if right else 0.0, "repeated": -repeated}

    def own(self) -> Any:
        return self.said, self.now, self.failed

    def put_back(self, own: Any) -> None:
        self.said, self.now, self.failed = own


class Window(Wrapper):
    """Every observation is a whole context: the task, the last k turns, and what is seen now."""

    def __init__(self, env: Any, turns: int) -> None:
        super().__init__(env)
        if turns < 0:
            raise ValueError(f"turns={turns}: a window cannot be negative. Use 0 for the present alone.")
        if len(seats_of(env)) > 1:
            raise ValueError("a window is for one agent: in a game it would show one seat what another one saw.")
        self.turns, self.past = turns, deque[tuple[str, str]](maxlen=turns)

    def begun(self, seen: Seen) -> Seen:
        self.past.clear()
        self.here = seen.text
        return self._whole(seen)

    def stepped(self, action: str) -> Seen:
        seen = self.env.step(action)
        self.past.append((self.here, action if isinstance(action, str) else ""))
        self.here = seen.text
        return self._whole(seen)

    def _whole(self, seen: Seen) -> Seen:
        lines = [line for text, action in self.past for line in (text, f"> {action}")]
        return replace(seen, text="\n".join([self.task.prompt, *lines, seen.text]), fresh=True)

    def own(self) -> Any:
        return tuple(self.past), self.here

    def put_back(self, own: Any) -> None:
        past, self.here = own
        self.past.clear()
        self.past.extend(past)


OVER = "over: the game ended before its first move"


def told(outcome: float) -> str:
    """The end of a game, for the seat with this outcome."""
    return "you win" if outcome > 0 else "you lose" if outcome < 0 else "draw"


class Against(Wrapper):
    """A game for one agent: the other seats are scripted players, and the outcome of its own seat is the reward.

    The player is a function or a name (`players.opponent`). Its random key depends on the task and on how many moves it
    has made, so that the game is still a pure function of task and actions.
    """

    def __init__(self, env: Any, player: str | Player, seat: str = "", key: int = 0) -> None:
        super().__init__(env)
        seats = seats_of(env)
        self.seat = seat or seats[0]
        if len(seats) < 2 or self.seat not in seats:
            raise ValueError(f"seat={self.seat!r}: the seats are {', '.join(seats)}.{nearest(self.seat, seats)}")
        self.player: Player = opponent(env, player) if isinstance(player, str) else player
        self.seats, self.player_key, self.moves = (POLICY,), key, 0
        self.can -= {"players"}

    def begun(self, seen: Seen) -> Seen:
        self.moves = 0
        mine = self._mine(seen)
        if mine.done and not mine.error:  # nothing was decided by the agent, so there is nothing to judge
            return replace(mine, valid=False, rewards={}, error=f"{OVER}, in seat {self.seat}")
        return mine

    def stepped(self, action: str) -> Seen:
        seen = self.env.step(action)
        return replace(self._mine(seen), valid=seen.valid, tools=seen.tools)  # ours, not the other one's

    def _mine(self, seen: Seen) -> Seen:
        """Lets the others act until it is our turn."""
        while not seen.done and seen.agent != self.seat:
            seen = self.env.step(self.player(seen, hash64(self.player_key, self.task.uid, self.moves)))
            self.moves += 1
        if not seen.done or seen.error:
            return replace(seen, agent=POLICY, rewards={}, outcomes={})
        won = seen.outcomes[self.seat]
        text = seen.text if seen.agent == self.seat else told(won)  # what a world says is for the seat that acts next
        return replace(seen, text=text, agent=POLICY, rewards={"task": won}, outcomes={})

    def own(self) -> int:
        return self.moves

    def put_back(self, own: int) -> None:
        self.moves = own
