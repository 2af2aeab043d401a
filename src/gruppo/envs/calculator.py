"""A calculator with one operation a turn: work out a longer sum, then answer."""

from collections.abc import Sequence
from typing import Any

from gruppo.envs.base import Called
from gruppo.envs.world import LOST, WON, Draws, Facts, Moved, World, nothing, number, spoken, wanted

SIGNS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
LARGEST = 99

State = tuple[str, ...]  # the results so far, the newest last


class Calculator(World[State]):
    name = "calculator"
    about = "a sum of several operations, with a tool for one at a time"
    rules = "Work out the sum. The calculator does one operation a turn, such as: 3 + 4. Then say: answer NUMBER."
    words = spoken("what is ( ) + - * = answer ready too large small you win lose nothing happens")
    levels = {1: (1, 4), 2: (2, 5), 3: (3, 6), 4: (5, 9)}  # operations, turns

    @classmethod
    def drawn(cls, level: int, draw: Draws) -> dict[str, Any]:
        operations, turns = cls.levels[level]
        terms: list[int | str] = [draw.between(1, 49 if operations == 1 else 20)]
        for _ in range(operations):
            terms += [draw.pick(tuple(SIGNS)), draw.between(1, 49 if operations == 1 else 12)]
        return {"terms": terms, "turns": turns}

    @classmethod
    def suits(cls, facts: Facts) -> bool:
        return all(0 <= n <= LARGEST for n in results(facts["terms"])) and super().suits(facts)

    @classmethod
    def asked(cls, facts: Facts) -> str:
        first, *rest = facts["terms"]
        text = str(first)
        for i in range(0, len(rest), 2):
            text = f"( {text} ) {rest[i]} {rest[i + 1]}" if i else f"{text} {rest[0]} {rest[1]}"
        return f"what is {text}"

    @classmethod
    def answer(cls, facts: Facts) -> str:
        return str(results(facts["terms"])[-1])

    def begin(self, facts: Facts) -> State:
        terms = wanted(facts, "terms", list, "calculator")
        fit = len(terms) % 2 and all(isinstance(n, int) for n in terms[::2]) and all(s in SIGNS for s in terms[1::2])
        if not fit or not 0 <= results(terms)[-1] <= LARGEST:
            raise ValueError(f"calculator: {terms} is not such as [3, '+', 4, '*', 5], or leaves 0 to 99.")
        self.terms, self.result = terms, str(results(terms)[-1])
        return ()

    def move(self, state: State, words: list[str]) -> Moved[State]:
        if len(words) == 2 and words[0] == "answer" and number(words[1]) is not None:
            won = str(number(words[1])) == self.result
            return Moved(state, WON if won else LOST, True, True, float(won))
        if len(words) != 3 or words[1] not in SIGNS:
            return nothing(state)
        a, b = number(words[0]), number(words[2])
        if a is None or b is None:
            return nothing(state)
        n = SIGNS[words[1]](a, b)
        fits = 0 <= n <= LARGEST
        called = (Called("calculator", " ".join(words), ok=fits),)
        if not fits:
            return Moved(state, "too small" if n < 0 else "too large", tools=called)
        return Moved((*state, str(n)), f"= {n}", tools=called)

    def view(self, state: State) -> str:
        return f"= {state[-1]}" if state else "ready"

    def key(self, state: State) -> str:
        return " ".join(state)

    def choices(self, state: State) -> Sequence[str]:
        numbers = [str(n) for n in self.terms[::2]] + list(state)
        return [*(f"{a} {s} {b}" for a in numbers for s in SIGNS for b in numbers), *(f"answer {n}" for n in numbers)]

    def best(self, state: State) -> str:
        wanted_now = results(self.terms)
        done = 0  # operations whose results have come in order
        for said in state:
            if done < len(wanted_now) and said == str(wanted_now[done]):
                done += 1
        if done == len(wanted_now):
            return f"answer {self.result}"
        left = self.terms[0] if done == 0 else wanted_now[done - 1]
        return f"{left} {self.terms[2 * done + 1]} {self.terms[2 * done + 2]}"


def results(terms: Sequence[Any]) -> list[int]:
    """What each operation gives, from left to right."""
    out, now = list[int](), int(terms[0])
    for sign, n in zip(terms[1::2], terms[2::2], strict=True):
        now = SIGNS[sign](now, int(n))
        out.append(now)
    return out or [now]
