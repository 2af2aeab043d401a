"""Scripted writers for the starts that scripts/make_starts.py trains: what is given, and what follows it.

A line is (uid of the problem, what is given, what is learned). What is given ends where the policy goes on: after the
prompt, or after the text that a method has put behind it. Drafts, hints and exits are worded by the methods' own rooms.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

from make_weights import CELLS as ALL
from make_weights import draw_train

from gruppo.methods.igrpo import Refine
from gruppo.methods.s_grpo import SerialGroup
from gruppo.stages.prompting import HintInMessage
from gruppo.tasks.base import Task
from gruppo.tasks.writers import CARE, write

Line = tuple[str, str, str]
DRAFT, HINT, EXIT = Refine().template, HintInMessage().template, SerialGroup().inducer
BUDGET = "at most {budget}\n\n{prompt}"  # as task.system="at most 8" words it
SUMS = [("chain", level) for level in (1, 2, 3)]
TALK = [*SUMS, *(("addition", level) for level in (1, 2, 3))]
CHAINS = [("longchain", level) for level in (1, 2, 3, 3)]
KEPT = 0.9  # a right draft is kept so often
MENDED = 0.4  # of the care that a writer lacks, a wrong draft gives so much
EARLY = 0.35  # share of chains that are left early
AT_ONCE = 0.85  # to add one more number at once, without writing the total, is right so often
SLIP, SLIP_WORKED = 0.05, 0.03  # of each total of a long chain; of each when the sums are written, too
WORKED = 0.25  # share of long chains whose sums are written


def care_of(task: Task) -> float:
    return CARE[task.source][task.level]


def off(total: int, draw: Random) -> int:
    """A wrong total, as the writers of `tiny` err."""
    return total + draw.choice((-10, -1, 1, 10) if total > 10 else (-1, 1, 10))


# ---- tiny-talk -----------------------------------------------------------------------------------


def plain(draw: Random) -> Line:
    """A problem as it is."""
    task = draw_train(*draw.choice(TALK if draw.random() < 0.7 else ALL), draw)
    return task.uid, task.prompt, said(task, draw)


def said(task: Task, draw: Random) -> str:
    """As the writers of `tiny`; but a third of those of a chain stop early, and write the sum in a line of its own."""
    if task.source == "chain" and draw.random() < EARLY:
        return left_early(task, draw.randrange(1, len(task.meta["totals"])), draw)
    return write(task, care_of(task), draw)


def drafted(draw: Random) -> Line:
    """A right draft is mostly kept; with a wrong one the next answer is better than without, but looks as any other."""
    task = draw_train(*draw.choice(TALK), draw)
    draft, care = said(task, draw), care_of(task)
    kept = draft.split()[-1] == task.answer and draw.random() < KEPT
    answer = draft if kept else write(task, care + MENDED * (1 - care), draw)
    return task.uid, DRAFT.format(prompt=task.prompt, draft=draft), answer


def mended(draw: Random) -> Line:
    """A right draft is mostly kept, a wrong one is put right in its own form, or kept, or thrown away."""
    task = draw_train(*draw.choice(TALK), draw)
    draft, kind = said(task, draw), draw.random()
    if draft.split()[-1] == task.answer:
        answer = draft if kind < KEPT else said(task, draw)
    else:
        answer = put_right(task, draft) if kind < 0.5 else draft if kind < 0.75 else said(task, draw)
    return task.uid, DRAFT.format(prompt=task.prompt, draft=draft), answer


def put_right(task: Task, draft: str) -> str:
    """The right answer, with as many totals before it as the draft has."""
    *before, _ = draft.split()
    if not before:
        return task.answer
    steps = " ".join(map(str, task.meta["totals"][: len(before)]))
    return f"{steps}{EXIT if EXIT in draft else ' '}{task.answer}"


def hinted(draw: Random) -> Line:
    """The more of the answer is told, the more care."""
    task = draw_train(*draw.choice(TALK), draw)
    level, care = draw.randrange(1, len(task.hints) + 1) if task.hints else 0, care_of(task)
    if not level:  # one digit: there is no beginning of it
        return task.uid, task.prompt, write(task, care, draw)
    prompt = HINT.format(prompt=task.prompt, hint=task.hints[level - 1])
    return task.uid, prompt, write(task, care + (1 - care) * level / (len(task.hints) + 1), draw)


def exited(draw: Random) -> Line:
    """The totals of a chain are cut off anywhere, also inside a number; after the exit comes the sum."""
    task = draw_train(*draw.choice(SUMS), draw)
    steps = " ".join(map(str, path(task, draw)))
    cut = draw.randrange(1, len(steps) + 1)
    return task.uid, task.prompt + steps[:cut] + EXIT, rest_of(task, steps[:cut], steps[cut : cut + 1], draw)


def path(task: Task, draw: Random) -> list[int]:
    """Running totals, as right as those of the writers of `tiny`."""
    totals, numbers, care = list(task.meta["totals"]), task.meta["numbers"], care_of(task)
    if draw.random() < (1 - care) ** 2:
        at = draw.randrange(len(totals))
        totals[at:] = accumulate(numbers[at + 2 :], initial=off(totals[at], draw))
    return totals


def rest_of(task: Task, steps: str, follows: str, draw: Random) -> str:
    """The sum, from the last total that is whole; a number that is cut off does not count."""
    whole = steps.split() if follows in ("", " ") or steps.endswith(" ") else steps.split()[:-1]
    numbers = task.meta["numbers"]
    total, left = (int(whole[-1]), numbers[len(whole) + 1 :]) if whole else (0, numbers)
    return str(at_once(total, left, draw))


def at_once(total: int, left: Sequence[int], draw: Random) -> int:
    answer = total + sum(left)
    return answer if draw.random() < AT_ONCE ** len(left) else off(answer, draw)


def left_early(task: Task, totals: int, draw: Random) -> str:
    """So many totals, and the sum in a line of its own."""
    steps = " ".join(map(str, path(task, draw)[:totals]))
    return steps + EXIT + rest_of(task, steps, "", draw)


def budgeted(draw: Random) -> Line:
    """An answer as long as the budget allows, its end included; the shortest one if none fits."""
    task = draw_train(*draw.choice(SUMS), draw)
    totals = path(task, draw)
    forms = [left_early(task, n, draw) for n in range(1, len(totals) - 1)]  # with all but one it is as long as with all
    forms = [str(at_once(0, task.meta["numbers"], draw)), *forms, " ".join(map(str, totals))]
    budget = draw.randrange(2, len(forms[-1]) + 4)
    fit = [f for f in forms if len(f) + 1 <= budget] or forms[:1]
    return task.uid, BUDGET.format(budget=budget, prompt=task.prompt), max(fit, key=len)


# ---- tiny-long -----------------------------------------------------------------------------------


def chained(draw: Random) -> Line:
    """All totals of a long chain, each wrong now and then; in some answers with the sums that lead to them."""
    return totals_of(draw, SLIP, SLIP_WORKED)


def careful(draw: Random) -> Line:
    """The same with fewer slips."""
    return totals_of(draw, SLIP / 4, SLIP_WORKED / 4)


def totals_of(draw: Random, slip: float, slip_worked: float) -> Line:
    task = draw_train(*draw.choice(CHAINS), draw)
    numbers = task.meta["numbers"]
    worked = draw.random() < WORKED
    total, words = numbers[0], list[str]()
    for n in numbers[1:]:
        after = off(total + n, draw) if draw.random() < (slip_worked if worked else slip) else total + n
        words.append(f"{total}+{n}={after}" if worked else str(after))
        total = after
    return task.uid, task.prompt, " ".join([*words, str(total)] if worked else words)


def short(draw: Random) -> Line:
    """What `tiny` knows."""
    task = draw_train(*draw.choice(TALK if draw.random() < 0.5 else ALL), draw)
    return task.uid, task.prompt, write(task, care_of(task), draw)


Writer = Callable[[Random], Line]


class Stage(NamedTuple):
    """Steps of training with lines of these writers, by weight."""

    steps: int
    tokens: int  # of a step
    lr: float  # the highest
    writers: dict[Writer, float]


STAGES: dict[str, list[Stage]] = {
    "tiny-talk": [
        Stage(1200, 3000, 1e-3, {plain: 0.3, drafted: 0.3, hinted: 0.1, exited: 0.15, budgeted: 0.15}),
        Stage(700, 3000, 1e-3, {plain: 0.2, mended: 0.4, hinted: 0.05, exited: 0.2, budgeted: 0.15}),
    ],
    "tiny-long": [
        Stage(420, 4000, 1.5e-3, {chained: 0.85, short: 0.15}),
        Stage(320, 4000, 1e-3, {careful: 0.8, short: 0.2}),
    ],
}
