"""What a run says when it cannot learn, and where a user goes wrong first."""

import json
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from train_runs import SMALL, gruppo, refused, train

from gruppo.api.runs import SavedRun
from gruppo.data import Episode, single_turn
from gruppo.methods.grpo import GRPO
from gruppo.stages import Ask, Sampling
from gruppo.stages.walk import Walk
from gruppo.tasks import Task, TaskConfig
from gruppo.tasks.judge import Judge
from gruppo.train import slow
from gruppo.train.config import SaveConfig
from gruppo.train.equal import examples, what_helps
from gruppo.train.folder import RunFolder
from gruppo.train.hidden import hidden, quoted
from gruppo.train.opening import told, what_is_saved
from gruppo.train.slow import told_if_slow
from gruppo.train.stop import Stop

QUICK = ("steps=1", "eval.prompts=2", "save.episodes_every=0")


def test_greedy_samples_are_refused_where_they_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """As samples=1 is: all answers to a prompt are one."""
    words = refused(capsys, "train", *SMALL, *QUICK, "sampling.temperature=0")
    assert "step zero, greedy: with sampling.temperature=0 the answers to a prompt are the same in 100%" in words
    assert "grpo compares the samples of one prompt, so it would learn nothing. Use sampling.temperature=1" in words
    assert "accept=greedy" in words
    assert train("b", *QUICK, "sampling.temperature=0", "accept=greedy") == 0
    for other in ("reinforce", "latr"):  # it has no groups; its branches differ
        assert train(other, *QUICK, "sampling.temperature=0", f"method={other}") == 0


@pytest.mark.parametrize(
    ("answer", "text", "quote"),
    [
        ("9", "98", ""),
        ("9", "-9, or 9.5, or 1,9", ""),
        ("9", "so x=9.", "so x=9."),
        ("Paris", "Parisians", ""),
        (
            "83",
            "To see which is larger, we look at them: 83, as\nI said before, of the",
            "…larger, we look at them: 83, as I said before, of th…",
        ),
        (r"\frac{1}{2}", r"It is \frac{1}{2}.", r"It is \frac{1}{2}."),
        ("", "anything", ""),
    ],
)
def test_a_reference_is_found_as_a_whole_and_quoted_with_its_surroundings(answer: str, text: str, quote: str) -> None:
    assert quoted(answer, text) == quote


def drawn_with(reward: float, uid: int = 0) -> Episode:
    logp = np.zeros(1, np.float32)
    return single_turn(uid, "t", "g", np.array([1]), np.array([2]), logp, version=0, reward={"task": reward})


def answered(prompt: str, reference: str, *texts: str, rewards: float = 0.0) -> str:
    """What a run says of these answers to one prompt."""
    ask = Ask(Task("t", prompt, reference, 1, "own"), len(texts))
    drawn = [replace(drawn_with(rewards, i), text=text, ask=ask) for i, text in enumerate(texts)]
    run = SimpleNamespace(
        tasks=SimpleNamespace(env=""),
        walk=Walk(GRPO, None),
        judge=Judge("gruppo.tasks.scorers:Exact"),
        config=SimpleNamespace(save=SaveConfig()),
        where="runs/x",
    )
    return hidden(run, drawn)  # type: ignore[arg-type]


def test_a_right_answer_in_a_sentence_is_named() -> None:
    words = answered("6+6=", "12", *["It is 12."] * 2, *["13"] * 10)
    assert (
        "no answer is right, but 2 of 12 contain the reference, such as '12' in 'It is 12.'. The scorer (exact)"
        in words
    )
    assert "may want it in another form" in words and "choose another task.reward, such as numeric or math" in words
    assert answered("6+6=", "12", "It is 12.", *["13"] * 10) == "", "one may be chance"
    assert answered("6+6=", "12", *["It is 12."] * 2, *["13"] * 20) == "", "and two of many"
    assert answered("6+6=", "1", "12", "12", "12") == "", "another number"
    assert answered("Is 83 or 38 larger?", "83", *["83 and 38"] * 3) == "", "an echo of the prompt"
    assert answered("6+6=", "12", *["It is 12."] * 3, rewards=1.0) == "", "some are right"


