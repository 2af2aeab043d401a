"""Addition: the answer to `57+68=` is `125`. The level is the number of digits of both numbers (1 to 4).

Two numbers in the other order are the same problem.
"""

from math import isqrt

from gruppo.tasks.answers import answered_by
from gruppo.tasks.base import Family, Task, answer_in, beginnings


def _least(level: int) -> int:
    return 0 if level == 1 else 10 ** (level - 1)


def count(level: int) -> int:
    """Unordered pairs of numbers with `level` digits."""
    n = 10**level - _least(level)
    return n * (n + 1) // 2


def make(level: int, rank: int, pick: int) -> Task:
    high = (isqrt(8 * rank + 1) - 1) // 2  # rank = high (high + 1) / 2 + low
    low = rank - high * (high + 1) // 2
    low, high = low + _least(level), high + _least(level)
    a, b = (low, high) if pick & 1 else (high, low)
    return Task(
        uid=f"addition/{level}/{low}+{high}",
        prompt=f"{a}+{b}=",
        answer=str(a + b),
        level=level,
        source="addition",
        solution=_solution(a, b),
        meta={"a": a, "b": b, "hints": beginnings(str(a + b))},
    )


def _solution(a: int, b: int) -> str:
    """Digit by digit from the right, as at school."""
    lines, carry = [], 0
    width = len(str(max(a, b)))
    for x, y in zip(str(a).zfill(width)[::-1], str(b).zfill(width)[::-1], strict=True):
        total = int(x) + int(y) + carry
        lines.append(f"{x}+{y}{'+1' if carry else ''}={total}")
        carry = total // 10
    return "\n".join([*lines, str(a + b)])


@answered_by(answer_in)
def score(task: Task, text: str) -> float:
    """1 if the text is the sum, alone or after steps of the solution (spaces around it are ignored)."""
    return float(answer_in(task, text).strip() == task.answer)


FAMILY = Family(
    name="addition",
    count=count,
    make=make,
    scorer="gruppo.tasks.addition:score",
    max_tokens={1: 4, 2: 6, 3: 8, 4: 8},
    default=2,
)
