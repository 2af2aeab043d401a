"""A run that is stopped by Ctrl-C, then by a crash in the middle of an update, and resumed each time."""

import signal
from collections.abc import Sequence
from typing import Any

import pytest
from train_runs import gruppo, same_run, saved, train

from gruppo.methods import all_methods
from gruppo.train import trainer
from gruppo.train.folder import RunFolder
from gruppo.train.learner import Learner

STEPS = ("steps=5", "save.checkpoint_every=2", "eval.every=2", "eval.prompts=4", "save.episodes_every=2")


class Crash(Exception):
    """Something that nobody foresaw."""


class Trouble:
    """What happens to the runs that follow, by the number of the step."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ctrl_c_at = self.crash_at = 0
        plain_step, plain_apply = trainer.train_step, Learner.apply

        async def train_step(run: Any, step: int) -> Any:
            if self.ctrl_c_at == step + 1:
                signal.raise_signal(signal.SIGINT)
            return await plain_step(run, step)

        def apply(learner: Learner, role: str, lr: float | None = None) -> None:
            plain_apply(learner, role, lr)
            if self.crash_at == learner.ctx.step + 1:
                raise Crash  # after an optimiser step: the weights are half-way

        patch.setattr(trainer, "train_step", train_step)
        patch.setattr(Learner, "apply", apply)
        patch.setattr(RunFolder, "draw_curves", lambda *_: None)


def stopped_crashed_and_resumed(name: str, patch: pytest.MonkeyPatch, settings: Sequence[str] = ()) -> None:
    """In the folder where we are, by the command line."""
    trouble = Trouble(patch)
    roles = [f"method.cast.{r}=tiny" for r, role in all_methods()[name].cast.items() if not role.start]  # a teacher
    assert train("a", f"method={name}", *roles, *STEPS, *settings) == 0
    trouble.ctrl_c_at = 1
    assert train("b", f"method={name}", *roles, *STEPS, *settings) == 0
    assert saved("b") == ["step-000001"]
    trouble.ctrl_c_at, trouble.crash_at = 0, 4
    with pytest.raises(Crash) as crash:
        gruppo("train", "--resume", "runs/b")
    assert "Step 2 is saved: go on with  gruppo train --resume runs/b" in crash.value.__notes__[0]
    trouble.crash_at = 0
    assert gruppo("train", "--resume", "runs/b") == 0
    same_run("a", "b", keep=2)
