"""Arms of several stages: "sft samples=1 steps=30 then grpo steps=30".

A stage is a run of its own. It begins from the policy that the one before it has saved, with the same seed and tasks;
the optimiser, critics and whatever a method remembers begin anew, and a reference policy is the policy it begins from.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gruppo.cli import overrides
from gruppo.lab.compare.compare import Result
from gruppo.stages import Method
from gruppo.train.config import RunConfig, usual
from gruppo.train.saved import place

Resolved = Callable[[Sequence[str]], RunConfig]  # the run that settings describe

THEN = "then"
GIVEN = ("model", "model.name", "model.sharpen")  # of a later stage: what the one before it has left


def stages_of(text: str) -> list[list[str]]:
    """The words of each stage, a method and its settings."""
    out: list[list[str]] = [[]]
    for word in shlex.split(text):
        out.append([]) if word == THEN else out[-1].append(word)
    return out


def refuse_wrong_stages(text: str, stages: Sequence[Sequence[str]]) -> None:
    """Each stage says how long it is, and only the first one from which model it begins."""
    for number, words in enumerate(stages, 1):
        set_here = {overrides.parsed(word).path: word for word in words[1:]}
        said = f"{text!r}: stage {number}"
        if not words:
            raise ValueError(f"{said} is empty, so nothing was started. Write METHOD SETTINGS then METHOD SETTINGS.")
        if "steps" not in set_here:
            raise ValueError(
                f"{said}, {words[0]}, does not say its steps: those of all runs would be made in each stage, and the "
                "entrant would have more than the others. Give it steps=N."
            )
        for path in GIVEN if number > 1 else ():
            if path in set_here:
                raise ValueError(
                    f"{said}, {words[0]}, begins from the policy of stage {number - 1}, and {set_here[path]} would "
                    "throw that away. Take it out, or set it in the first stage."
                )


def refuse_other_writers(text: str, method: Method) -> None:
    """Of a stage that another one follows: what other roles than the policy have learned would be lost."""
    others = sorted(set(method.writers.values()) - {"policy"})
    if others:
        raise ValueError(
            f"{text!r}: {method.name} also trains {', '.join(others)}, and the next stage begins from the policy "
            "alone. Use it in the last stage only, or a method with one writer."
        )


def going_on(before: Path, own: Sequence[str], first: Sequence[str], resolved: Resolved) -> tuple[str, ...]:
    """The settings of a stage that begins from the policy of a run before it. `own` are those that hold for the stage,
    `first` those of the first stage; `resolved` adds the run file and what is usual.

    The usual settings of a world are for runs that name no model, and a later stage names one. So it says those that
    it would have with the model of the first stage.
    """
    words = (*own, f"model.name={place(before, 'policy')}", "model.sharpen=1")
    models = [word for word in first if overrides.parsed(word).path in GIVEN[:2]]
    wanted, found = resolved((*own, *models)), resolved(words)
    ahead: list[str] = []
    for path, value in usual(wanted.task.name).items():
        if path not in GIVEN and overrides.value_at(path, wanted) != overrides.value_at(path, found):
            ahead.append(f"{path}={value}")
    return (*ahead, *words)


def counted_on(before: Sequence[Result], last: Result) -> Result:
    """The result of an arm: what the last stage has measured, its steps counted on. Of the stages before it count the
    steps, the seconds and the sampled tokens."""
    rows, steps = [], 0
    for stage in before:
        rows += [{"step": steps + r["step"], "sampled": r["sampled"]} for r in stage.rows if "sampled" in r]
        steps += stage.rows[-1]["step"]
    rows += [{**r, "step": steps + r["step"]} for r in last.rows]
    return replace(last, rows=rows, seconds=last.seconds + sum(stage.seconds for stage in before))
