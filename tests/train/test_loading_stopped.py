"""A signal before the first step ends the run as soon as Python sees it: a true sentence, 130 or 143, no traceback."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from train_runs import (
    SMALL,
    contents,
    gruppo,
    interrupted_while_freed,
    metrics,
    resume_command,
    said,
    same_run,
    straight,
    train,
    wait_for,
)

from gruppo.train import stop as module
from gruppo.train import trainer
from gruppo.train.folder import RunFolder
from gruppo.train.lock import Lock
from gruppo.train.stop import Stop, Stopped

QUICK = ("steps=2", "eval.prompts=2", "save.episodes_every=2")
INT, TERM = signal.SIGINT, signal.SIGTERM
NOTHING = "gruppo: stopped at once. Nothing was trained yet: start it again."
BLOCKS = "open('gate').read()\n"  # until somebody has opened the pipe for writing, and closed it again
REWARD = "def score(task, text):\n    return 0.0\n"


# in this process


def interrupting(number: int, plain: Callable[..., Any]) -> Callable[..., Any]:
    def patched(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(number)
        return plain(*arguments, **options)

    return patched


MOMENTS = {
    "folder": (trainer, "new_folder"),
    "lock": (Lock, "__enter__"),
    "trainer": (trainer, "Run"),
    "tasks": (trainer.Run, "__init__"),
    "step zero": (trainer, "step_zero"),
    "held out": (trainer, "evaluate"),
    "callbacks": (trainer.Trainer, "_begin_callbacks"),
    "display": (trainer.Display, "start"),
}


@pytest.mark.parametrize(("moment", "number"), [(m, (INT, TERM)[i % 2]) for i, m in enumerate(MOMENTS)])
def test_one_signal_before_the_first_step(
    moment: str, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, name = MOMENTS[moment]
    with monkeypatch.context() as patch:
        patch.setattr(target, name, interrupting(number, getattr(target, name)))
        patch.setattr(trainer, "train_step", lambda *_: pytest.fail("a step was begun"))
        assert train("b", *QUICK) == 128 + number
    words = capsys.readouterr().err
    assert "finishing" not in words and "fixed" not in words and "Traceback" not in words
    if moment in ("held out", "callbacks", "display"):  # then there is a run, without a checkpoint
        assert "gruppo: stopped at once. No step is saved yet, so it begins again: go on with  gruppo train" in words
        assert gruppo(*resume_command(words)) == 0
    else:
        assert NOTHING in words and not contents(Path("runs")) and not list(Path("runs").glob("*"))
        return
    straight(*QUICK)
    same_run("a", "b")


@pytest.mark.parametrize(("moment", "number"), [("lock", INT), ("load", TERM), ("tasks", INT)])
def test_one_signal_while_a_run_is_resumed(
    moment: str, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder stays as it was, and in it the step that is saved."""
    half(QUICK)
    before = everything("runs/b")
    target, name = {**MOMENTS, "load": (trainer, "load_checkpoint")}[moment]
    with monkeypatch.context() as patch:
        patch.setattr(target, name, interrupting(number, getattr(target, name)))
        capsys.readouterr()
        assert gruppo("train", "--resume", "runs/b") == 128 + number
    words = capsys.readouterr().err
    assert "gruppo: stopped at once. Step 1 is saved: go on with  gruppo train --resume runs/b" in words
    assert everything("runs/b") == before


def half(settings: tuple[str, ...]) -> None:
    """runs/b, after one of two steps."""
    assert train("b", *settings, "save.checkpoint_every=1", "save.keep=2") == 0
    shutil.rmtree("runs/b/checkpoints/step-000002")
    Path("runs/b/summary.json").unlink()


def everything(folder: str) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file() and p.name != ".lock"}


