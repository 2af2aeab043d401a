"""TextArena (Guertler et al. 2025): text games for one, two or more players.

An observation is what was said since this player last acted. An action may be written with or without the brackets that
the games ask for. The library draws from Python's global generator, so there must be one game in a process at a time.
"""

from typing import Any

from gruppo.envs.adapters import facts_of
from gruppo.envs.base import POLICY, Seen
from gruppo.tasks.base import Task
from gruppo.tasks.imports import library, nearest
from gruppo.tasks.numbering import hash64

MOST_PLAYERS = 15
LONGEST = 2_000  # characters of an action that are passed on


class TextArena:
    """`players=0` takes the smallest number that the game allows; other options go to `textarena.make`."""

    can: frozenset[str] = frozenset()

    def __init__(self, which: str, players: int = 0, **options: Any) -> None:
        ta = library("textarena", f"env:textarena/{which} needs it", "envs")
        known = library("textarena.envs.registration", f"env:textarena/{which} needs it", "envs").ENV_REGISTRY
        raw = f"{which.removesuffix('-raw')}-raw"  # without the library's own wrappers, which repeat all that was said
        if raw not in known:
            raise ValueError(f"env:textarena/{which}: no such game.{nearest(which, known)}")
        self.name = f"env:textarena/{which}"
        self._make = lambda: ta.make(raw, **options)
        self._env: Any = self._make()
        self.players_count = players or self._fewest()
        several = tuple(f"player{i}" for i in range(self.players_count))
        self.seats = several if self.players_count > 1 else (POLICY,)

    def _fewest(self) -> int:
        for n in range(1, MOST_PLAYERS + 1):
            try:
                self._env.reset(num_players=n, seed=0)
            except AssertionError:  # how the library says that it is another number
                continue
            return n
        raise ValueError(f"{self.name} takes none of 1 to {MOST_PLAYERS} players. Say how many with players=N.")

    def reset(self, task: Task) -> Seen:
        self._env = self._make()  # some games keep things from one episode to the next, such as a shuffled deck
        self._env.reset(num_players=self.players_count, seed=facts_of(task)[0])
        self._heard: dict[str, int] = dict.fromkeys(self.seats, 0)  # a hash of all that a seat has heard
        self.seen = self._now(True)
        return self.seen

    def step(self, action: str) -> Seen:
        if self.seen.done:
            return Seen(self.seen.text, self.seen.agent, self.seen.state, False, done=True)
        who = self._env.state.current_player_id
        done, _ = self._env.step(_bracketed(action))
        state = self._env.state
        if not done:
            valid = (
                not (state.error_count and state.current_player_id == who) if hasattr(state, "error_count") else True
            )
            self.seen = self._now(valid)
            return self.seen
        rewards, facts = self._env.close()
        paid = {seat: float(rewards.get(i, 0.0)) for i, seat in enumerate(self.seats)}
        text = str(facts[0].get("reason") or "the game is over")
        valid = not facts[who].get("invalid_move", False)
        one = len(self.seats) == 1
        self.seen = Seen(
            text,
            self.seen.agent,
            self.seen.state,
            valid,
            {"task": paid[POLICY]} if one else {},
            {} if one else paid,
            True,
        )
        return self.seen

    def look(self) -> Seen:
        return self.seen

    def _now(self, valid: bool) -> Seen:
        """What the player that acts next has not heard yet; its own words are left out."""
        who, said = self._env.get_observation()
        seat = self.seats[who]
        text = "\n".join(str(message).strip() for speaker, message, _ in said if speaker != who)
        text = text.encode(errors="replace").decode() or "go on"
        self._heard[seat] = hash64(self._heard[seat], text)
        return Seen(text, seat, f"{seat} {self._heard[seat]:016x}", valid)


def _bracketed(action: Any) -> str:
    """As the games ask for it: `4` is `[4]`. What is no text, or too long, is an empty action."""
    if not isinstance(action, str) or len(action) > LONGEST:
        return ""
    text = action.encode(errors="replace").decode().strip()
    return text if "[" in text or not text else f"[{text}]"
