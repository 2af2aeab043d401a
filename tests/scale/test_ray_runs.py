"""Runs on Ray are the run in one process; and what if an actor dies. `make test-ray` runs them."""

import importlib.util
import os
import random
import signal
import time
from pathlib import Path

import pytest
from ray_runs import RAY, Started, apart, further, moved, resumed, words_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: make test-ray"),
    pytest.mark.skipif(not Path("/proc/self/cmdline").is_file(), reason="processes are found in /proc"),
]
STEPS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two runs are: `one` in one process, `ray` on two ranks with a sampler and a judge, both undisturbed."""
    folder = tmp_path_factory.mktemp("ray")
    Started(folder / "one.log", *words_of(folder, "one", STEPS)).well()
    said = Started(folder / "ray.log", *words_of(folder, "ray", STEPS, *RAY.split())).well()
    placed = [line for line in said.splitlines() if line.startswith("Ray at ")]
    assert len(placed) == 1 and "rank 0, rank 1, sampler 0, judge 0 on" in placed[0]
    return folder


def test_twenty_steps_are_those_of_one_process(folder: Path) -> None:
    one, ray = (folder / f"{name}64" for name in ("one", "ray"))
    Started(folder / "one64.log", *words_of(folder, "one64", STEPS, "model.dtype=float64")).well()
    Started(folder / "ray64.log", *words_of(folder, "ray64", STEPS, "model.dtype=float64", *RAY.split())).well()
    print(f"{apart(one, ray, STEPS):.1e} apart, moved {moved(one, STEPS):.1e}")
    assert moved(one, STEPS) > 1e-4
    assert apart(one, ray, STEPS) <= 1e-9


def test_in_float32_next_to_no_weight_is_further_apart(folder: Path) -> None:
    """AdamW divides by the size of a gradient, so where the first one is 0 but for its last bits, a weight moves by any
    part of the learning rate: one of 865,792 on one host, none on another. No more than that is allowed."""
    print(f"{apart(folder / 'one', folder / 'ray', STEPS):.1e} apart")
    assert further(folder / "one", folder / "ray", STEPS, 1e-5) <= 4
    assert apart(folder / "one", folder / "ray", STEPS) <= 1e-4


AGAIN = "sampler 0 died and was replaced; what it was asked, it was asked again"


def test_a_sampler_that_is_killed_at_ten_random_moments_draws_the_same(folder: Path) -> None:
    """Each time its replacement has answered before."""
    luck, lost = random.Random(0), list[int]()
    run = Started(folder / "killed.log", *words_of(folder, "killed", STEPS, *RAY.split()))
    run.until(lambda: "step 1/" in run.said)
    for _ in range(10):
        time.sleep(luck.uniform(0, 0.3))
        lost.append(run.kill("Sampler"))
        run.until(lambda: run.said.count(AGAIN) == len(lost))
        print(f"killed after step {len(list((folder / 'killed/checkpoints').glob('step-*')))}")
    assert len(set(lost)) == 10 and run.well().count(AGAIN) == 10
    assert apart(folder / "ray", folder / "killed", STEPS) == 0.0


def test_a_rank_that_is_killed_ends_the_run_and_a_resume_is_equal(folder: Path) -> None:
    run = Started(folder / "rank.log", *words_of(folder, "rank", STEPS, *RAY.split()))
    run.until(lambda: (folder / "rank/checkpoints/step-000003/manifest.json").is_file())
    began = time.monotonic()
    run.kill("Rank")
    said = run.ended()
    assert time.monotonic() - began < 30 and run.process.returncode != 0
    assert "Traceback" not in said and "rank" in said
    print(f"ended after {time.monotonic() - began:.1f} s")
    Started(folder / "resumed.log", *resumed(said)).well()
    assert apart(folder / "ray", folder / "rank", STEPS) == 0.0


@pytest.mark.parametrize("whom", ["run", "all"])
def test_a_signal_finishes_the_step_and_saves_it(whom: str, tmp_path: Path) -> None:
    """Of a scheduler to the run, and of a terminal, which all processes of Ray get, too."""
    run = Started(tmp_path / "run.log", *words_of(tmp_path, "run", 1000, *RAY.split()))
    run.until(lambda: (tmp_path / "run/checkpoints/step-000001/manifest.json").is_file())
    if whom == "run":
        run.process.send_signal(signal.SIGTERM)
    else:
        os.killpg(run.process.pid, signal.SIGINT)
    said = run.well()
    assert "stopped after step" in said and resumed(said)


def test_what_is_missing_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    words = ["scale.address=local", "scale.samplers=1", "scale.judges=1", "scale.cpus=1000"]
    run = Started(tmp_path / "run.log", *words_of(tmp_path, "run", 1, *words))
    said = run.ended()
    assert run.process.returncode != 0 and "the run asks for 2000 CPU where there" in said
    assert "fewer scale.ranks, scale.samplers, scale.judges or scale.worlds" in said and not (tmp_path / "run").exists()


STUCK = """
import pathlib
import time


