"""What a text answers, and which answers mean the same: for votes, clusters and the entropy of a group.

A scorer may say so itself: a method `answer(task, text)` of its class returns the answer, "" for none, and
`same(a, b)` whether two of them mean the same. A function says it with `@answered_by(find)`. Who says nothing is asked
by `extract.answer_of`. Light to import: it runs in the worker process of the scorer.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gruppo.tasks.extract import answer_of

F = TypeVar("F", bound=Callable[..., Any])


def answered_by(find: Callable[[Any, str], str]) -> Callable[[F], F]:
    """Marks a scorer that is a function with the way to find the answer that it judges."""

    def mark(score: F) -> F:
        score.answer = find  # type: ignore[attr-defined]
        return score

    return mark


def answer(scorer: Any, task: Any, text: str) -> str:
    """The answer in a text, as the scorer reads it; "" for none. Runs of spaces count as one."""
    find = getattr(scorer, "answer", None) or getattr(getattr(scorer, "func", None), "answer", None)
    return answer_of(text) if find is None else " ".join(str(find(task, text)).split())


def answers(scorer: Any, group: Sequence[tuple[Any, str]]) -> list[str]:
    """The answers of a group; those that mean the same are written the same."""
    found = [answer(scorer, task, text) for task, text in group]
    return merged(found, scorer.same) if hasattr(scorer, "same") else found


def merged(found: Sequence[str], same: Callable[[str, str], bool]) -> list[str]:
    """Each answer as the first that means the same, the shortest first; the order of the group does not matter.

    An answer joins the first class whose first member it equals: a relation that is not transitive is cut there. What
    cannot be compared is not the same.
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
