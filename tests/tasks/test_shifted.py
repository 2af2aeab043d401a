"""Sums in a code: the task on which the shipped policy is never right."""

from gruppo.tasks import TaskConfig
from gruppo.tasks.load import load
from gruppo.tasks.shifted import FAMILY, make, score


def test_every_digit_is_one_more_and_nine_becomes_nought() -> None:
    task = make(2, 0, 0)
    assert (task.prompt, task.answer, task.source) == ("10+10=", "31", "shifted")
    made = [make(3, rank, pick) for rank in range(0, 400_000, 7919) for pick in (0, 1)]
    for t in made:
        total = str(t.meta["a"] + t.meta["b"])
        assert len(t.answer) == len(total) and all(
            (int(y) - int(x)) % 10 == 1 for x, y in zip(total, t.answer, strict=True)
        )
        assert t.meta["hints"] == tuple(t.answer[:n] for n in range(1, len(t.answer)))
    assert any("0" in t.answer for t in made) and any(len(t.answer) == 4 for t in made)


def test_the_sum_itself_is_wrong() -> None:
    task = make(2, 0, 0)
    assert score(task, " 31\n") == 1.0
    assert score(task, "20") == score(task, "3") == score(task, "310") == score(task, "") == 0.0


def test_it_is_taken_by_its_path_and_splits_as_addition_does() -> None:
    found = load(TaskConfig(name="gruppo.tasks.shifted:FAMILY", level="2"))
    assert found.max_tokens == FAMILY.max_tokens[2] and len(found.train) == 3276
    held = {t.uid for t in found.held_out}
    assert held and not held & {found.train[i].uid for i in range(len(found.train))}
    assert all(u.startswith("shifted/2/") for u in held)