@pytest.mark.parametrize("caught", [ValueError, OSError, RuntimeError])
def test_an_error_made_of_the_interrupt_is_none(
    caught: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """safetensors, interrupted in the middle of a file, says that the file cannot be read."""

    def load(*_: Any) -> None:
        try:
            signal.raise_signal(TERM)
        except KeyboardInterrupt:
            raise caught("it cannot be read") from None

    monkeypatch.setattr(trainer, "Run", load)
    assert train("b", *QUICK) == 143
    words = capsys.readouterr().err
    assert NOTHING in words and "cannot be read" not in words


def test_an_interrupt_that_is_swallowed_ends_the_run_before_its_first_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = trainer.Run

    def load(*arguments: Any) -> Any:
        with suppress(BaseException):
            signal.raise_signal(INT)
        return plain(*arguments)

    monkeypatch.setattr(trainer, "Run", load)
    monkeypatch.setattr(trainer, "train_step", lambda *_: pytest.fail("a step was begun"))
    assert train("b", *QUICK) == 130
    assert "gruppo: stopped at once. No step is saved yet" in capsys.readouterr().err


def test_a_notebook_outlives_two_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", None)
    monkeypatch.setattr(module.os, "_exit", lambda code: pytest.fail("the kernel was ended"))
    with pytest.raises(Stopped, match="the truth"), Stop(lambda: "the truth"):
        try:
            signal.raise_signal(INT)
        finally:
            signal.raise_signal(INT)


def test_a_lost_interrupt_is_sent_once_more_while_loading() -> None:
    class Noisy:
        def __del__(self) -> None:
            signal.raise_signal(TERM)

    with pytest.raises(Stopped) as found, Stop(lambda: "the truth") as stop:
        noisy = Noisy()
        del noisy
        end = time.monotonic() + 100
        while time.monotonic() < end:
            pass
    assert stop.asked == 1 and found.value.code == 143


# pairs of signals, in a fork


@pytest.fixture
def forked() -> Iterator[Callable[..., int]]:
    """`forked(*argv)`: the command line in a fork, its words in said.txt; it is killed at the end of the test."""
    pids = list[int]()

    def start(*argv: str, patch: Callable[[], None] = lambda: None) -> int:
        Path("said.txt").write_text("")
        pid = os.fork()
        if pid:
            pids.append(pid)
            return pid
        code = 99
        try:
            words = os.open("said.txt", os.O_WRONLY | os.O_APPEND)
            for stream in (1, 2):
                os.dup2(words, stream)
            sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1, closefd=False) for stream in (1, 2))
            signal.signal(INT, signal.default_int_handler)
            patch()
            sys.argv = ["gruppo", *argv]
            code = gruppo_process()
        except BaseException as error:
            print(f"Traceback: {error!r}", file=sys.stderr)
        finally:
            os._exit(code)

    yield start
    for pid in pids:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.mark.parametrize(("first", "second"), [(INT, INT), (TERM, INT), (TERM, TERM)])
def test_a_second_signal_behind_the_last_words(first: int, second: int, forked: Any) -> None:
    """They are on their way to the command line, which has not said them yet."""
    from gruppo import cli

    def patch() -> None:
        where = (trainer.Trainer, "_begin_callbacks")
        setattr(*where, interrupting(first, getattr(*where)))
        cli._stopped = interrupting(second, cli._stopped)

    assert code_of(forked("train", *SMALL, *QUICK, "save.name=b", patch=patch)) == 128 + first, said()
    assert said().count("gruppo: stopped at once. No step is saved yet") == 1 and "Traceback" not in said()


def test_a_signal_before_the_runs_of_a_comparison(forked: Any) -> None:
    """Its words come from within, where no signal is deferred yet."""
    from gruppo.lab.compare import processes

    def patch() -> None:
        processes.refuse_engine = interrupting(TERM, processes.refuse_engine)

    assert code_of(forked("compare", "grpo", "rloo", "--seeds", "1", *QUICK, "save.name=c", patch=patch)) == 143
    assert "stopped at once. What is saved remains; the same command goes on:  gruppo compare grpo rloo" in said()


