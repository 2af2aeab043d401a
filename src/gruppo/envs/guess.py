"""Guess the number: after each guess you are told whether the number is higher or lower."""

from collections.abc import Sequence
from typing import Any

from gruppo.envs.world import WON, Facts, Moved, World, nothing, number, spoken, wanted

State = tuple[int, int]  # the numbers that are still possible, both ends included
LARGEST = 99


class Guess(World[State]):
    name = "guess"
    about = "guess a number, told higher or lower"
    rules = "Guess the number. After each guess you are told whether it is higher or lower. An action is a number."
    words = spoken("number from to guess higher lower than you win nothing happens")
    levels = {1: (20, 5), 2: (40, 6), 3: (80, 7), 4: (100, 7)}  # how many numbers, turns: halving just suffices

    @classmethod
    def count(cls, level: int) -> int:
        width = cls.levels[level][0]
        return (LARGEST + 2 - width) * width

    @classmethod
    def numbered(cls, level: int, rank: int) -> dict[str, Any]:
        width, turns = cls.levels[level]
        low, at = divmod(rank, width)
        return {"low": low, "high": low + width - 1, "secret": low + at, "turns": turns}

    @classmethod
    def asked(cls, facts: Facts) -> str:
        return f"guess number from {facts['low']} to {facts['high']}"

    @classmethod
    def answer(cls, facts: Facts) -> str:
        return str(facts["secret"])

    def begin(self, facts: Facts) -> State:
        low, high, self.secret = (wanted(facts, name, int, "guess") for name in ("low", "high", "secret"))
        if not 0 <= low <= self.secret <= high <= LARGEST:
            raise ValueError(f"guess: {self.secret} is not between {low} and {high}, or they are not within 0 to 99.")
        return low, high

    def move(self, state: State, words: list[str]) -> Moved[State]:
        n = number(words[0]) if len(words) == 1 else None
        if n is None:
            return nothing(state)
        low, high = state
        if n == self.secret:
            return Moved((n, n), WON, True, True, 1.0)
        if n < self.secret:
            return Moved((max(low, n + 1), high), f"higher than {n}")
        return Moved((low, min(high, n - 1)), f"lower than {n}")

    def view(self, state: State) -> str:
        return f"guess from {state[0]} to {state[1]}"

    def key(self, state: State) -> str:
        return f"{state[0]} {state[1]}"

    def choices(self, state: State) -> Sequence[str]:
        return [str(n) for n in range(self.facts["low"], self.facts["high"] + 1)]

    def best(self, state: State) -> str:
        return str((state[0] + state[1]) // 2)
