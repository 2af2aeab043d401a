"""OpenSpiel (Lanctot et al. 2019): board and card games for one or more players.

What a player sees is the library's own text, and the actions that are allowed. Chance is keyed by the task.
Players of a game with simultaneous moves choose one after the other, without seeing each other's choice.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from gruppo.envs.adapters import facts_of
from gruppo.envs.base import POLICY, Seen
from gruppo.envs.world import LONGEST, LOST, NOTHING
from gruppo.tasks.base import Task
from gruppo.tasks.imports import library, nearest
from gruppo.tasks.numbering import hash64

SHOWN = 40  # actions that are named in an observation


class OpenSpiel:
    """`turns` ends a game that does not end; other options are parameters of the game, such as players=3.

    In a game of several players, a second illegal action in a row loses.
    """

    can = frozenset({"actions"})

    def __init__(self, which: str, turns: int = 200, **parameters: Any) -> None:
        spiel = library("pyspiel", f"env:open_spiel/{which} needs open_spiel", "envs")
        self.name, self.turns = f"env:open_spiel/{which}", turns
        known = spiel.registered_names()
        if which not in known:
            raise ValueError(f"{self.name}: no such game.{nearest(which, known)}")
        try:
            self._game: Any = spiel.load_game_as_turn_based(which, parameters)
        except spiel.SpielError as error:
            raise ValueError(f"{self.name} cannot be made with {parameters}: {error}") from None
        kind = self._game.get_type()
        self._sees, self._knows = kind.provides_observation_string, kind.provides_information_state_string
        if kind.chance_mode == spiel.GameType.ChanceMode.SAMPLED_STOCHASTIC or not (self._sees or self._knows):
            raise ValueError(
                f"{self.name} draws from a generator of its own, or has no text to see, so it cannot be played again "
                "as it was. Use another game."
            )
        self._zero_sum = kind.utility == spiel.GameType.Utility.ZERO_SUM
        n = self._game.num_players()
        self.seats = tuple(f"player{i}" for i in range(n)) if n > 1 else (POLICY,)

    def reset(self, task: Task) -> Seen:
        self._key, self._draws, self._count, self._strikes = hash64("open_spiel", facts_of(task)[0]), 0, 0, 0
        self._state: Any = self._game.new_initial_state()
        self._chance()
        self.seen = self._now(True)
        return self.seen

    def step(self, action: str) -> Seen:
        if self.seen.done:
            return Seen(self.seen.text, self.seen.agent, self.seen.state, False, done=True)
        self._count += 1
        chosen = self._allowed().get(spoken(action))
        self._strikes = 0 if chosen is not None else self._strikes + 1
        if chosen is not None:
            self._state.apply_action(chosen)
            self._chance()
        if self._state.is_terminal():
            self.seen = self._end("the game is over", True, self._state.returns())
        elif self._strikes == 2 and len(self.seats) > 1:
            self.seen = self._end(LOST, False, self._forfeit(self._state.current_player()))
        elif self._count >= self.turns:
            self.seen = self._end("the game is over", chosen is not None, [0.0] * len(self.seats), cut=True)
        else:
            self.seen = self._now(chosen is not None)
        return self.seen

    def look(self) -> Seen:
        return self.seen

    def actions(self) -> Sequence[str]:
        return () if self.seen.done else list(self._allowed())

    def _chance(self) -> None:
        """Draws until somebody can choose."""
        while not self._state.is_terminal() and self._state.is_chance_node():
            self._draws += 1
            at = hash64(self._key, self._draws) / 2**64
            outcomes, shares = zip(*self._state.chance_outcomes(), strict=True)
            chosen = bisect_right(list(accumulate(shares)), at)
            self._state.apply_action(outcomes[min(chosen, len(outcomes) - 1)])  # rounding may leave none

    def _allowed(self) -> Mapping[str, int]:
        """The actions by their words; where two have the same words, by their numbers."""
        who = self._state.current_player()
        legal = list(self._state.legal_actions())
        words = {a: spoken(self._state.action_to_string(who, a)) for a in legal}
        clear = len(set(words.values())) == len(legal) and all(words.values())
        return {words[a] if clear else str(a): a for a in legal}

    def _now(self, valid: bool) -> Seen:
        who = self._state.current_player()
        text = self._state.observation_string(who) if self._sees else self._state.information_state_string(who)
        known = self._state.information_state_string(who) if self._knows else text
        some = list(self._allowed())
        listed = ", ".join(some[:SHOWN]) + (" …" if len(some) > SHOWN else "")
        said = [text.strip(), f"actions: {listed}"] if valid else [NOTHING, f"actions: {listed}"]
        return Seen("\n".join(filter(None, said)), self.seats[who], f"{self.seats[who]} {known}", valid)

    def _end(self, text: str, valid: bool, returns: Sequence[float], cut: bool = False) -> Seen:
        paid = dict(zip(self.seats, map(float, returns), strict=True))
        one = len(self.seats) == 1
        before = self.seen
        rewards, outcomes = ({"task": paid[POLICY]}, {}) if one else ({}, paid)
        return Seen(text, before.agent, before.state, valid, rewards, outcomes, True, cut)

    def _forfeit(self, who: int) -> list[float]:
        """The least that can be earned, for who did not play by the rules; the others share it in a zero-sum game."""
        least, n = float(self._game.min_utility()), len(self.seats)
        return [least if i == who else -least / (n - 1) if self._zero_sum else min(least, 0.0) for i in range(n)]


def spoken(action: Any) -> str:
    """An action in words: `x(0,1)` is `x 0 1`. Empty if it is no text, or too long to be one."""
    if not isinstance(action, str) or len(action) > LONGEST:
        return ""
    return " ".join(re.findall(r"[\w+-]+", action.lower()))
