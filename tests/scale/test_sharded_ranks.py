"""Two processes with sharded models learn as one does: the same gradient, the same run; and what if one dies."""

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from starting import FAILING, config, torchrun, words_of, worked
from warm import Process, begin, environment

from gruppo.cli import main
from gruppo.methods import all_methods
from gruppo.scale.channel import lost
from gruppo.scale.config import ScaleConfig
from gruppo.scale.launch import _first_to_end, agreed, launch
from gruppo.scale.ranks import Lead
from gruppo.train import trainer
from gruppo.train.ranks import Ranks, local, whole

FAST = ("grpo", "disco", "ppo", "kdrl")  # additive, whole-step, with a critic, with a teacher
EXACT, ROUNDED = 1e-9, 1e-6


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of one start of the ranks: it takes longer than what they compute."""
    return worked(tmp_path_factory.mktemp("ranks"), 2, "models", *FAST)


def largest(found: dict[str, dict[str, float]], what: str) -> float:
    return max(of[what] for of in found.values())


@pytest.mark.parametrize(("dtype", "limit"), [("float64", EXACT), ("float32", ROUNDED)])
def test_gradients_are_those_of_one_process(found: dict[str, Any], dtype: str, limit: float) -> None:
    near = found[dtype]["all"]
    assert set(near) == set(FAST) and min(of["norm"] for of in near.values()) > 0
    assert max(largest(near, "gradient"), largest(near, "read"), largest(near, "step")) <= limit, near


@pytest.mark.parametrize(("dtype", "limit"), [("float64", EXACT), ("float32", ROUNDED)])
def test_a_rank_without_sequences_takes_part(found: dict[str, Any], dtype: str, limit: float) -> None:
    near = found[dtype]["few"]
    assert set(near) == {"grpo", "disco", "ppo"} and min(of["norm"] for of in near.values()) > 0
    assert max(largest(near, "gradient"), largest(near, "step")) <= limit, near


def test_models_of_transformers_are_sharded_alike(found: dict[str, Any]) -> None:
    assert set(found["hf"]) == {"llama", "llama_untied"} and max(found["hf"].values()) <= EXACT, found["hf"]


def test_every_decoder_layer_is_gathered_by_itself(found: dict[str, Any]) -> None:
    assert found["units"] is True


def test_an_adapter_and_the_policy_without_it(found: dict[str, Any]) -> None:
    near = found["lora"]
    assert near["names"] is True and max(near["ref"], near["gradient"]) <= EXACT, near


def test_a_slow_copy_that_was_read_is_read_as_it_has_moved(found: dict[str, Any]) -> None:
    near = found["follower"]
    assert near["moved"] > 0.1 and max(near["before"], near["after"]) <= EXACT, near


def test_the_norm_is_that_of_the_whole_gradient(found: dict[str, Any]) -> None:
    assert max(found["clipped"].values()) <= EXACT, found["clipped"]


def test_float32_copies_of_smaller_weights_are_sharded(found: dict[str, Any]) -> None:
    assert found["masters"] <= ROUNDED


def test_a_snapshot_brings_weights_and_moments_back(found: dict[str, Any]) -> None:
    near = found["kept"]
    assert near["moved"] > 1e-6 and max(near["back"], near["again"]) <= EXACT, near


@pytest.mark.slow
@pytest.mark.timeout(2000)
@pytest.mark.parametrize(
    ("size", "dtype", "limit"), [(2, "float64", EXACT), (2, "float32", ROUNDED), (3, "float64", EXACT)]
)
def test_gradients_of_all_methods(size: int, dtype: str, limit: float, tmp_path: Path) -> None:
    near = worked(tmp_path, size, dtype, *sorted(all_methods()), seconds=1900)
    assert set(near["all"]) == set(all_methods())
    assert max(largest(near["all"], what) for what in ("gradient", "read")) <= limit
    assert largest(near["few"], "gradient") <= limit  # on 3 ranks two of them have nothing


# ---- runs


def started(folder: Path, *words: str) -> Process:
    """`gruppo train WORD…`; it and its ranks write to said.txt. Only the launcher is forked: the ranks are new."""
    return begin("train", *words, env=environment(), log=str(folder / "said.txt"))


def until_saved(run: Process, folder: Path, step: int) -> None:
    end = time.monotonic() + 280
    while not (folder / f"two/checkpoints/step-{step:06d}/manifest.json").is_file():
        assert run.poll() is None and time.monotonic() < end, (folder / "said.txt").read_text()
        time.sleep(0.05)


def rank_of(launcher: int, rank: int) -> int:
    """The process of a rank: a child of the launcher."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            named = (stat.parent / "environ").read_bytes().split(b"\0") if parent == launcher else []
        except OSError:
            continue
        if f"RANK={rank}".encode() in named:
            return int(stat.parent.name)
    raise AssertionError(f"there is no rank {rank}")


