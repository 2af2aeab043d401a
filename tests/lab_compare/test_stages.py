"""An entrant of several stages: `sft steps=2 then grpo steps=2`."""

import argparse
import json
import re
import shutil
from pathlib import Path

import pytest
from cli.cli_runs import refused

import gruppo
from gruppo.cli import main
from gruppo.lab.compare import command, processes
from gruppo.lab.compare.compare import Result
from gruppo.lab.compare.processes import Planned, run_all
from gruppo.lab.compare.stages import counted_on, stages_of
from gruppo.stages.record import to_table
from gruppo.train.folder import RunFolder, table_changes
from gruppo.train.manifest import sha256

SMALL = ("prompts=2", "samples=2", "eval.prompts=20", "eval.every=0", "save.tensorboard=no", "save.name=c")
TWO = "grpo steps=2 optim.lr=3e-2 then rloo steps=3 optim.lr=0"


def folders(seed: int = 0, arm: str = TWO) -> tuple[RunFolder, RunFolder]:
    slug = command.parsed(arm).slug
    return RunFolder(Path(f"runs/c/{slug}/seed-{seed}-stage-1")), RunFolder(Path(f"runs/c/{slug}/seed-{seed}"))


def plan(text: str, *settings: str, config: str | None = None) -> Planned:
    args = argparse.Namespace(config=config, json=False, jobs=1, resume=None)
    return command.plan(args, [command.parsed(text)], [0], [*settings, "save.name=c"])[1][0]


# ---- laws


def test_a_stage_begins_where_the_one_before_it_ended(in_process: list[list[str]]) -> None:
    """With the same seed and tasks. And with a rate of 0 it ends there."""
    assert run_all([plan(TWO, *SMALL)], Path("runs/c"), quiet=True) == {}
    first, second = folders()
    before, after = ([r["held_out"] for r in f.metrics() if "held_out" in r] for f in (first, second))
    assert before[0] != before[-1] == after[0] == after[-1]
    weights = [sha256(f["policy"] / "model.safetensors") for f in (first, second)]
    assert weights[0] == weights[1]
    assert {f.read_config().seed for f in (first, second)} == {0}
    assert first.read_config().task == second.read_config().task


def test_what_counts_is_the_last_stage_with_steps_and_tokens_of_all(in_process: list[list[str]]) -> None:
    assert main(["compare", TWO, "grpo", *SMALL, "steps=5", "--seeds", "1", "--json"]) == 0
    parts = [f.metrics() for f in folders()]
    found = plan(TWO, *SMALL).result()
    assert list(found.curve("held_out")) == [2, 5] and list(found.curve("reward")) == [3, 4, 5]
    assert found.curve("held_out")[2] == parts[0][-1]["held_out"] and found.last("reward") == parts[1][-1]["reward"]
    assert list(found.curve("sampled")) == [1, 2, 3, 4, 5]
    assert sum(found.curve("sampled").values()) == sum(r.get("sampled", 0) for rows in parts for r in rows)
    [shown] = [e for e in json.loads(Path("runs/c/compare.json").read_text())["entrants"] if e["name"] == TWO]
    assert shown["mean"] == found.last("held_out") and shown["first"] == found.curve("held_out")[2]


def test_counted_on_by_hand() -> None:
    def of(steps: int, sampled: float) -> Result:
        rows = [{"step": 0, "held_out": 0.1}, *({"step": s, "sampled": sampled, "x": 1.0} for s in range(1, steps + 1))]
        return Result("a", 0, "f", seconds=2.0, rows=rows)

    assert counted_on([], of(1, 5.0)) == of(1, 5.0)
    found = counted_on([of(2, 5.0), of(1, 7.0)], of(1, 9.0))
    assert found.rows == [
        {"step": 1, "sampled": 5.0},
        {"step": 2, "sampled": 5.0},
        {"step": 3, "sampled": 7.0},
        {"step": 3, "held_out": 0.1},
        {"step": 4, "sampled": 9.0, "x": 1.0},
    ]
    assert found.seconds == 6.0


# ---- what is planned


