"""`kill -9` while episodes of earlier steps go on (`turns_a_step`), then resume: not a bit may differ."""

import json
from pathlib import Path

import pytest
from train_runs import SMALL, checkpoint, gruppo, metrics, same_run, saved, straight
from warm import begin, environment

from gruppo.data import Status
from gruppo.data.store import load_episodes

# Kills itself in a step from KILL_IN on, as soon as an episode that an earlier step left open has played a turn more.
KILLED_GOING_ON = """
import json, os, signal
from pathlib import Path
from gruppo.stages.dialogue import Dialogue
from gruppo.stages.play import Further
paid = Dialogue._paid
def turn(self, *given):
    seen = paid(self, *given)
    if self.ctx.step + 1 >= int(os.environ["KILL_IN"]) and isinstance(self.start, Further):
        told = {"step": self.ctx.step + 1, "turns": len(self.grown.turns), "began": self.start.episode.step + 1}
        Path("killed.json").write_text(json.dumps(told))
        os.kill(os.getpid(), signal.SIGKILL)
    return seen
Dialogue._paid = turn
from gruppo.cli import main
raise SystemExit(main())
"""
AGENTS = {  # a world, and the turns of a step there
    "gigpo": ("household", 3),
    "spear": ("household", 3),
    "spiral": ("kuhn", 1),
    "archer": ("guess", 2),
}
FEW = tuple(f"method.update.{s}" for s in ("critic_epochs=2", "utterances=8", "warmup=2"))  # optimiser steps a step


def killed_and_resumed(method: str, steps: int, *settings: str) -> str:
    """A run, killed after the checkpoint in its middle and resumed, is the run that nothing stopped; says how."""
    half, (task, turns) = steps // 2, AGENTS[method]
    settings += (f"task={task}", f"turns_a_step={turns}", f"method={method}", f"steps={steps}")
    settings += (f"save.checkpoint_every={half}", *(FEW if method == "archer" else ()))
    process = begin(
        "train", *SMALL, *settings, "save.name=b", env=environment(KILL_IN=str(half + 1)), code=KILLED_GOING_ON
    )
    assert process.wait(1000) == -9, Path("said.txt").read_text()
    told = json.loads(Path("killed.json").read_text())
    assert saved("b") == [f"step-{half:06d}"] and told["step"] > half >= told["began"]
    waiting = load_episodes(checkpoint("b", half) / "open.arrow")
    left = [len(e.turns) for e in waiting if e.status == Status.OPEN]
    assert left and gruppo("train", "--resume", "runs/b") == 0
    straight(*settings)
    rows = metrics("a")
    assert len(rows) == steps + 1 and any("grad_norm" in row for row in rows[half + 1 :])  # it learned from them
    same_run("a", "b", keep=2)
    return (
        f"{method}: {len(left)} episodes of {task} open at step {half} ({min(left)} to {max(left)} turns), "
        f"{len(waiting) - len(left)} waiting for them; killed in step {told['step']}, in turn {told['turns']} of an "
        f"episode of step {told['began']}; no bit differs"
    )


TINY = ("prompts=2", "samples=2", "eval.prompts=2", "eval.every=0", "save.episodes_every=2")


@pytest.mark.parametrize("method", AGENTS)
def test_four_steps_are_two_killed_with_open_episodes_and_two_more(method: str) -> None:
    killed_and_resumed(method, 4, *TINY)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # on a loaded machine
@pytest.mark.parametrize("method", AGENTS)
def test_forty_steps_are_twenty_killed_with_open_episodes_and_twenty_more(method: str) -> None:
    print(killed_and_resumed(method, 40, "eval.every=20", "eval.prompts=2"))
