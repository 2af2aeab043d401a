"""What stopped a new user in the first hour, once each."""

from pathlib import Path

import pytest
from cli_runs import SMALL, refused, rows, trained

import gruppo
from gruppo.train.callbacks import Step

SCRIPT = """
import gruppo

def digits(task, text):
    return float(text.strip().isdigit())

gruppo.train(task="addition", reward=digits, steps=1)
"""


def test_a_script_that_trains_is_no_reward(capsys: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text(SCRIPT)
    said = refused(capsys, "train", *SMALL, "task.reward=./script.py:digits", "save.name=a")
    assert "starts gruppo when it is loaded" in said and "__main__" in said
    assert not any(Path("runs").glob("*"))  # nothing was started


def test_held_out_answers_that_were_not_judged_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.py").write_text(
        "def score(task, text):\n    if task.prompt.startswith('3'):\n        raise OSError('no')\n    return 1.0\n"
    )
    settings = ("task.reward=./bad.py:score", "max_failures=1.0", "accept=judged", "eval.prompts=60")
    run = trained("a", *settings)
    assert rows(run)[0]["held_out/failed"] > 0
    assert "answers to held-out prompts could not be judged" in capsys.readouterr().out


def test_a_reward_that_always_fails_is_not_to_be_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.py").write_text("def score(task, text):\n    return {}['x']\n")
    said = refused(capsys, "train", *SMALL, "task.reward=./bad.py:score")
    assert "0% of the answers got a reward" in said and "KeyError" in said and "accept=" not in said
    assert 'bad.py", line 2' in said and not any(Path("runs").glob("*"))


def test_a_step_is_shown_in_a_line() -> None:
    for step in gruppo.steps("grpo", task="addition", steps=1, prompts=2, samples=2, eval={"prompts": 2}):
        assert isinstance(step, Step) and repr(step).startswith("<step 1: reward ") and len(repr(step)) < 100


def test_an_open_iterator_is_named() -> None:
    first = gruppo.steps("grpo", steps=3, prompts=2, samples=2, eval={"prompts": 2}, save={"name": "a"})
    next(iter(first))
    with pytest.raises(ValueError, match="in use by this process itself: an iterator"):
        gruppo.resume("runs/a", quiet=True)
    first.close()  # type: ignore[attr-defined]
    assert gruppo.resume("runs/a", quiet=True).finished


@pytest.mark.parametrize("name", ["group", "group_size", "num_generations", "n"])
def test_other_names_of_the_group_size(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"a run has no '{name}' (that is samples here)" in refused(capsys, "train", f"{name}=4")