@pytest.mark.parametrize(
    ("rewards", "settings", "says"),
    [
        ((0.0, 0.0), {}, "Use more samples (samples=16)."),
        ((0.0, 0.0), {"level": "3"}, "Use an easier task.level or more samples (samples=16)."),
        ((1.0, 1.0), {"level": "3"}, "Use a harder task.level or more samples (samples=16)."),
        ((1.0, 0.0), {"level": "2"}, "Use an easier or harder task.level or more samples (samples=16)."),
        ((1.0, 1.0), {"name": "./mine.jsonl"}, "Use more samples (samples=16)."),
        ((0.0, 0.0), {"name": "./mine.jsonl"}, "Look at gruppo episodes runs/x: does the reward accept any of"),
        ((1e9, 1e9), {"reward": "./mine.py:score"}, "Does the reward look at the answer, or is it a constant? If it"),
        ((1.0, 1.0), {"reward": "mine:score", "level": "3"}, "Does the reward look at the answer"),
        ((1.0, 1.0), {"name": "./mine.py:make"}, "Does the reward look at the answer"),
        ((1.0, 1.0), {"reward": "numeric", "level": "3"}, "Use a harder task.level or"),
        ((2.0, 1.0), {"reward": "./mine.py:score", "level": "3"}, "Use an easier or harder task.level or"),
        ((0.0, 0.0), {"reward": "./mine.py:score"}, "Look at gruppo episodes runs/x: does the reward accept any of"),
    ],
)
def test_equal_rewards_have_remedies_that_can_apply(
    rewards: tuple[float, ...], settings: dict[str, Any], says: str
) -> None:
    task = TaskConfig(**settings)
    tasks = SimpleNamespace(env="", levels=(int(task.level or 1),))
    for temperature in (1.0, 0.5):
        run = SimpleNamespace(
            config=SimpleNamespace(task=task, samples=8, save=SaveConfig()),
            tasks=tasks,
            sampling=Sampling(temperature=temperature),
            where="runs/x",
        )
        words = what_helps(run, [drawn_with(r) for r in rewards])  # type: ignore[arg-type]
        assert ("sampling.temperature=1" in words) == (temperature != 1)
        assert temperature != 1 or words.startswith(says), words


