"""Countdown: the answer to `16 from 3 5 8:` is `3+5+8`, `8+5+3`, `(5-3)*8` or any other expression of value 16.

The expression uses each number EXACTLY once, with + - * / and brackets. Levels 1 to 3 have two numbers (1 to 30),
three (1 to 12) and four (1 to 9); targets are 1 to 100. Every problem has a solution with + - * and positive integers
as intermediate results; the scorer also accepts division and computes exactly. Most problems have several right
answers, so this task shows what a method does to diversity.
"""

import re
from fractions import Fraction
from functools import cache, lru_cache
from itertools import combinations
from operator import add, mul, sub

from gruppo.tasks.answers import answered_by
from gruppo.tasks.base import Family, Task, answer_in, beginnings
from gruppo.tasks.numbering import arrange, multiset, multisets

NUMBERS = {1: (2, 30), 2: (3, 12), 3: (4, 9)}  # count, and the largest
TARGET = 100
_LOOSE, _TIGHT, _ATOM = 1, 2, 3  # how strongly the outermost operator of an expression binds

Numbers = tuple[int, ...]
Expression = tuple[str, int]


@lru_cache(maxsize=4)
def problems(level: int) -> list[tuple[Numbers, int]]:
    """All problems of a level: (ascending numbers, target). Level 3 takes half a second."""
    size, largest = NUMBERS[level]
    rows: list[tuple[Numbers, int]] = []
    for rank in range(multisets(largest, size)):
        numbers = tuple(v + 1 for v in multiset(rank, size))
        rows += [(numbers, target) for target in sorted(_values(numbers)) if target <= TARGET]
    return rows


def count(level: int) -> int:
    return len(problems(level))


def make(level: int, rank: int, pick: int) -> Task:
    numbers, target = problems(level)[rank]
    shown = arrange(numbers, pick)
    right = answers(numbers, target)
    answer = right[pick % len(right)]
    return Task(
        uid=f"countdown/{level}/{','.join(map(str, numbers))}>{target}",
        prompt=f"{target} from {' '.join(map(str, shown))}:",
        answer=answer,
        level=level,
        source="countdown",
        solution="\n".join([*_steps(answer), answer]),
        meta={"numbers": shown, "target": target, "hints": beginnings(tokens(answer) or [])},
    )


# ---- all right answers ---------------------------------------------------------------------------


@cache  # a few thousand multisets of at most four numbers
def _parts(numbers: Numbers) -> tuple[tuple[Numbers, Numbers], ...]:
    """The different ways to split the numbers into two non-empty parts, in both orders."""
    positions = range(len(numbers))
    cuts = {}
    for size in range(1, len(numbers)):
        for chosen in combinations(positions, size):
            left = tuple(numbers[i] for i in chosen)
            right = tuple(numbers[i] for i in positions if i not in chosen)
            cuts[left, right] = None
    return tuple(cuts)


def _combine(a: int, b: int) -> tuple[tuple[str, int], ...]:
    pairs = (("+", a + b), ("*", a * b))
    return (*pairs, ("-", a - b)) if a > b else pairs


@cache
def _values(numbers: Numbers) -> frozenset[int]:
    """The values of all expressions with + - * that use each number once and have positive intermediate results."""
    if len(numbers) == 1:
        return frozenset(numbers)
    return frozenset(
        value
        for left, right in _parts(numbers)
        for a in _values(left)
        for b in _values(right)
        for _, value in _combine(a, b)
    )


def _join(left: Expression, op: str, right: Expression) -> Expression:
    """Two expressions and an operator, with as few brackets as possible."""
    binds = _TIGHT if op == "*" else _LOOSE
    bracket_right = right[1] < binds or (op == "-" and right[1] == _LOOSE)
    a = f"({left[0]})" if left[1] < binds else left[0]
    b = f"({right[0]})" if bracket_right else right[0]
    return f"{a}{op}{b}", binds


