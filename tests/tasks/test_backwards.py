"""Addition with the sum written backwards: scored and hinted by what is written, held out as addition is."""

import pytest

from gruppo.tasks import load_object, load_task
from gruppo.tasks.backwards import FAMILY

PATH = "gruppo.tasks.backwards:FAMILY"


@pytest.mark.parametrize("level", FAMILY.levels)
def test_answers_and_hints(level: int) -> None:
    tasks = load_task(PATH, level=level)
    score = load_object(str(tasks.scorer))
    for task in (*tasks.train[:50], *tasks.held_out[:20]):
        total = str(task.meta["a"] + task.meta["b"])
        assert task.answer == total[::-1] and task.domain == f"backwards/{level}" and len(total) < tasks.max_tokens
        assert score(task, task.answer) == score(task, task.solution) == 1.0
        assert score(task, total) == float(total == total[::-1])
        assert len(task.hints) == len(total) - 1 and all(task.answer.startswith(h) for h in task.hints)


def test_what_addition_holds_out_is_held_out() -> None:
    ours, theirs = ({(t.meta["a"], t.meta["b"]) for t in load_task(n, level=2).held_out} for n in (PATH, "addition"))
    both = {tuple(sorted(x)) for x in ours} & {tuple(sorted(x)) for x in theirs}
    train = {tuple(sorted((t.meta["a"], t.meta["b"]))) for t in load_task("addition", level=2).train}
    assert both and not {tuple(sorted(x)) for x in ours} & train