def test_own_data_without_levels_is_not_told_to_change_the_level(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data.jsonl").write_text("\n".join(json.dumps({"prompt": f"{a}+{a}=", "answer": "x"}) for a in range(20)))
    assert train("b", *QUICK, "task=./data.jsonl", "task.reward=exact", "steps=3", "prompts=1", "samples=2") == 0
    words = capsys.readouterr().out
    for begin in ("every reward of the first batch is 0: nothing can", "every group of the last three steps has equal"):
        [line] = [line for line in words.splitlines() if begin in line]
        assert "does the reward accept any of these answers? If it may, use more samples (samples=4)." in line


def test_the_answers_of_a_first_batch_without_a_reward_are_shown_and_stored(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data.jsonl").write_text("\n".join(json.dumps({"prompt": f"{a}+{a}=", "answer": "x"}) for a in range(20)))
    settings = ("task=./data.jsonl", "task.reward=exact", "steps=3", "prompts=1", "samples=2", "save.episodes_every=3")
    assert train("it's mine", *QUICK, *settings) == 0
    words = capsys.readouterr().out
    [line] = [line for line in words.splitlines() if "every reward of the first batch is 0" in line]
    assert "Look at gruppo episodes 'runs/it'\"'\"'s mine': does the reward" in line
    assert re.search(r"(Two|One) of the answers: '[^']+', wanted 'x'", line)
    run = RunFolder(Path("runs/it's mine"))
    assert run.episode_steps() == [1, 3] and gruppo("episodes", str(run.path), "--step", "1") == 0
    assert {e.text for e in run.read_episodes(1)} & set(re.findall(r"'([^']+)', wanted", line))
    assert train("b", *QUICK, *settings[:-1]) == 0  # with save.episodes_every=0
    words = capsys.readouterr().out
    assert "gruppo episodes" not in words.split("every reward of the first batch")[1].splitlines()[0]
    assert "Look at the answers, which save.episodes_every=1 stores: does" in words
    assert not Path("runs/b/episodes").exists()


def test_examples_are_wrong_answers_shortened_in_their_middle() -> None:
    ask = Ask(Task("t", "6+6=", "12", 1, "own"), 2)
    run: Any = SimpleNamespace(tasks=SimpleNamespace(env=""), walk=Walk(GRPO, None))
    one, two = (replace(drawn_with(0.0, i), text=t, ask=ask) for i, t in enumerate(("a " * 80, " \n")))
    said = examples(run, [one, two, one])
    assert said.endswith("a', wanted '12'; an empty one, wanted '12'.") and " … " in said and len(said) < 140
    assert said.startswith("Two of the answers: 'a a") and examples(run, [one]).startswith("One of the answers: ")
    assert examples(run, [replace(one, reward={"task": 1.0})]) == ""
    run.tasks.env = "household"
    assert examples(run, [one]) == ""


def test_a_busy_machine_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    assert train("a", *QUICK) == 0
    assert "other processes use the cores" not in capsys.readouterr().out  # one thread waits for nobody
    assert train("b", *QUICK, "threads=2") == 0
    assert "other processes use the cores (load 99.0 on" in capsys.readouterr().out


def test_a_score_is_not_called_an_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    Path("reward.py").write_text("def score(task, text):\n    return 3.0 + len(text)")
    assert train("b", *QUICK, "task.reward=./reward.py:score") == 0
    assert "held-out score " in (words := capsys.readouterr().out) and "in 1 step, " in words


def test_a_score_between_0_and_1_is_not_called_an_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    Path("reward.py").write_text("def score(task, text):\n    return 0.1 * len(text)")
    assert train("b", *QUICK, "task.reward=./reward.py:score", "save.best=true") == 0
    assert gruppo("eval", "runs/b") == 0
    words = capsys.readouterr().out + repr(SavedRun("runs/b"))
    assert words.count("held-out score ") == 3 and "  score " in words and "runs/b on addition: score " in words
    assert "accuracy" not in words


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("train", "method=./own.py"), "It has: MINE. Write method=./own.py:NAME."),
        (("eval", "runs/nothing"), "runs/nothing: there is no such run or folder, so there is nothing to evaluate"),
        (("eval", "runs/frist"), "there is no such run or folder (nearest: first)"),
        (("eval", "runs/begun/policy"), "runs/begun has no policy yet"),
        (("eval", "nothing"), "neither a built-in name nor a folder"),
        (("train", "save.every=5"), "(nearest: save.checkpoint_every, save.episodes_every)"),
        (("train", "task=guess", "task.options.turns=many"), "task.options.turns='many' is no whole number >= 1"),
        (("train", "method=latr", "method.rollout.lookaheads=4,2"), "write lookaheads=2,4."),
        (("train", "method=latr", "method.rollout.eta=then({})"), "'then({})' says nothing about any step"),
        (
            ("train", "method=latr", "method.rollout.eta=then({})"),
            "Write then({0: linear(0.0, 1.0, steps=20), 20: 1.0})",
        ),
        (("train", "method=spiral", "task=guess"), "guess has one seat"),
        (("tarin",), "there is no command 'tarin'. Did you mean train?"),
        (("train", "--method", "dapo"), "Write method=dapo."),
        (("train", "run.toml"), "For a run file: --config run.toml."),
        (("train", "num_generations=4"), "that is samples here"),
        (("train", "learning_rate=1e-5"), "that is optim.lr here"),
    ],
)
def test_wrong_names(argv: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.py").write_text("from gruppo.methods.grpo import GRPO\nMINE = GRPO.but(name='mine')\n")
    for name in ("first", "begun"):
        Path(f"runs/{name}").mkdir(parents=True)
    for name in ("config.toml", "environment.json"):
        Path(f"runs/begun/{name}").write_text("")
    assert gruppo(*argv) == 2
    assert says in capsys.readouterr().err


def test_a_model_of_worlds_on_sums_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("b", *QUICK, "model=tiny-agent", "task=addition") == 0
    assert "was never shown a task such as addition" in capsys.readouterr().out


def test_an_edited_configuration_of_the_wrong_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("b", *QUICK) == 0
    path = Path("runs/b/config.toml")
    for before, after, says in (
        ('steps = ""', "steps = 40", "steps=40 is not text"),
        ("seed = 0", 'seed = "x"', "seed='x' is not a number"),
        ("best = false", "best = 3", "best=3 is not true or false"),
    ):
        text = path.read_text()
        assert before in text, before
        path.write_text(text.replace(before, after))
        assert gruppo("train", "--resume", "runs/b", "--allow-changes") == 2
        words = capsys.readouterr().err
        assert says in words and "runs/b/config.toml" in words
        path.write_text(text)


def test_only_slow_work_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "PATIENCE", 0.2)
    said: list[str] = []
    with told_if_slow(said.append, "quick"):
        pass
    with told_if_slow(said.append, "slow"):
        for _ in range(3000):
            if said:
                break
            time.sleep(0.01)
    time.sleep(0.3)
    assert said == ["slow"]