@lru_cache(maxsize=65536)
def _expressions(numbers: Numbers, target: int) -> tuple[Expression, ...]:
    if len(numbers) == 1:
        return ((str(target), _ATOM),) if numbers[0] == target else ()
    found: dict[Expression, None] = {}
    for left, right in _parts(numbers):
        for a in sorted(_values(left)):
            for b in sorted(_values(right)):
                for op, value in _combine(a, b):
                    if value == target:
                        for x in _expressions(left, a):
                            found.update((_join(x, op, y), None) for y in _expressions(right, b))
    return tuple(found)


@lru_cache(maxsize=65536)
def answers(numbers: Numbers, target: int) -> tuple[str, ...]:
    """All right answers with + - *, shortest first, without redundant brackets."""
    texts = {text for text, _ in _expressions(tuple(sorted(numbers)), target)}
    return tuple(sorted(texts, key=lambda t: (len(t), t)))


def _steps(expression: str) -> list[str]:
    """The expression computed one operator at a time: `(5-3)*8` gives `5-3=2`, `2*8=16`."""
    lines: list[str] = []
    evaluate(tokens(expression) or [], lines)
    return lines


# ---- the scorer ----------------------------------------------------------------------------------

_TOKEN = re.compile(r"\s*([0-9]{1,6}|[-+*/()])")
_RANK = {"+": 1, "-": 1, "*": 2, "/": 2}
_APPLY = {"+": add, "-": sub, "*": mul, "/": Fraction}
_MAX_CHARS = 400


def tokens(text: str) -> list[str] | None:
    """The expression as numbers, operators and brackets; None if it has anything else."""
    text = text.strip()
    if len(text) > _MAX_CHARS:
        return None
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            return None
        found.append(match[1])
        at = match.end()
    return found


def evaluate(found: list[str], steps: list[str] | None = None) -> Fraction | int | None:
    """The exact value of an infix expression (two stacks, no recursion, no eval); None if it is invalid."""
    values: list[Fraction | int] = []
    waiting: list[str] = []
    operand_next = True
    for token in found:
        if token.isdecimal() != operand_next and token not in "()":
            return None
        if token.isdecimal():
            values.append(int(token))
            operand_next = False
        elif token == "(":
            if not operand_next:
                return None
            waiting.append(token)
        elif token == ")":
            if operand_next or not _reduce(values, waiting, 1, steps) or not waiting:
                return None
            waiting.pop()
        else:
            if not _reduce(values, waiting, _RANK[token], steps):
                return None
            waiting.append(token)
            operand_next = True
    if operand_next or not _reduce(values, waiting, 1, steps) or waiting:
        return None
    return values[0]


def _reduce(values: list[Fraction | int], waiting: list[str], rank: int, steps: list[str] | None) -> bool:
    """Applies the waiting operators that bind at least as strongly, back to the last open bracket."""
    while waiting and waiting[-1] != "(" and _RANK[waiting[-1]] >= rank:
        op, b, a = waiting.pop(), values.pop(), values.pop()
        if op == "/" and b == 0:
            return False
        values.append(_APPLY[op](a, b))
        if steps is not None:
            steps.append(f"{a}{op}{b}={values[-1]}")
    return True


@answered_by(lambda task, text: "".join(answer_in(task, text).split()))
def score(task: Task, text: str) -> float:
    """1 if the text is one expression with the target's value that uses each number exactly once.

    Steps of the solution may come before it.
    """
    found = tokens(answer_in(task, text))
    if not found:
        return 0.0
    used = sorted(int(t) for t in found if t.isdecimal())
    if used != sorted(task.meta["numbers"]):
        return 0.0
    return float(evaluate(found) == task.meta["target"])


FAMILY = Family(
    name="countdown",
    count=count,
    make=make,
    scorer="gruppo.tasks.countdown:score",
    max_tokens={1: 8, 2: 14, 3: 16},
    default=1,
)
