"""Runs with an agent of one's own, as a user makes them: train, resume, evaluate, look at episodes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from as_a_user import here, no_picture, one_thread, picture

from gruppo.cli import main
from gruppo.data.store import load_episodes

__all__ = ["here", "no_picture", "one_thread", "picture"]

SMALL = ("model=tiny-random", "prompts=2", "samples=2", "steps=2", "eval.prompts=2", "eval.every=1", "threads=1")
SMALL += ("save.tensorboard=no", "save.checkpoint_every=1", "save.episodes_every=1", "sampling.max_tokens=4")
SMALL += ("accept=dead_groups,mask", "task=./rows.jsonl", "task.seconds=20")
AGENT = """
def agent(task, client):
    talk = list(task.messages)
    talk += [client.ask(talk), {"role": "user", "content": "sure?"}]
    return {"task": len(client.say(talk)) / 4, "number": task.meta["number"] / 100}
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None, no_picture: None) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(AGENT)
    Path("rows.jsonl").write_text("\n".join(json.dumps({"prompt": f"say {i}", "number": i}) for i in range(20)))


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(f"runs/{name}/metrics.jsonl").read_text().splitlines()]


def episodes(name: str, step: int) -> dict[int, Any]:
    return {e.uid: e for e in load_episodes(Path(f"runs/{name}/episodes/step-{step:06d}.arrow"))}


def test_a_run_goes_on_with_the_same_keys_and_every_episode_once(capsys: pytest.CaptureFixture[str]) -> None:
    """In free order the last bits may differ, but not who is asked what, nor how often."""
    for name in "ab":
        assert main(["train", *SMALL, "task.agent=./mine.py:agent", f"save.name={name}"]) == 0
    shutil.rmtree("runs/b/checkpoints/step-000002")
    Path("runs/b/summary.json").unlink()
    assert main(["train", "--resume", "runs/b"]) == 0
    assert [r["step"] for r in rows("b")] == [0, 1, 2] and rows("b")[-1]["failed"] == 0
    for step in (1, 2):
        a, b = episodes("a", step), episodes("b", step)
        assert set(a) == set(b) and len(a) == 4
        for uid, e in a.items():
            assert len(e.turns) == 2 and len(e.sequences) == 1 and set(e.reward) == {"task", "number"}
            assert e.task == b[uid].task and e.reward["number"] == b[uid].reward["number"]
    assert np.isfinite(rows("a")[-1]["held_out"])
    capsys.readouterr()
    assert main(["episodes", "runs/a", "--limit", "1"]) == 0
    assert "2 turns" in capsys.readouterr().out
    assert main(["eval", "runs/a", "eval.prompts=2"]) == 0
    assert "on 2 held-out prompts" in capsys.readouterr().out
    Path("mine.py").write_text(AGENT + "# another\n")
    assert main(["train", "--resume", "runs/b", "steps=3"]) == 2
    assert "task.agent (mine.py)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["task.agent=./mine.py:agnet"], "Did you mean 'agent'?"),
        (["task.agent=./mine.py:agent", "task.reward=exact"], "the program returns the reward"),
        (["task.agent=./mine.py:agent", "task=guess"], "is played in its environment"),
        (["task.agent=./mine.py:agent", "task.window=2"], "task.window=2"),
        (["task.agent=./mine.py:agent", "deterministic=yes"], "differs from run to run, and with it the last bits"),
        (["task.agent=./bad.py:agent"], "KeyError: 'lost'"),
    ],
)
def test_mistakes_are_refused_before_the_first_step(
    settings: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.py").write_text("def agent(task, client):\n    client.say(task.messages)\n    raise KeyError('lost')\n")
    assert main(["train", *SMALL, *settings]) == 2
    assert said in capsys.readouterr().err
