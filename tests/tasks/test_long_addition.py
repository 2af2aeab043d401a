"""Addition beyond what the shipped weights have learned: scored and hinted as addition is."""

import pytest

from gruppo.tasks import load_object, load_task

PATH = "gruppo.tasks.long_addition:FAMILY"


@pytest.mark.parametrize("level", [5, 6])
def test_problems_are_sums_with_hints(level: int) -> None:
    tasks = load_task(PATH, level=level)
    score = load_object(str(tasks.scorer))
    for task in (*tasks.train[:50], *tasks.held_out[:20]):
        a, b = task.meta["a"], task.meta["b"]
        assert len(str(a)) == len(str(b)) == level and task.answer == str(a + b)
        assert task.domain == f"long_addition/{level}" and len(task.answer) < tasks.max_tokens
        assert score(task, task.answer) == score(task, task.solution) == 1.0
        assert score(task, task.answer[::-1] + "0") == 0.0
        assert len(task.hints) == len(task.answer) - 1 and all(task.answer.startswith(h) for h in task.hints)
    assert not {t.uid for t in tasks.train[:2000]} & {t.uid for t in tasks.held_out}
