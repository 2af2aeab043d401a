"""A part of scripts/kill_runs.py and scripts/break_runs.py: random stops and random damages, with other numbers."""

import os
import random
import sys
from pathlib import Path

import pytest
from train_runs import interrupted_while_freed

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

import break_runs
import kill_runs

# Shorter lives than those of the script.
SHORT = ("steps=6", "save.checkpoint_every=2", "eval.every=3", "save.episodes_every=3", "samples=2", "show=0")


@pytest.mark.parametrize("name", kill_runs.METHODS)
@pytest.mark.parametrize("count", [25])  # a tenth of the script
def test_stopped_at_random_moments(name: str, count: int) -> None:
    break_runs.import_all()
    Path("own.py").write_text(kill_runs.OWN)
    seed = random.SystemRandom().randrange(10**6)
    settings = (*kill_runs.SETTINGS, *kill_runs.DEVICES["cpu"], *SHORT)
    compared, wrong = kill_runs.lives(name, count, settings, random.Random(seed))
    assert not wrong and compared, f"seed {seed}: {wrong}"


def test_a_stop_behind_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that reaches a fork of these tests may go on in it."""
    monkeypatch.setattr("gruppo.cli.main", interrupted_while_freed)
    assert os.waitstatus_to_exitcode(os.waitpid(kill_runs.begin(), 0)[1]) == 0 and not kill_runs.words()


@pytest.mark.parametrize("name", ["ppo", pytest.param("lora", marks=pytest.mark.slow), "writers_best"])
@pytest.mark.parametrize("count", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_damaged_at_random(name: str, count: int) -> None:
    break_runs.import_all()
    seed = random.SystemRandom().randrange(10**6)
    break_runs.make(Path.cwd(), (name,))
    for run, file, way, outcome, words in break_runs.trials(count, seed, (name,)):
        assert outcome.islower(), f"seed {seed}: {outcome}: {run}, {file}, {way}\n{words}"


@pytest.mark.slow
@pytest.mark.parametrize("way", break_runs.WAYS)
@pytest.mark.parametrize("state", [break_runs.FINISHED, break_runs.STOPPED])
def test_every_file_in_every_way(way: str, state: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Not only at random: each file of a run folder once, except for those of a checkpoint, which are all alike."""
    home = _made(tmp_path_factory)
    os.chdir(home)
    right = break_runs.result(Path("runs/grpo"))
    draw = random.Random(f"{way} {state}")
    seen = set[str]()
    for path in break_runs.files(Path(f"runs/grpo-{state}")):
        file = path.relative_to(f"runs/grpo-{state}").as_posix()
        if path.parent.name in seen and path.parent.name.startswith("step-"):
            continue
        seen.add(path.parent.name)
        run = break_runs.copied("grpo", state, f"damaged-{way.replace(' ', '-')}-{state}")
        if break_runs.damaged(run / file, way, draw):
            outcome, words = break_runs.outcome(run, file, right)
            assert outcome.islower(), f"{outcome}: {file}\n{words}"


_MADE: list[Path] = []


def _made(factory: pytest.TempPathFactory) -> Path:
    """The runs to damage, made once for each process of the tests."""
    if not _MADE:
        _MADE.append(factory.mktemp("made"))
        break_runs.make(_MADE[0], ("grpo",))
    return _MADE[0]