def score(task, text):
    while pathlib.Path(__file__).with_name("stuck").exists():
        time.sleep(0.1)
    return float(text.strip() == task.answer)
"""


def test_a_rank_that_is_killed_ends_a_run_that_waits_for_something_else(tmp_path: Path) -> None:
    """Nobody learns meanwhile, so no rank would notice."""
    (tmp_path / "mine.py").write_text(STUCK)
    words = [f"task.reward={tmp_path / 'mine.py'}:score", "task.seconds=500", *RAY.split(), "scale.samplers=0"]
    run = Started(tmp_path / "run.log", *words_of(tmp_path, "run", 1000, *words))
    run.until(lambda: (tmp_path / "run/checkpoints/step-000002/manifest.json").is_file())
    (tmp_path / "stuck").touch()
    time.sleep(5)
    began = time.monotonic()
    run.kill("Rank")
    said = run.ended()
    seconds = time.monotonic() - began
    print(f"ended after {seconds:.1f} s")
    assert seconds < 30 and run.process.returncode != 0 and "Traceback" not in said
    assert "rank 1 of 2 is gone, and the run ends with it" in said and resumed(said)


SLOW = """
import time


def score(task, text):
    time.sleep(0.1)
    return float(text.strip() == task.answer)
"""


def test_a_judge_that_is_killed_has_its_answers_scored_again(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    words = [f"task.reward={tmp_path / 'slow.py'}:score", *RAY.split(), "scale.ranks=1", "scale.samplers=0"]
    plain = Started(tmp_path / "plain.log", *words_of(tmp_path, "plain", 4, words[0]))
    plain.well()
    run = Started(tmp_path / "ray.log", *words_of(tmp_path, "ray", 4, *words))
    run.until(lambda: (tmp_path / "ray/checkpoints/step-000001/manifest.json").is_file())
    run.kill("JudgeActor")
    said = run.well()
    assert "judge 0 died and was replaced; its answers were scored again" in said
    assert apart(tmp_path / "plain", tmp_path / "ray", 4) == 0.0


def test_worlds_that_are_killed_have_their_episodes_played_again(tmp_path: Path) -> None:
    """In a world of many turns; each time, the replacement has answered before."""
    world = ["task=household", "scale.address=local", "scale.cpus=0.5", "scale.worlds=1"]
    Started(tmp_path / "plain.log", *words_of(tmp_path, "plain", 4, world[0])).well()
    run = Started(tmp_path / "ray.log", *words_of(tmp_path, "ray", 4, *world))
    run.until(lambda: (tmp_path / "ray/checkpoints/step-000001/manifest.json").is_file())
    again = "world 0 died and was replaced; its episodes were played again"
    for kills in (1, 2):
        run.kill("WorldActor")
        run.until(lambda kills=kills: run.said.count(again) == kills)
    said = run.well()
    assert "world 0 on" in said and said.count(again) == 2
    print(
        f"killed twice: {apart(tmp_path / 'plain', tmp_path / 'ray', 4)} apart, moved {moved(tmp_path / 'ray', 4):.1e}"
    )
    assert moved(tmp_path / "plain", 4) > 1e-5 and apart(tmp_path / "plain", tmp_path / "ray", 4) == 0.0
