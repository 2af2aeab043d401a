"""The answer in a text, and which answers are equivalent: for votes, clusters and the entropy of a group.

A scorer may define both: a method `answer(task, text)` returns the answer, "" for none, and `same(a, b)` whether two
answers are equivalent. A function has `@answered_by(find)`. For other scorers, `extract.answer_of` finds the answer.
Light to import, because it runs in the scorer's worker.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gruppo.tasks.extract import answer_of

F = TypeVar("F", bound=Callable[..., Any])


def answered_by(find: Callable[[Any, str], str]) -> Callable[[F], F]:
    """Gives a scorer that is a function the way to find the answer in a text."""

    def mark(score: F) -> F:
        score.answer = find  # type: ignore[attr-defined]
        return score

    return mark


def answer(scorer: Any, task: Any, text: str) -> str:
    """The answer in a text, as the scorer reads it; "" for none. Runs of spaces count as one."""
    find = getattr(scorer, "answer", None) or getattr(getattr(scorer, "func", None), "answer", None)
    return answer_of(text) if find is None else " ".join(str(find(task, text)).split())


def answers(scorer: Any, group: Sequence[tuple[Any, str]]) -> list[str]:
    """The answers of a group; equivalent ones are written the same."""
    found = [answer(scorer, task, text) for task, text in group]
    return merged(found, scorer.same) if hasattr(scorer, "same") else found


def merged(found: Sequence[str], same: Callable[[str, str], bool]) -> list[str]:
    """Each answer replaced by the shortest one that is equivalent, whatever the order of the group.

    An answer joins the first class whose first member is equivalent, also if the relation is not transitive. Answers
    that cannot be compared are different.
    """
    home = {"": ""}
    for one in sorted(set(found) - {""}, key=lambda a: (len(a), a)):
        home[one] = next((a for a in dict.fromkeys(home.values()) if a and _same(same, a, one)), one)
    return [home[a] for a in found]


def _same(same: Callable[[str, str], bool], a: str, b: str) -> bool:
    try:
        return bool(same(a, b))
    except Exception:
        return False
