"""Why the rewards of a run are equal, and what helps: only what can apply to this run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gruppo.data import Episode, Status, Use
from gruppo.envs import BUILT_IN as WORLDS
from gruppo.stages.check import cut_off
from gruppo.stages.dialogue import OVERFLOW
from gruppo.tasks import BUILT_IN
from gruppo.tasks.imports import is_path
from gruppo.train.worlds import unread

if TYPE_CHECKING:
    from gruppo.train.run import Run

ENDS = 30  # characters that are shown of each end of a long answer


def why_equal(run: "Run", drawn: Sequence[Episode]) -> str:
    """Why rewards may be equal, and what helps."""
    mine = [e for e in drawn if e.use == Use.LEARN and e.status.judged]
    cut = [e for e in mine if e.status == Status.TRUNCATED and OVERFLOW not in e.notes]
    truncated = len(cut) / len(mine) if mine else 0.0
    answers = not run.tasks.env or (run.config.task.tools and all("truncated" in e.turns[-1].flags for e in cut))
    found = unread(run, drawn) or cut_off(truncated, run.sampling.max_tokens if answers else 0)
    return found or what_helps(run, mine)


def what_helps(run: "Run", judged: Sequence[Episode]) -> str:
    """Remedies where no cause is known."""
    task, levels = run.config.task, run.tasks.levels
    wrong = all(e.total <= 0 for e in judged)
    right = not wrong and len({e.total for e in judged}) == 1
    generated = task.name in {*BUILT_IN, *WORLDS} or task.name.startswith("gym:")
    ways = ["an easier"] if not right and min(levels) > 1 and (generated or len(levels) > 1) else []
    ways += [f"{'' if ways else 'a '}harder"] if not wrong and generated else []
    chosen = [
        *([f"{' or '.join(ways)} task.level"] if ways else []),
        *([] if run.sampling.temperature == 1 else ["sampling.temperature=1"]),
        f"more samples (samples={2 * run.config.samples})",
    ]
    said = f"Use {', '.join(chosen[:-1])} or {chosen[-1]}." if chosen[1:] else f"Use {chosen[0]}."
    if wrong and (task.reward or not generated):
        return f"{look(run)}: does the reward accept any of these answers? If it may, {_lower(said)}"
    if right and (is_path(task.reward) or ".py:" in task.name):
        return f"Does the reward look at the answer, or is it a constant? If it does look, {_lower(said)}"
    return said


def look(run: "Run") -> str:
    """How to see the answers of a step. Those that a warning is about are stored, unless no episodes are wanted."""
    if run.config.save.episodes_every:
        return f"Look at gruppo episodes {run.where}"
    return "Look at the answers, which save.episodes_every=1 stores"


def examples(run: "Run", drawn: Sequence[Episode]) -> str:
    """One or two answers that are not right, and what was wanted; "" in a world, whose episodes are no answers."""
    wrong = {e.text: e for e in drawn if e.use == Use.LEARN and e.status.judged and e.total < 1}
    if run.tasks.env or not wrong:
        return ""
    said = [_example(e, run.walk.task_of(e)) for e in list(wrong.values())[:2]]
    return f"{'Two of the answers' if said[1:] else 'One of the answers'}: {'; '.join(said)}."


def _example(e: Episode, task: Any) -> str:
    wanted = str(task.answer or task.solution or "")
    return (_quoted(e.text) if e.text.strip() else "an empty one") + (f", wanted {_quoted(wanted)}" if wanted else "")


def _quoted(text: str) -> str:
    """One line, cut in its middle: an answer may stand at either end."""
    text = " ".join(text.split())
    return repr(text if len(text) <= 2 * ENDS else f"{text[:ENDS]} … {text[-ENDS:]}")


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