def apart(a: Path, b: Path) -> float:
    """The largest difference of the weights and moments of two checkpoints."""
    files = sorted(p.name for p in a.glob("*.safetensors"))
    assert files == sorted(p.name for p in b.glob("*.safetensors")) and "critic.safetensors" in files
    both = [(load_file(a / name), load_file(b / name)) for name in files]
    assert all(x.keys() == y.keys() for x, y in both)
    return max(float((x[k].double() - y[k].double()).abs().max()) for x, y in both for k in x)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, float]]:
    """(the folder of a run on two ranks whose second one was killed, what was said, the seconds until its end)."""
    if not Path("/proc/self/environ").is_file():
        pytest.skip("processes are found in /proc")
    folder = tmp_path_factory.mktemp("killed")
    run = started(folder, *words_of(folder, "two", 1000), "scale.ranks=2")
    try:
        until_saved(run, folder, 2)
        began = time.monotonic()
        os.kill(rank_of(run.pid, 1), signal.SIGKILL)
        code = run.wait(200)
    finally:
        run.kill()
    assert code == 128 + 9
    yield folder / "two", (folder / "said.txt").read_text(), time.monotonic() - began


def test_a_dead_rank_ends_the_run_with_the_command_to_go_on(killed: tuple[Path, str, float]) -> None:
    folder, said, seconds = killed
    assert seconds < 30
    words = (
        "rank 1 of 2 was ended by signal 9 .SIGKILL., and the run with it. Step .* is saved: go on with  gruppo train"
    )
    assert re.search(f"{words} --resume {re.escape(str(folder))}", said), said
    assert "Traceback" not in said and said.count("run folder") == 1  # only the first rank speaks


def test_what_is_sampled_from_are_the_trained_weights(killed: tuple[Path, str, float]) -> None:
    """Pitfalls 1, 2, 3 and 9: after every sync, here of tied embeddings, sampler and trainer agree about each token."""
    rows = [json.loads(line) for line in (killed[0] / "metrics.jsonl").read_text().splitlines()][1:]
    assert len(rows) >= 2 and rows[-1]["version"] >= 2
    assert max(row["sampler_gap_max"] for row in rows) <= 1e-5  # episodes hold float32; a step moves it by 1e-3


def test_a_checkpoint_of_two_ranks_goes_on_in_one_process(killed: tuple[Path, str, float]) -> None:
    """And is what one process would have come to: runs, and not only gradients, are the same."""
    folder = killed[0]
    last = max(int(p.name[5:]) for p in (folder / "checkpoints").glob("step-*"))
    trainer.train(config(folder.parent, "one", last + 2), quiet=True)
    alone = folder.parent / "one/checkpoints"
    assert apart(alone / f"step-{last:06d}", folder / f"checkpoints/step-{last:06d}") <= EXACT
    with pytest.raises(ValueError, match=r"scale\.ranks: 2 → 1"):
        trainer.resume(folder, lambda c: replace(c, steps=last + 2, scale=ScaleConfig()), quiet=True)
    trainer.resume(folder, lambda c: replace(c, steps=last + 2, scale=ScaleConfig()), quiet=True, allow=True)
    end = f"step-{last + 2:06d}"
    assert apart(alone / end, folder / "checkpoints" / end) <= EXACT