def test_parsed() -> None:
    found = command.parsed("sft steps=1 then grpo steps=2 optim.lr='then({0: 1, 1: 2})' then rloo steps=3")
    assert found.earlier == (("method=sft", "steps=1"), ("method=grpo", "steps=2", "optim.lr=then({0: 1, 1: 2})"))
    assert found.settings == ("method=rloo", "steps=3")
    assert command.parsed("grpo optim.lr=1").earlier == () and stages_of("grpo a=1") == [["grpo", "a=1"]]


@pytest.mark.parametrize(
    ("text", "said"),
    {
        "sft steps=1 then grpo": "stage 2, grpo, does not say its steps",
        "sft then grpo steps=1": "stage 1, sft, does not say its steps",
        "sft steps=1 then": "stage 2 is empty",
        "then grpo steps=1": "stage 1 is empty",
        "sft steps=0 then grpo steps=1": "steps=0",
        "sft steps=1 then grpo steps=1 model=tiny": "model=tiny would throw that away",
        "sft steps=1 then grpo steps=1 model.name=tiny": "begins from the policy of stage 1",
        "sft steps=1 then grpo steps=1 model.sharpen=8": "begins from the policy of stage 1",
        "sft steps=1 then grop steps=1": "nearest: grpo",
        "sft steps=1 task=chain then grpo steps=1": "task=chain holds for one entrant only",
        "sft steps=1 then grpo steps=1 optim.lrr=1": "no 'lrr'",
        "grpo steps=1 method.writers.verifier=verifier then grpo steps=1": "also trains verifier",
    }.items(),
)
def test_refused_before_anything_is_started(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, "compare", text, "grpo")
    assert not Path("runs").exists()


def test_python_says_that_the_command_makes_stages() -> None:
    with pytest.raises(ValueError, match="gruppo compare"):
        gruppo.compare([TWO, "grpo"])


def test_stages_differ_in_what_they_say_and_in_their_model_alone() -> None:
    """The model of the first is sharpened once; what is usual in a world holds for all stages."""
    run = plan("grpo steps=2 then grpo steps=3", "model.name=tiny", "model.sharpen=8")
    [first] = run.earlier
    assert [s.config.model.sharpen for s in run.stages] == [8, 1]
    assert run.config.model.name == str(first.path / "policy") and first.config.model.name == "tiny"
    for task in ("household", "lake", "addition"):
        run = plan("grpo steps=2 then grpo steps=3", f"task={task}")
        changes = table_changes(*(to_table(s.config) for s in run.stages))
        assert {c.partition(":")[0] for c in changes} == {"steps", "model.name", "save.name"}, changes


@pytest.mark.parametrize(
    "typed", [(), ("task=household",), ("samples=4",), ("model.name=tiny-agent",), ("model=tiny",)]
)
@pytest.mark.parametrize("file", ["", 'task = "household"', '[model]\nname = "tiny"', '[model]\nname = "tiny-agent"'])
def test_stages_differ_in_nothing_else_with_a_run_file(file: str, typed: tuple[str, ...]) -> None:
    Path("c.toml").write_text(f"prompts = 4\n{file}\n[optim]\nlr = 1e-3\n")
    run = plan("grpo steps=2 then rloo steps=3 then grpo steps=2", *typed, config="c.toml")
    alone = [plan(f"{name} steps=2", *typed, config="c.toml") for name in ("grpo", "rloo", "grpo")]
    for stage, other in zip(run.stages, alone, strict=True):
        changes = table_changes(*(to_table(s.config) for s in (stage, other)))
        assert {c.partition(":")[0] for c in changes} <= {"steps", "model.name", "save.name", "save.folder"}, changes
    assert "task=household" in typed or {(s.config.prompts, s.config.optim.lr) for s in run.stages} == {(4, 1e-3)}


def test_a_setting_of_one_stage_is_its_own() -> None:
    """A world's usual rate holds again after a stage with another one, and none does where the first names a model."""
    run = plan("grpo steps=2 optim.lr=1e-2 then grpo steps=3", "task=household")
    assert run.config.optim == plan("grpo steps=3", "task=household").config.optim != run.earlier[0].config.optim
    run = plan("grpo steps=2 model=tiny then grpo steps=3", "task=household")
    assert run.config.prompts == run.earlier[0].config.prompts == 64


