"""Rewards that show differences between methods, based on the scorers of the built-in tasks and their mixtures.

    task.reward=gruppo.tasks.claims:noisy task.args.flip=0.2

Held-out answers are judged by the same function; each docstring says how that changes the accuracy. Random parts depend
on the task and the text only, so an answer always has the same reward.
"""

from collections.abc import Callable
from functools import lru_cache

from gruppo.tasks import NAMES, family
from gruppo.tasks.answers import answer, answered_by
from gruppo.tasks.base import Task
from gruppo.tasks.imports import load_object
from gruppo.tasks.numbering import hash64


@lru_cache
def _scorer(source: str) -> Callable[[Task, str], float]:
    if source not in NAMES:
        raise ValueError(
            f"this reward is based on the scorer of a built-in task, and {source!r} is none. Use "
            f"task={', '.join(NAMES)} or a mixture of them."
        )
    return load_object(family(source).scorer)


def _answer(task: Task, text: str) -> str:
    return answer(_scorer(task.source), task, text)


def _chance(name: str, task: Task, text: str) -> float:
    """A random number in [0, 1), always the same for an answer."""
    return hash64("claims", name, task.uid, text) / 2**64


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"task.args.{name}={value}: no share of the answers. Use a number from 0 to 1.")


@answered_by(_answer)
def scaled(task: Task, text: str, weight: float = 10.0) -> dict[str, float]:
    """Two conflicting rewards on different scales: `task`, and `length` = −weight for each character.

    The accuracy is that of the task.
    """
    return {"task": float(_scorer(task.source)(task, text)), "length": -weight * len(text)}


@answered_by(_answer)
def noisy(task: Task, text: str, flip: float = 0.1) -> float:
    """The task's score a, or 1 − a for a share `flip` of all answers: accuracy a is measured as a + flip (1 − 2a)."""
    _share("flip", flip)
    score = float(_scorer(task.source)(task, text))
    return 1.0 - score if _chance("noisy", task, text) < flip else score


@answered_by(_answer)
def heavy(task: Task, text: str, share: float = 0.05, factor: float = 50.0) -> dict[str, float]:
    """The task's score a, plus (factor − 1) a as `extra` for a share of all answers: a heavy tail.

    The accuracy is that of the task.
    """
    _share("share", share)
    score = float(_scorer(task.source)(task, text))
    return {"task": score, "extra": (factor - 1.0) * score if _chance("heavy", task, text) < share else 0.0}


@answered_by(_answer)
def near(task: Task, text: str, within: int = 5) -> float:
    """1 for every integer within `within` of the right one: many answers that are equally right.

    The accuracy is that of this score.
    """
    if not task.answer.isdecimal():
        raise ValueError(f"{task.answer!r}, the answer of {task.uid}, is no number. Use task=addition.")
    said = _answer(task, text)
    return float(said.isdecimal() and len(said) < 20 and abs(int(said) - int(task.answer)) <= within)


@answered_by(_answer)
def outliers(task: Task, text: str, share: float = 0.1, size: float = 50.0) -> dict[str, float]:
    """The task's score, and as `extra` +size or −size at random, for a share of all answers, right or wrong.

    The accuracy is that of the task.
    """
    _share("share", share)
    sign = 1.0 if _chance("sign", task, text) < 0.5 else -1.0
    hit = _chance("outliers", task, text) < share
    return {"task": float(_scorer(task.source)(task, text)), "extra": sign * size if hit else 0.0}


@answered_by(_answer)
def early(task: Task, text: str, least: int = 2) -> float:
    """1 if the last word is a right total of the first `least` or more numbers of a chain.

    A long answer may stop after any of its totals, and is still right. The accuracy is that of this score.
    """
    if task.source != "chain" or not 2 <= least <= len(task.meta["numbers"]):
        raise ValueError(f"{task.uid} has no totals of {least} numbers or more. Use task=chain, and a smaller least.")
    return float(_answer(task, text) in map(str, task.meta["totals"][least - 2 :]))


@answered_by(_answer)
def partly(task: Task, text: str, share: float = 0.6) -> dict[str, float]:
    """The score of a chain, and as `early` a share of it for an answer that stops at one of its first totals.

    The accuracy is that of the task.
    """
    _share("share", share)
    if task.source != "chain":
        raise ValueError(f"{task.uid} has no totals, so that nothing is partly right. Use task=chain.")
    right = float(_scorer(task.source)(task, text))
    stopped = not right and _answer(task, text) in map(str, task.meta["totals"][:-1])
    return {"task": right, "early": share * stopped}