@pytest.mark.slow
def test_a_checkpoint_of_two_ranks_goes_on_on_three(tmp_path: Path) -> None:
    for name, ranks, steps, more in (
        ("whole", 2, 4, []),
        ("half", 2, 2, []),
        ("half", 3, 4, ["--resume", str(tmp_path / "half"), "--allow-changes"]),
    ):
        words = [f"steps={steps}", *more] if more else words_of(tmp_path, name, steps)
        run = started(tmp_path, *words, f"scale.ranks={ranks}")
        assert run.wait(200) == 0, (tmp_path / "said.txt").read_text()
    assert apart(*(tmp_path / name / "checkpoints/step-000004" for name in ("whole", "half"))) <= EXACT


@pytest.mark.slow
def test_torchrun_is_the_same_run(tmp_path: Path) -> None:
    done = torchrun(2, "-m", "gruppo.cli", "train", *words_of(tmp_path, "two", 2))
    assert done.stdout.count("run folder") == 1
    assert (tmp_path / "two/policy/config.json").is_file()
    trainer.train(config(tmp_path, "one", 2), quiet=True)
    assert apart(*(tmp_path / name / "checkpoints/step-000002" for name in ("one", "two"))) <= EXACT


SCRIPT = """
import sys
import gruppo

run = gruppo.train("grpo", steps=2, prompts=2, samples=2, eval={"prompts": 4}, save={"folder": sys.argv[1]}, quiet=True)
sys.stdout.write(f"{run.folder} {run.summary['steps']}\\n")
"""


@pytest.mark.slow
def test_a_script_under_torchrun_has_the_run_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    said = torchrun(2, str(tmp_path / "script.py"), str(tmp_path / "runs")).stdout.split()
    (made,) = (tmp_path / "runs").iterdir()
    assert said == [str(made), "2"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_and_saves_it(number: signal.Signals, tmp_path: Path) -> None:
    run = started(tmp_path, *words_of(tmp_path, "two", 1000), "scale.ranks=2")
    until_saved(run, tmp_path, 1)
    run.send_signal(number)
    code, said = run.wait(200), (tmp_path / "said.txt").read_text()
    assert code == 0 and "stopped after step" in said and "go on with  gruppo train --resume" in said


@pytest.mark.slow
def test_ranks_whose_launcher_was_killed_save_and_end(tmp_path: Path) -> None:
    run = started(tmp_path, *words_of(tmp_path, "two", 1000), "scale.ranks=2")
    until_saved(run, tmp_path, 1)
    left = [rank_of(run.pid, rank) for rank in (0, 1)]
    run.kill()
    end = time.monotonic() + 200
    while any(alive(pid) for pid in left):
        assert time.monotonic() < end, "the ranks go on without their launcher"
        time.sleep(0.05)
    assert "stopped after step" in (tmp_path / "said.txt").read_text()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_runs_out_of_memory_alone_hangs_nobody(rank: str, tmp_path: Path) -> None:
    done = torchrun(2, str(FAILING), rank, *words_of(tmp_path, "two", 9), seconds=120, fails=True)
    assert "out of memory on one of 2 ranks" in done.stderr and "Start with optim.micro_tokens=" in done.stderr
    assert f"go on with  gruppo train --resume {tmp_path / 'two'}" in done.stderr


# ---- without processes


def test_ranks_that_are_not_there_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config(tmp_path, "x", 1, scale=ScaleConfig(ranks=4))
    with pytest.raises(ValueError, match=r"scale\.ranks=4, and there is one process, so nothing was started"):
        trainer.train(asked, quiet=True)
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="there are 2 processes"):
        agreed(asked)
    assert agreed(config(tmp_path, "x", 1)).scale.ranks == 2
    with pytest.raises(ValueError, match="ahead=1 on 2 ranks"):
        agreed(config(tmp_path, "x", 1, ahead=1))
    with pytest.raises(ValueError, match="ahead=2 on 4 ranks"):  # also by --dry-run, which starts no ranks
        replace(asked, ahead=2)


