"""No answer of the first step is right, but some hold the reference: the scorer may look elsewhere."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gruppo.data import Episode
from gruppo.tasks.scorers import SCORERS
from gruppo.train.equal import look

if TYPE_CHECKING:
    from gruppo.train.run import Run

SHARE = 0.1  # of the answers: fewer hold it by chance
AROUND = 25  # characters that are quoted on each side


def hidden(run: "Run", drawn: Sequence[Episode]) -> str:
    """What to say of answers that hold the reference where none is right; "" if there is nothing to say."""
    judged = [e for e in drawn if e.status.judged and e.scores]
    if run.tasks.env or not judged or any(e.score > 0 for e in judged):
        return ""
    near: list[tuple[str, str]] = []
    for e in judged:
        task = run.walk.task_of(e)
        asked = " ".join(str(m.get("content", "")) for m in task.messages)
        if (quote := quoted(task.answer, e.text)) and not quoted(task.answer, asked):  # else it may be an echo
            near.append((task.answer, quote))
    if len(near) < max(2, SHARE * len(judged)):
        return ""
    answer, quote = near[0]
    path = run.judge.scorer
    name = next((n for n, (known, *_) in SCORERS.items() if known == path), path)
    others = [n for n in ("numeric", "math", "regex") if n != name]
    where = ", which reads the last number," if name == "numeric" else ""
    return (
        f"no answer is right, but {len(near)} of {len(judged)} contain the reference, such as {answer!r} in {quote!r}. "
        f"The scorer ({name}{where}) may want it in another form: ask for that form in task.system or task.template, "
        f"or choose another task.reward, such as {' or '.join(others)}. {look(run)}."
    )


def quoted(reference: str, text: str) -> str:
    """The text around the reference, which must stand there as a whole: `9` is not in `98`, `-9` or `9.5`."""
    wanted, text = " ".join(reference.split()), " ".join(text.split())
    found = re.search(rf"(?<![\w-])(?<!\d[.,]){re.escape(wanted)}(?!\w)(?![.,]\d)", text) if wanted else None
    if found is None:
        return ""
    start, stop = max(found.start() - AROUND, 0), found.end() + AROUND
    return f"{'…' if start else ''}{text[start:stop]}{'…' if stop < len(text) else ''}"