def test_a_long_entrant_has_a_folder() -> None:
    long = " then ".join([f"grpo steps={n} method.update.minibatches=2 optim.lr=1e-4" for n in range(1, 9)])
    other = long.replace("steps=8", "steps=9")
    assert len(command.parsed(long).slug) < 200 and command.parsed(long).slug != command.parsed(other).slug


# ---- in turn


def test_a_stage_waits_and_others_do_not() -> None:
    a, b = plan(TWO), plan("grpo")
    todo = [*a.stages, b]
    assert processes._next(todo, []) is a.earlier[0]
    assert processes._next([a, b], [a.earlier[0]]) is b and processes._next([a], [a.earlier[0]]) is None
    assert processes._next([a, b], [b]) is a and processes._next([], [a]) is None


def test_what_is_done_is_not_done_again(in_process: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["compare", TWO, "grpo", *SMALL, "steps=1", "--seeds", "1"]
    assert main(argv) == 0 and len(in_process) == 3
    first, second = folders()
    rows = second.metrics()

    in_process.clear()  # stopped between the stages
    shutil.rmtree(second.path)
    capsys.readouterr()
    assert main(argv) == 0
    assert "2 of 3 runs are finished already" in capsys.readouterr().out
    [made] = in_process
    assert f"model.name={first['policy']}" in made and [r["step"] for r in second.metrics()] == [0, 1, 2, 3]
    assert [r.get("reward") for r in second.metrics()] == [r.get("reward") for r in rows]

    in_process.clear()  # stopped in the second
    second["summary.json"].unlink()
    assert main(argv) == 0 and in_process == [["train", "--resume", str(second.path), "--json"]]

    in_process.clear()  # runs that were made elsewhere: the weights are compared, and not where they lie
    Path("runs/c").rename("runs/d")
    assert main([*argv, "save.name=d"]) == 0 and not in_process
    assert "samples: 2 → 4" in refused(capsys, *argv, "save.name=d", "samples=4")


def test_without_its_first_stage_the_second_is_not_tried(in_process: list[list[str]]) -> None:
    run = plan("rloo samples=1 steps=1 then grpo steps=1", *SMALL)
    failed = run_all([run], Path("runs/c"), quiet=True)
    assert len(in_process) == 1 and list(failed) == [f"{run.entrant}, stage 1, seed 0"] and not run.path.exists()


def test_a_policy_that_is_gone_is_named(in_process: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    """Not "other settings", also where the stage that needs it has begun; a finished one does not need it."""
    argv = ["compare", TWO, "grpo", *SMALL, "steps=1", "--seeds", "1"]
    assert main(argv) == 0
    first, second = folders()
    shown = Path("runs/c/compare.json")
    before = json.loads(shown.read_text())["entrants"]

    facts = second["environment.json"]
    true = facts.read_text()
    facts.write_text(re.sub(r'("model \(policy\)": )"\w+"', r'\1"0"', true))  # it began from other weights
    assert "holds runs with other settings" in (said := refused(capsys, *argv)) and "model (policy): 0 → " in said
    facts.write_text(true)

    in_process.clear()
    shutil.rmtree(first["policy"])
    shown.unlink()
    assert main(argv) == 0 and not in_process
    assert [e["mean"] for e in json.loads(shown.read_text())["entrants"]] == [e["mean"] for e in before]

    missing = r"seed-0-stage-1: policy/.* is missing, so .* Remove that folder"
    second["summary.json"].unlink()
    assert re.search(missing, said := refused(capsys, *argv)), said
    shutil.rmtree(second.path)
    assert re.search(missing, said := refused(capsys, *argv)), said
    shutil.rmtree(first.path)
    assert main(argv) == 0 and len(in_process) == 2


def test_a_first_stage_that_is_gone_is_made_again(in_process: list[list[str]]) -> None:
    """Its steps and tokens count."""
    argv = ["compare", TWO, "grpo", *SMALL, "steps=1", "--seeds", "1"]
    assert main(argv) == 0
    first, _ = folders()
    shutil.rmtree(first.path)
    in_process.clear()
    assert main(argv) == 0 and len(in_process) == 1 and first["policy"].is_dir()