def test_more_ranks_than_a_machine_can_hold_are_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(
        ValueError, match=r"scale\.ranks=1000 on a machine with 0 GPUs and 2 cores.*scale\.ranks=2 or less"
    ):
        launch(1000, ["train"])


def test_the_port_of_the_ranks_is_held_before_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that was free a moment ago may be another program's when the first rank wants it."""
    from torch.distributed.elastic import multiprocessing

    class Told(Exception):
        pass

    def start(envs: dict[int, dict[str, str]], **_: Any) -> None:
        with socket.create_connection(("127.0.0.1", int(envs[0]["MASTER_PORT"])), timeout=10):
            raise Told(len({env["MASTER_PORT"] for env in envs.values()}))

    monkeypatch.setattr(multiprocessing, "start_processes", start)
    with pytest.raises(Told, match="1"):
        launch(2, ["train"])


def test_a_rank_ends_as_by_a_signal_if_its_launcher_is_gone(tmp_path: Path) -> None:
    """The launcher is this process while it lives, and then any other one."""
    code = (
        "import os, signal, sys, time\n"
        "from gruppo.scale.launch import LAUNCHER, end_with_launcher\n"
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\n"
        "os.environ[LAUNCHER] = str(os.getppid() + int(sys.argv[1]))\n"
        "end_with_launcher()\n"
        "time.sleep(float(sys.argv[2]))\n"
    )
    for other, seconds, ends in (("0", "0.5", 0), ("1", "300", 7)):
        run = begin(other, seconds, env=environment(), code=code, log=str(tmp_path / "said.txt"))
        assert run.wait(300) == ends, (tmp_path / "said.txt").read_text()


class Told:
    """In place of a channel and of the learner of the first rank: what was said, and done."""

    ranks = Ranks()

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.done: list[Any] = []

    def say(self, words: Any) -> None:
        self.said.append(words)

    def do(self, verb: str, *given: Any, **named: Any) -> None:
        self.done.append((verb, given, named))


def test_a_snapshot_that_nobody_holds_is_forgotten() -> None:
    told: Any = Told()
    lead = Lead(told, told)
    first = lead.snapshot("policy")
    second = lead.snapshot("policy")
    del first
    third = lead.snapshot("critic")
    assert [given for _, given, _ in told.done] == [("policy", 0, [0]), ("policy", 1, [0, 1]), ("critic", 2, [1, 2])]
    assert told.said == told.done  # the others do what the first one does
    lead.restore("policy", second)
    assert told.done[-1] == ("bring_back", ("policy", 1), {}) and third.number == 2


def test_no_rank_gives_away_its_part_of_a_model() -> None:
    with pytest.raises(AttributeError, match="`read` reads them"):
        Lead(*[Told()] * 2).models  # type: ignore[arg-type] # noqa: B018


def test_one_process_gathers_nothing() -> None:
    x = torch.ones(2)
    assert whole(x) is x and local(x) is x and Ranks().gathered(x) is x
    Ranks().put(x, torch.zeros(2))
    assert x.tolist() == [0.0, 0.0]


class Ended:
    def __init__(self, code: int | None) -> None:
        self.poll = lambda: code


@pytest.mark.parametrize(("codes", "blamed"), [([2, -9], 1), ([0, 0], 0), ([2, 0], 0), ([-9, 0], 0), ([None, 0, 1], 2)])
def test_the_rank_that_died_is_blamed_and_not_the_first_that_noticed(codes: list[int | None], blamed: int) -> None:
    assert _first_to_end([Ended(code) for code in codes]) == blamed


def test_only_a_lost_rank_is_told_as_one() -> None:
    assert lost(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"))
    assert not lost(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) and not lost(ValueError("Connection"))


def test_a_damaged_number_of_ranks_is_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.toml").write_text("scale = 3\n")
    assert main(["train", "--resume", str(tmp_path)]) != 0
    assert "config.toml" in capsys.readouterr().err
