"""Writers of limited accuracy: they answer a task, rightly or with a plausible error.

The shipped weights have learned from them (scripts/make_weights.py). A policy that imitates such writers can be right
but often is not, which is a good start for reinforcement learning. A writer is right with probability `care`; its
errors are always wrong by the task's own scorer.
"""

from collections.abc import Callable
from itertools import accumulate
from random import Random

from gruppo.tasks import addition, chain, countdown, sorting
from gruppo.tasks.base import Task

# How often the writers are right, by task and level: about 0.4 at the default level of a task. At the hardest levels,
# one specific error (no carry at all) is more frequent than the right answer.
CARE = {
    "addition": {1: 0.7, 2: 0.4, 3: 0.25, 4: 0.1},
    "chain": {1: 0.6, 2: 0.4, 3: 0.25, 4: 0.1},
    "countdown": {1: 0.4, 2: 0.25, 3: 0.1},
    "sorting": {1: 0.7, 2: 0.4, 3: 0.25, 4: 0.1},
}


def write(task: Task, care: float, draw: Random) -> str:
    """One answer to a built-in task, right with probability `care`."""
    if task.source == "chain":
        return _chain(task, care, draw)
    right, slip, score = _WRITERS[task.source]
    if draw.random() < care:
        return right(task, draw)
    while score(task, text := slip(task, draw)) != 0:
        pass  # an error may be right by chance: 2*2 for 2+2
    return text


def _same(task: Task, draw: Random) -> str:
    return task.answer


def _digit_off(text: str, draw: Random) -> str:
    """One digit of a number is too large or too small by one."""
    at = draw.randrange(len(text))
    digit = int(text[at]) + draw.choice((-1, 1))
    least = 1 if at == 0 and len(text) > 1 else 0
    return text[:at] + str(min(9, max(least, digit))) + text[at + 1 :]


def _neighbours_swapped(text: str, draw: Random) -> str:
    at = draw.randrange(len(text) - 1) if len(text) > 1 else 0
    swapped = text[:at] + text[at : at + 2][::-1] + text[at + 2 :]
    return text if swapped[0] == "0" else swapped


def _without_carry(a: int, b: int, draw: Random) -> int:
    """The sum with one carry forgotten, or with all of them."""
    columns, rest = [], 0
    for k in range(len(str(max(a, b)))):
        digits = a // 10**k % 10 + b // 10**k % 10 + rest
        rest = digits // 10
        if rest:
            columns.append(10 ** (k + 1))
    if columns and draw.random() < 0.5:
        return a + b - draw.choice(columns)
    forgotten = 0
    for k in range(len(str(max(a, b))) - 1):  # the last column is written in full: 57+68 becomes 115, not 15
        if a // 10**k % 10 + b // 10**k % 10 > 9:
            forgotten += 10 ** (k + 1)
    return a + b - forgotten


def _addition(task: Task, draw: Random) -> str:
    kind = draw.random()
    if kind < 0.5:
        return str(_without_carry(task.meta["a"], task.meta["b"], draw))
    return _digit_off(task.answer, draw) if kind < 0.85 else _neighbours_swapped(task.answer, draw)


def _sorting(task: Task, draw: Random) -> str:
    numbers, kind = task.answer.split(), draw.random()
    at = draw.randrange(len(numbers) - 1)
    if kind < 0.6:
        numbers[at : at + 2] = numbers[at : at + 2][::-1]
    elif kind < 0.85:
        numbers[at] = _digit_off(numbers[at], draw)
    else:
        del numbers[at]
    return " ".join(numbers)


def _countdown_right(task: Task, draw: Random) -> str:
    return draw.choice(countdown.answers(tuple(sorted(task.meta["numbers"])), task.meta["target"]))


def _countdown(task: Task, draw: Random) -> str:
    tokens = countdown.tokens(_countdown_right(task, draw)) or []
    numbers = [i for i, t in enumerate(tokens) if t.isdecimal()]
    kind = draw.random()
    if kind < 0.6:
        at = draw.choice([i for i, t in enumerate(tokens) if t in "+-*"])
        tokens[at] = draw.choice([op for op in "+-*" if op != tokens[at]])
    elif kind < 0.8:
        one, other = draw.sample(numbers, 2)
        tokens[one], tokens[other] = tokens[other], tokens[one]
    else:
        at = draw.choice(numbers)
        tokens[at] = _digit_off(tokens[at], draw)
    return "".join(tokens)


def _chain(task: Task, care: float, draw: Random) -> str:
    """Half of the writers write the running totals, and are right more often: 2c - c² instead of c²."""
    steps = draw.random() < 0.5
    right = draw.random() < (2 * care - care * care if steps else care * care)
    totals = list(task.meta["totals"])
    if not right:  # one step is wrong, and the others continue from it
        at = draw.randrange(len(totals))
        numbers = task.meta["numbers"]
        wrong = totals[at] + draw.choice((-10, -1, 1, 10) if totals[at] > 10 else (-1, 1, 10))
        totals[at:] = accumulate(numbers[at + 2 :], initial=wrong)
    return " ".join(map(str, totals if steps else totals[-1:]))


Writer = Callable[[Task, Random], str]
_WRITERS: dict[str, tuple[Writer, Writer, Callable[[Task, str], float]]] = {
    "addition": (_same, _addition, addition.score),
    "countdown": (_countdown_right, _countdown, countdown.score),
    "sorting": (_same, _sorting, sorting.score),
}
assert set(CARE) == {*_WRITERS, chain.FAMILY.name}
