"""`gruppo runs`, `gruppo train --resume` alone, `gruppo eval` of a run, `gruppo episodes`."""

import json
import os
import re
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from cli_runs import finished, kept, refused, strict_json, trained

from gruppo.cli import main
from gruppo.cli.episodes import as_text
from gruppo.cli.runs import ago
from gruppo.train import lock
from gruppo.train.callbacks import Callback
from gruppo.train.lock import Lock, held

SORTING = ("task=sorting", "task.level=2", "model=tiny", "eval.prompts=30", "steps=1")


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[str, str]:
    capsys.readouterr()
    assert main(list(argv)) == 0
    return capsys.readouterr()


def listed(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, dict[str, Any]]:
    return {r["name"]: r for r in strict_json(said(capsys, "runs", *argv, "--json")[0])}


def stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of three steps that was stopped after its first."""

    def stop(self: Callback, trainer: Any, step: Any) -> None:
        trainer.stop.asked = 1

    with monkeypatch.context() as once:
        once.setattr("gruppo.train.samples.Samples.step", stop)
        return kept(trained, "stopped by a callback", name, "steps=3")


def older(name: str, seconds: float) -> None:
    for path in (Path("runs") / name).iterdir():
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - seconds))


def test_every_state_and_the_newest_first(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    trained("done", "eval.every=1")
    stopped("stopped", monkeypatch)
    for name in ("running", "cut"):
        shutil.copytree("runs/stopped", f"runs/{name}")
    shutil.copytree("runs/done", "runs/spoilt")
    Path("runs/spoilt/policy/config.json").write_text("{}")
    Path("runs/cut/metrics.jsonl").write_text("nonsense\n")
    for i, name in enumerate(("spoilt", "cut", "running", "stopped", "done")):
        older(name, 1000 * i)
    with Lock(Path("runs/running")):
        found = listed(capsys)
        text = said(capsys, "runs")[0]
    assert list(found) == ["spoilt", "cut", "running", "stopped", "done"]
    assert [r["state"] for r in found.values()] == ["damaged", "damaged", "running", "stopped", "finished"]
    assert (found["done"]["step"], found["done"]["steps"], found["done"]["method"]) == (2, 2, "grpo")
    assert (found["stopped"]["step"], found["stopped"]["steps"], found["stopped"]["after"]) == (1, 3, None)
    summary = json.loads(Path("runs/done/summary.json").read_text())
    assert (found["done"]["before"], found["done"]["after"]) == (summary["accuracy_before"], summary["accuracy_after"])
    assert "spoilt is damaged: policy/config.json has 2 bytes instead of" in text
    assert "cut is damaged" in text and "line 1" in text and re.search(r"1[67] min ago", text)
    assert not Path("runs/stopped/.lock").exists()  # to look at a run leaves nothing behind


GAME = ("task=verify", "prompts=2", "samples=2", "steps=1", "eval.prompts=2", "save.tensorboard=no", "threads=1")


def test_of_a_game_the_return_of_each_seat(capsys: pytest.CaptureFixture[str]) -> None:
    """Their mean is 0 in a zero-sum game, so neither the table nor the JSON shows it."""
    assert main(["train", *GAME, "save.name=game"]) == 0
    path = Path("runs/game/metrics.jsonl")
    first, last = (json.loads(line) for line in path.read_text().splitlines())
    assert {"held_out/return/solver", "held_out/return/verifier"} <= first.keys() & last.keys()
    first |= {"held_out": 0.0, "held_out/return/solver": 0.25, "held_out/return/verifier": -0.25}
    last |= {"held_out": 0.0, "held_out/return/solver": -0.5, "held_out/return/verifier": 0.5}
    path.write_text(json.dumps(first) + "\n")
    assert "solver +0.250, verifier -0.250" in said(capsys, "runs")[0]
    path.write_text(json.dumps(first) + "\n" + json.dumps(last) + "\n")
    text, found = said(capsys, "runs")[0], listed(capsys)["game"]
    assert "solver +0.250 → -0.500, verifier -0.250 → +0.500" in text and "0.000" not in text
    assert found["returns"] == {"solver": [0.25, -0.5], "verifier": [-0.25, 0.5]}
    assert found["before"] is None and found["after"] is None
    path.write_text(json.dumps(first) + "\n" + json.dumps({"step": 1, "held_out": -2.0}) + "\n")
    text, found = said(capsys, "runs")[0], listed(capsys)["game"]
    assert "solver +0.250 → —, verifier -0.250 → —" in text
    assert found["returns"] == {"solver": [0.25, None], "verifier": [-0.25, None]}


def test_a_change_of_the_same_size_is_found_by_its_checksum(capsys: pytest.CaptureFixture[str]) -> None:
    finished("a")
    weights = Path("runs/a/policy/model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert listed(capsys)["a"]["state"] == "finished"
    assert listed(capsys, "--check")["a"]["why"] == "policy/model.safetensors is not as it was written"


@pytest.mark.parametrize("file", ["config.toml", "metrics.jsonl", "summary.json"])
def test_a_run_that_has_lost_a_file_is_there_and_damaged_until_it_is_resumed(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    finished("a")
    Path("runs/a", file).unlink()
    assert f"a is damaged: {file}" in said(capsys, "runs")[0]
    assert "going on with runs/a" in said(capsys, "train", "--resume")[0]
    assert listed(capsys, "--check")["a"]["state"] == "finished"


def test_a_run_that_was_made_longer_is_not_finished(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished("a")
    assert listed(capsys)["a"]["state"] == "finished"
    text = Path("runs/a/config.toml").read_text()
    Path("runs/a/config.toml").write_text(text.replace("\nsteps = 2", "\nsteps = 4"))
    assert listed(capsys)["a"]["state"] == "stopped"


def test_folders_without_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert "runs holds no runs" in said(capsys, "runs")[0]
    Path("runs/many").mkdir(parents=True)
    trained("a", "save.folder=runs/many")
    assert "1 run in runs/many: gruppo runs runs/many" in said(capsys, "runs")[0]
    assert list(listed(capsys, "runs/many")) == ["a"]
    Path("runs/both").mkdir()
    Path("runs/both/compare.md").touch()
    assert "a comparison in runs/both: read runs/both/compare.md" in said(capsys, "runs")[0]
    Path("file").touch()
    assert "is a file" in refused(capsys, "runs", "file")


def test_who_holds_the_lock_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a").mkdir()
    assert not held(Path("a"))
    with Lock(Path("a")):
        assert held(Path("a")) and held(Path("a"))
    assert not held(Path("a"))
    Path("a/.lock").touch()  # of a process that was killed
    assert not held(Path("a"))
    monkeypatch.setattr("gruppo.train.lock.fcntl", None)  # a system that cannot lock: the time decides
    assert held(Path("a"))
    os.utime("a/.lock", (0, os.stat("a/.lock").st_mtime - lock.STALE - 1))
    assert not held(Path("a"))
    assert [ago(s) for s in (0, 59, 60, 7200, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]


def test_resume_alone_takes_the_newest_unfinished_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "runs has no run to go on with (it holds no runs)" in refused(capsys, "train", "--resume")
    stopped("old", monkeypatch)
    stopped("new", monkeypatch)
    finished("done")
    older("old", 100)
    out, _ = said(capsys, "train", "--resume")
    assert "going on with runs/new" in out and "resumed runs/new after step 1" in out
    assert {n: r["state"] for n, r in listed(capsys).items()} == {
        "new": "finished",
        "done": "finished",
        "old": "stopped",
    }
    assert strict_json(said(capsys, "train", "--resume", "--json")[0])["folder"] == "runs/old"
    assert "is finished" in refused(capsys, "train", "--resume")
    assert "elsewhere has no run" in refused(capsys, "train", "--resume", "save.folder=elsewhere")


# ---- eval


def test_a_run_is_evaluated_as_it_was_trained(capsys: pytest.CaptureFixture[str]) -> None:
    run = finished("a", *SORTING)
    wanted = json.loads((run / "summary.json").read_text())["accuracy_after"]
    for name in ("runs/a", "runs/a/policy"):
        out, err = said(capsys, "eval", name, "--json")
        found = strict_json(out)
        assert (found["task"], found["accuracy"], found["prompts"]) == ("sorting", wanted, 30)
        assert "taken from runs/a: task=sorting task.level=2 eval.prompts=30" in err and "warning" not in err


def test_settings_of_the_command_line_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    finished("a", *SORTING)
    out, _ = said(capsys, "eval", "runs/a", "task.level=1", "eval.prompts=7", "--json")
    found = strict_json(out)
    assert (found["task"], found["prompts"], list(found["by_level"])) == ("sorting", 7, ["1"])
    out, err = said(capsys, "eval", "runs/a", "task=addition", "--json")
    assert (strict_json(out)["task"], strict_json(out)["prompts"]) == ("addition", 30) and "task=" not in err
    found = strict_json(said(capsys, "eval", "runs/a", "--config", "runs/a/config.toml", "task=chain", "--json")[0])
    assert found["task"] == "chain"


def test_a_changed_policy_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    run = finished("a")
    tokens = run / "policy" / "generation_config.json"
    tokens.write_text(tokens.read_text() + " ")
    err = said(capsys, "eval", "runs/a", "--json")[1]
    assert "warning: runs/a is not as the run left it (policy/generation_config.json has" in err


def test_what_cannot_be_evaluated(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    finished("a", *SORTING)
    finished("b")
    assert "runs/a was trained on sorting and runs/b on addition" in refused(capsys, "eval", "runs/a", "runs/b")
    assert strict_json(said(capsys, "eval", "runs/a", "runs/b", "task=sorting", "--json")[0])["differences"]
    shutil.rmtree(stopped("c", monkeypatch) / "checkpoints")
    assert "runs/c has no policy yet" in refused(capsys, "eval", "runs/c")


def test_of_a_run_that_has_not_ended_the_newest_checkpoint_is_evaluated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped("c", monkeypatch)
    out, err = said(capsys, "eval", "runs/c")
    assert "runs/c has not ended, so this is its newest checkpoint, of step 1" in err and "accuracy" in out


@pytest.mark.parametrize("rank", [0, 2])
def test_a_checkpoint_is_evaluated_like_the_policy_of_its_step(rank: int, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(
        "a", "model=tiny", "eval.prompts=8", "save.checkpoint_every=1", "optim.lr=0.01", f"model.lora.rank={rank}"
    )
    whole = strict_json(said(capsys, "eval", "runs/a", "--json")[0])
    (run / "summary.json").unlink()  # as if it had been made longer: its policy is of the earlier end
    again, err = said(capsys, "eval", "runs/a", "--json")
    assert "of step 2" in err and strict_json(again)["entropy"] == pytest.approx(whole["entropy"], rel=1e-4)
    (run / "checkpoints" / "step-000002" / "policy.safetensors").write_bytes(b"")
    again, err = said(capsys, "eval", "runs/a", "--json")
    assert "of step 1" in err and strict_json(again)["entropy"] != pytest.approx(whole["entropy"], rel=1e-4)


# ---- episodes


def test_episodes_are_printed_filtered_and_exported(capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow.parquet as parquet

    trained("a", "model=tiny", "samples=8", "save.episodes_every=1")
    out, _ = said(capsys, "episodes", "runs/a")
    assert out.count("  answer ") == 10 and "10 of 16 episodes; stored of step 2: 16; --limit 0 shows all" in out
    assert "Other steps: 1 (--step N, --all)" in out

    def rows(*argv: str) -> list[dict[str, Any]]:
        return [strict_json(line) for line in said(capsys, "episodes", "runs/a", *argv, "--json")[0].splitlines()]

    everything = rows("--all")
    assert len(everything) == 32 and rows("--step", "1") == everything[:16] and rows() == everything[16:]
    assert rows("--all", "--min-reward", "1") == [r for r in everything if r["reward"] >= 1]
    assert rows("--all", "--max-reward", "0.5") == [r for r in everything if r["reward"] <= 0.5]
    assert {r["reward"] for r in everything} == {0.0, 1.0}
    one = everything[3]
    assert rows("--all", "--task", one["task"]) == [r for r in everything if r["task"] == one["task"]]
    assert one in rows("--all", "--contains", one["prompt"])  # 57+68= looks like a setting, and is none
    assert rows("--status", "timeout") == [] and len(rows("--limit", "3")) == 3
    assert [r["reward"] for r in rows("--all", "--worst", "2")] == [0, 0]
    assert [r["reward"] for r in rows("--all", "--best", "2")] == [1, 1]
    for name in ("e.jsonl", "e.parquet"):
        assert "32 of 32 episodes written" in said(capsys, "episodes", "runs/a", "--all", "--out", name)[0]
    assert [json.loads(line) for line in Path("e.jsonl").read_text().splitlines()] == everything
    table = parquet.read_table("e.parquet").to_pylist()
    assert [r["reward/task"] for r in table] == [r["rewards"]["task"] for r in everything]
    assert [(r["prompt"], r["answer"], r["uid"]) for r in table] == [
        (r["prompt"], r["answer"], r["uid"]) for r in everything
    ]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("runs/none",), "runs/none: there is no such run or folder"),
        (("runs/a", "--step", "7"), "has no episodes of step 7. It has those of 1, 2"),
        (("runs/a", "--out", "e.txt"), "Use .jsonl or .parquet"),
        (("runs/a", "--status", "ended"), "no episode ends like that"),
        (("runs/a", "--limit", "-1"), "--limit -1"),
        (("runs/a", "--all", "--step", "2"), "Leave one out"),
    ],
)
def test_what_cannot_be_shown(words: tuple[str, ...], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    finished("a")
    assert part in refused(capsys, "episodes", *words)


def test_a_stored_step_without_episodes_says_why() -> None:
    args = Namespace(limit=None, best=None, worst=None)
    assert "stored of step 4: 0 (selection kept none, or no group was complete" in as_text([], 0, args, [4], [4])
    assert "no group was complete" not in as_text([], 16, args, [4], [4])  # a filter has found none


def test_a_run_without_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    trained("a", "save.episodes_every=0")
    assert "runs/a has no episodes yet" in refused(capsys, "episodes", "runs/a")


# ---- step zero and differences, in words


def test_doctor_says_what_it_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, "doctor", "model=tiny-random", "prompts=2", "samples=4")
    assert "100% of the sampled tokens can be learned from" in out and "limit" not in out
    assert "of the answers were cut off after sampling.max_tokens=6 tokens" in out
    assert len(out.splitlines()) == 11


@pytest.mark.parametrize(
    ("settings", "last"),
    [
        (("model=tiny-random",), "can start, but it would learn nothing from these answers: in every group"),
        (("model=tiny",), "all is well: a run with these settings can start"),
        (("model=tiny-random", "method=sft", "samples=1"), "all is well: a run with these settings can start"),
    ],
)
def test_doctor_is_not_content_with_equal_rewards(
    settings: tuple[str, ...], last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = said(capsys, "doctor", *settings, "prompts=2", *(() if "samples=1" in settings else ("samples=4",)))
    assert last in out.splitlines()[-1]


def test_what_is_added_to_a_chain_does_not_look_like_a_replacement(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("model=tiny-random", "prompts=2", "samples=4", "eval.prompts=2")
    out, _ = said(capsys, "train", "--dry-run", "method=dapo", "method.select+=top_entropy", *small)
    assert "select: + TopEntropy(" in out and "nothing" not in out.partition("with these changes")[2]
