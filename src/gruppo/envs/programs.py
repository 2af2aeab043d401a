"""The questions of the world `python`: how one is drawn and asked, a program for it, and its answer by other means."""

from collections.abc import Callable
from typing import Any, NamedTuple

from gruppo.envs.world import Draws, Facts


class Kind(NamedTuple):
    """`asks` and `program` have the facts in braces. The program is one line, so that every format can write it."""

    level: int
    asks: str
    program: str
    draw: Callable[[Draws], dict[str, Any]]
    value: Callable[[Facts], int]


def _numbers(least: int, most: int, largest: int) -> Callable[[Draws], dict[str, Any]]:
    return lambda d: {"x": [d.between(1, largest) for _ in range(d.between(least, most))], "n": d.between(2, largest)}


def _letters(least: int, most: int) -> Callable[[Draws], dict[str, Any]]:
    def draw(d: Draws) -> dict[str, Any]:
        text = "".join(d.pick("abcde") for _ in range(d.between(least, most)))
        return {"x": text, "n": d.pick(text)}

    return draw


def _runs(facts: Facts) -> int:
    return sum(a != b for a, b in zip(facts["x"], facts["x"][1:], strict=False)) + 1


def _primes(facts: Facts) -> int:
    sieve = set(range(2, facts["m"] + 1))
    for n in range(2, facts["m"] + 1):
        sieve -= set(range(2 * n, facts["m"] + 1, n))
    return sum(n >= facts["n"] for n in sieve)


def _after(facts: Facts) -> int:
    now = facts["s"]
    for _ in range(facts["n"]):
        now = (facts["a"] * now + facts["b"]) % facts["m"]
    return now


def _digits(facts: Facts) -> int:
    n, total = facts["n"] ** facts["m"], 0
    while n:
        n, last = divmod(n, 10)
        total += last
    return total


_SHORT, _LONG = _numbers(4, 7, 99), _numbers(8, 12, 99)
KINDS: dict[str, Kind] = {
    "sum": Kind(1, "what is the sum of {x}", "sum({x})", _SHORT, lambda f: sum(f["x"])),
    "range": Kind(
        1, "what is the largest minus the smallest of {x}", "max({x}) - min({x})", _SHORT,
        lambda f: sorted(f["x"])[-1] - sorted(f["x"])[0],
    ),
    "above": Kind(
        1, "how many of {x} are above {n}", "sum(a > {n} for a in {x})", _SHORT,
        lambda f: len([a for a in f["x"] if a > f["n"]]),
    ),
    "even": Kind(
        2, "what is the sum of the even numbers in {x}", "sum(a for a in {x} if a % 2 == 0)", _LONG,
        lambda f: sum(f["x"]) - sum(a for a in f["x"] if a % 2),
    ),
    "squares": Kind(
        2, "what is the sum of the squares of {x}", "sum(a * a for a in {x})", _LONG,
        lambda f: sum(a**2 for a in f["x"]),
    ),
    "letter": Kind(
        2, "how many letters of {x} are {n}", "'{x}'.count('{n}')", _letters(20, 40),
        lambda f: sum(c == f["n"] for c in f["x"]),
    ),
    "digits": Kind(
        3, "what is the sum of the digits of {n} to the power of {m}", "sum(map(int, str({n} ** {m})))",
        lambda d: {"n": d.between(2, 99), "m": d.between(5, 20)}, _digits,
    ),
    "runs": Kind(
        3, "how many runs of equal letters are in {x}", "sum(1 for _ in __import__('itertools').groupby('{x}'))",
        _letters(30, 60), _runs,
    ),
    "pairs": Kind(
        3, "how many pairs of numbers in {x} have a sum above {n}",
        "sum(a + b > {n} for a, b in __import__('itertools').combinations({x}, 2))", _LONG,
        lambda f: sum(a + b > f["n"] for i, a in enumerate(f["x"]) for b in f["x"][:i]),
    ),
    "primes": Kind(
        4, "how many primes are from {n} to {m}",
        "sum(all(n % d for d in range(2, n)) for n in range({n}, {m} + 1))",
        lambda d: {"n": (n := d.between(2, 400)), "m": n + d.between(50, 300)}, _primes,
    ),
    "after": Kind(
        4, "begin with {s} and take {a} times the number plus {b} modulo {m} instead what is it after {n} times",
        "__import__('functools').reduce(lambda x, _: ({a} * x + {b}) % {m}, range({n}), {s})",
        lambda d: {"s": d.between(1, 99), "a": d.between(2, 99), "b": d.between(1, 99), "m": d.between(101, 999),
                   "n": d.between(10, 99)}, _after,
    ),
}  # fmt: skip
