"""Pitfall 27, as it happens to people: `kill -9` in the middle of a step, then resume. Not a bit may differ."""

import json
import random
import time
from pathlib import Path

import pytest
from train_runs import (
    SLOW_REWARD,
    SLOWLY,
    SMALL,
    checkpoint,
    gruppo,
    kill,
    metrics,
    same_run,
    saved,
    start,
    straight,
    wait_for,
)

KILLED_WHILE_SAVING = """
import os, signal
from gruppo.train import checkpoint
count, plain = 0, checkpoint.pack_memory
def pack_memory(*arguments):
    global count
    count += 1
    if count == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(*arguments)
checkpoint.pack_memory = pack_memory
from gruppo.cli import main
raise SystemExit(main())
"""

# Kills itself in step 27 or later, as soon as some of its episodes are over and others are in the middle of theirs.
KILLED_IN_PLAY = """
import json, os, signal
from pathlib import Path
from gruppo.stages.dialogue import Dialogue
going, ended, step = {}, [], 0
played, paid = Dialogue.played, Dialogue._paid
async def to_its_end(self):
    episode = await played(self)
    if going.pop(id(self), None):
        ended.append(len(episode.turns))
    return episode
def turn(self, *given):
    global step
    seen = paid(self, *given)
    if self.ctx.step != step:
        going.clear(), ended.clear()
        step = self.ctx.step
    going[id(self)] = self
    if step >= 26 and ended and not seen.done:  # counted from 0
        left = [len(d.grown.turns) for d in going.values()]
        Path("open.json").write_text(json.dumps({"step": step + 1, "open": left, "ended": ended}))
        os.kill(os.getpid(), signal.SIGKILL)
    return seen
Dialogue.played, Dialogue._paid = to_its_end, turn
from gruppo.cli import main
raise SystemExit(main())
"""


def killed_and_resumed(method: str, steps: int, *settings: str) -> str:
    """Kills a run at a random moment of the steps after the checkpoint in its middle, and resumes it; says when."""
    half, every = steps // 2, f"save.checkpoint_every={steps // 2}"
    argv = ("train", *SMALL, f"method={method}", f"steps={steps}", every, "save.name=b", *settings)
    process = start(*argv, seconds_each=0.02)
    wait_for(checkpoint("b", half).exists, process)
    lines = Path("runs/b/metrics.jsonl").read_text().splitlines()[1 : half + 1]
    moment = random.SystemRandom().uniform(0.0, half / 2) * sum(json.loads(line)["seconds"] for line in lines) / half
    time.sleep(moment)
    kill(process)
    lost = len(Path("runs/b/metrics.jsonl").read_text().splitlines()) - 1 - half
    assert saved("b")[-1] == f"step-{half:06d}" and lost < half
    assert gruppo("train", "--resume", "runs/b") == 0
    straight(f"method={method}", f"steps={steps}", every, *settings, reward=SLOW_REWARD)
    assert len(metrics("a")) == steps + 1
    same_run("a", "b", keep=2)
    return f"{method}: killed {moment:.3f} s after step {half}, in step {half + lost + 1}; no bit differs"


def test_four_steps_killed_and_four_more() -> None:
    killed_and_resumed("grpo", 8, *SLOWLY)


FEW = tuple(f"method.update.{s}" for s in ("critic_epochs=2", "utterances=8", "warmup=5"))  # optimiser steps a step


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "dapo", "ppo", "archer"])
def test_forty_steps_are_twenty_killed_and_twenty_more(method: str) -> None:
    print(killed_and_resumed(method, 40, *(FEW if method == "archer" else ())))


AGENTS = {"gigpo": "household", "spear": "household", "spiral": "kuhn", "archer": "guess"}


@pytest.mark.slow
@pytest.mark.parametrize("method", AGENTS)
def test_forty_steps_in_a_world_are_twenty_killed_and_twenty_more(method: str) -> None:
    """In lockstep, the default on a CPU: the worlds are played again from the checkpoint on."""
    print(killed_and_resumed(method, 40, f"task={AGENTS[method]}", *(FEW if method == "archer" else ())))


@pytest.mark.slow
@pytest.mark.timeout(1200)  # on a loaded machine
@pytest.mark.parametrize("method", AGENTS)
def test_forty_steps_are_twenty_killed_with_open_episodes_and_twenty_more(method: str) -> None:
    """Killed in the middle of episodes: they are played again with the same luck, and none counts twice."""
    few = FEW if method == "archer" else ()
    settings = (f"task={AGENTS[method]}", f"method={method}", "steps=40", "save.checkpoint_every=20", *few)
    settings += ("prompts=2", "eval.prompts=2", "eval.every=20")
    process = start("train", *SMALL, *settings, "save.name=b", code=KILLED_IN_PLAY)
    assert process.wait(1000) == -9
    found = json.loads(Path("open.json").read_text())
    assert saved("b") == ["step-000020"] and len(metrics("b")) == found["step"] >= 27  # with that of step 0
    assert min(found["open"]) > 0 and found["ended"]
    assert gruppo("train", "--resume", "runs/b") == 0
    straight(*settings)
    assert len(metrics("a")) == 41
    same_run("a", "b", keep=2)
    how_many = f"{len(found['open'])} episodes open, {len(found['ended'])} over"
    print(f"{method}: killed in step {found['step']}, {how_many}; no bit differs")


def test_killed_while_a_checkpoint_is_written() -> None:
    settings = ["steps=4", "save.checkpoint_every=2", "save.name=b"]
    process = start("train", *SMALL, *settings, code=KILLED_WHILE_SAVING)
    assert process.wait(120) == -9
    draft, whole = saved("b")
    assert draft.startswith(".draft-") and whole == "step-000002"
    assert list((Path("runs/b/checkpoints") / draft).iterdir())  # half of a checkpoint
    assert gruppo("train", "--resume", "runs/b") == 0
    assert saved("b") == ["step-000002", "step-000004"]
    straight(*settings[:2])
    same_run("a", "b", keep=2)


@pytest.mark.slow  # the same without a killed process: tests/cli/test_resume_refused.py
def test_killed_before_the_first_checkpoint() -> None:
    """There is nothing to go on from; the same command begins again, and ends the same."""
    settings = ["steps=4", *SLOWLY]
    process = start("train", *SMALL, *settings, "save.name=b", seconds_each=0.02)
    wait_for(lambda: len(metrics("b")) >= 2, process)
    kill(process)
    assert not saved("b")
    assert gruppo("train", "--resume", "runs/b") == 0
    straight(*settings, reward=SLOW_REWARD)
    assert [row["step"] for row in metrics("b")] == [0, 1, 2, 3, 4]
    same_run("a", "b")