def test_a_run_says_what_it_is_doing_where_that_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run whose work all takes long, in order; of a quick one, none of it."""
    begin = ("run folder", "loading the model", "checking step zero", "evaluating after", "saving step", "saving the p")
    shown: list[list[str]] = []
    for patience in (3.0, 0.0):
        monkeypatch.setattr(slow, "PATIENCE", patience)
        assert train(f"a{patience}", *QUICK, "prompts=2", "samples=2") == 0
        words = capsys.readouterr().out.splitlines()
        shown.append([b for line in words for b in begin if line.startswith(b)])
        told = "checking step zero, before anything is learned: 4 answers" in words
        assert told == ("evaluating after step 1: 2 held-out answers" in words) == (patience == 0)
    assert shown[0] == ["run folder"] and list(dict.fromkeys(shown[1])) == list(begin)


@pytest.mark.parametrize("last", [False, True])
def test_a_signal_is_told_what_it_waits_for(last: bool, capfd: pytest.CaptureFixture[str]) -> None:
    with Stop() as stop:
        stop.work = "saving the policy: no step is left" if last else stop.work
        os.kill(os.getpid(), signal.SIGTERM)
    words = capfd.readouterr().err
    assert ("saving the policy: no step is left; a second signal stops at once" in words) == last
    assert ("finishing this step, then saving; a second signal stops at once" in words) != last


@pytest.mark.parametrize("error", [ValueError("other data"), OSError(28, "full"), RuntimeError("tool")])
def test_after_an_error_what_to_mend_comes_before_the_command(tmp_path: Path, error: Exception) -> None:
    """The command alone meets the same error; after a signal, and where nothing was started, it does not."""
    folder = RunFolder(tmp_path / "a")
    for started in (False, True):
        if started:
            folder.path.mkdir()
            folder["config.toml"].touch()
        with pytest.raises((ValueError, RuntimeError)) as caught, told(folder, Stop()):
            raise error
        words = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())]).splitlines()[-1]
        assert ("Mend that first" in words) == started == ("--resume" in words)
        assert words.startswith("Mend that first" if started else "Nothing was started: once that is fixed")
    assert "Mend" not in what_is_saved(folder) and "--resume" in what_is_saved(folder)


@pytest.mark.parametrize(("settings", "measure"), [
    (("task=knapsack", "model=tiny-random"), "score"),  # all of them 0
    (("task=knapsack", "task.reward=gruppo.tasks.knapsack:score_best"), "accuracy"),
    (("task=mix:addition@1+knapsack", "model=tiny-random"), "score"),
    (("task=gruppo.lab.tries:five", "method=ufo", "model=tiny-agent", "prompts=4", "samples=4"), "accuracy"),
], ids=str)  # fmt: skip
def test_the_task_says_what_its_mean_is_called(settings: tuple[str, ...], measure: str, capsys: Any) -> None:
    assert train("b", *QUICK, *settings) == 0
    assert f"held-out {measure} " in capsys.readouterr().out
    assert gruppo("eval", "runs/b", "--json") == 0
    assert f'"measure": "{measure}"' in capsys.readouterr().out