def test_a_signal_in_the_middle_of_a_class(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Python 3.11 makes a RuntimeError of what interrupts `__set_name__`."""

    class Slow:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "train", lambda *_, **__: type("Made", (), {"field": Slow()}))
    assert train("b", *QUICK) == 130
    assert capsys.readouterr().err.endswith("gruppo: stopped at once.\n")


def test_a_signal_while_everything_is_freed_at_the_end(forked: Any) -> None:
    """Python sees it at the next call: that one is still in `main`."""
    from gruppo.cli import commands

    def patch() -> None:
        commands.methods = interrupted_while_freed

    assert code_of(forked("methods", patch=patch)) == 130
    assert said() == "gruppo: stopped at once.\n"


def test_without_a_stdout_it_ends_as_well(forked: Any) -> None:
    """`gruppo methods >&-`, or a daemon."""
    from gruppo.cli import commands

    def patch() -> None:
        commands.methods = lambda _: 0
        sys.stdout = None

    assert (code_of(forked("methods", patch=patch)), said()) == (0, "")


def gruppo_process() -> int:
    from gruppo.cli import main

    return main()


def code_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def reached() -> bool:
    """Whether somebody waits at the pipe. From then on they wait for what we write."""
    try:
        os.open("gate", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    return True


def blocking(where: str) -> tuple[str, ...]:
    """Settings of a run that waits at the pipe while it loads."""
    os.mkfifo("gate")
    if where == "task":
        Path("mine.py").write_text(BLOCKS)
        return ("task=./mine.py:make",)
    if where == "model":
        return ()
    Path("reward.py").write_text(BLOCKS + REWARD if where == "reward" else REWARD.replace("    ", f"    {BLOCKS}    "))
    return ("task.reward=./reward.py:score",)


def slow_model() -> None:
    from gruppo.train import run

    plain = run.load_policy

    def load_policy(*arguments: Any) -> Any:
        Path("gate").read_text()
        return plain(*arguments)

    run.load_policy = load_policy


@pytest.mark.parametrize("numbers", [(INT,), (TERM,), (INT, INT), (TERM, TERM), (TERM, INT, INT, TERM)])
@pytest.mark.parametrize("where", ["arguments", "import_module", "train", "_failed"])
def test_signals_before_the_run_is_reached(where: str, numbers: tuple[int, ...], forked: Any) -> None:
    """While torch is imported, say: before a run has its own handlers, or after it has failed to begin."""
    from gruppo import cli
    from gruppo.cli import commands

    def several(*_: Any) -> Any:
        try:
            signal.raise_signal(numbers[0])
        finally:  # the first is on its way
            for number in numbers[1:]:
                signal.raise_signal(number)

    def patch() -> None:
        setattr(commands if where == "train" else cli, where, several)

    settings = ("task=no-such-task",) if where == "_failed" else ()
    assert code_of(forked("train", *SMALL, *QUICK, *settings, "save.name=b", patch=patch)) == 128 + numbers[0], said()
    assert said().strip() == "gruppo: stopped at once."


PAIRS = [(INT, None), (TERM, None), (INT, INT), (TERM, INT), (TERM, TERM)]
# Every pair while the task loads, and every other place with one signal and with two: the handler does not know where
# the run waits. The rest with the slow tests.
GRID = [
    pytest.param(where, *pair, marks=() if where == "task" or pair in ((INT, None), (TERM, TERM)) else pytest.mark.slow)
    for where in ("task", "model", "reward", "score")
    for pair in PAIRS
]


@pytest.mark.parametrize(("where", "first", "second"), GRID)
def test_a_run_that_waits_while_it_loads(where: str, first: int, second: int | None, forked: Any) -> None:
    settings = blocking(where)
    patch = {"patch": slow_model} if where == "model" else {}
    pid = forked("train", *SMALL, *QUICK, *settings, "save.name=b", **patch)
    wait_for(reached)
    os.kill(pid, first)
    if second is not None:
        os.kill(pid, second)
    code = code_of(pid)
    # Two that arrive together are seen in the order of their numbers: then SIGINT was the first one.
    assert code in {128 + first, 128 + min(first, second or first)}
    words = said()
    assert words.count(NOTHING) == 1 and "Traceback" not in words
    assert "finishing" not in words and "fixed" not in words and not list(Path("runs").glob("*"))


CLEANING = {
    "folder": (RunFolder, "drop_if_empty"),
    "lock": (Lock, "__exit__"),
    "last words": (Stop, "ended"),
    "display": (trainer.Display, "__exit__"),
    "callbacks": (trainer.Trainer, "_end_callbacks"),
    "run": (trainer.Run, "close"),
}


# Each moment in a new run or in a resumed one, and with the slow tests in both: what is cleaned up is the same.
BOTH = [
    pytest.param(moment, resumed, marks=() if i % 2 == resumed else pytest.mark.slow)
    for i, moment in enumerate(CLEANING)
    for resumed in (False, True)
]


@pytest.mark.parametrize(("moment", "resumed"), BOTH)
def test_a_second_signal_while_the_first_is_obeyed(moment: str, resumed: bool, forked: Any) -> None:
    """The run has passed step zero, or is resumed; wherever the second one arrives, the end is the same."""

    def patch() -> None:
        target, name = CLEANING[moment]
        setattr(target, name, interrupting(INT, getattr(target, name)))
        where = (trainer.Trainer, "_begin_callbacks")
        setattr(*where, interrupting(TERM, getattr(*where)))

    if resumed:
        half(QUICK)
    last = metrics("b")
    pid = forked(
        *(("train", "--resume", "runs/b") if resumed else ("train", *SMALL, *QUICK, "save.name=b")), patch=patch
    )
    assert code_of(pid) == 143, said()
    words = said()
    saved = "Step 1 is saved" if resumed else "No step is saved yet, so it begins again"
    assert words.count(f"gruppo: stopped at once. {saved}: go on with  gruppo train --resume runs/b") == 1
    assert "Traceback" not in words and "finishing" not in words and "fixed" not in words
    assert metrics("b") == [row for row in last if row["step"] < 2]
