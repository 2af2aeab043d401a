"""Ctrl-C once: finish the step, save, say how to go on. Twice: stop at once."""

import asyncio
import gc
import signal
import threading
import time
from pathlib import Path

import pytest
from train_runs import (
    SLOW_REWARD,
    SLOWLY,
    SMALL,
    checkpoint,
    gruppo,
    hold_from,
    metrics,
    release,
    resume_command,
    said,
    same_run,
    saved,
    start,
    straight,
    train,
    wait_for,
)

from gruppo.train.stop import Stop, Stopped
from gruppo.train.waiting import Loop

SETTINGS = ("steps=6", "save.checkpoint_every=3", *SLOWLY)


def test_once_finishes_the_step_and_names_the_command() -> None:
    hold_from(checkpoint("b", 3))
    process = start("train", *SMALL, *SETTINGS, "save.name=b")
    wait_for(checkpoint("b", 3).is_dir, process)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: "Ctrl-C again" in said(), process)
    release()
    assert process.wait(120) == 0
    words, done = said(), metrics("b")[-1]["step"]
    assert done in (3, 4)  # the third may still be ending when its checkpoint is there
    assert "finishing this step, then saving; Ctrl-C again stops at once" in words
    assert f"stopped after step {done} of 6. Step {done} is saved: go on with  gruppo train --resume runs/b" in words
    assert "Traceback" not in words and checkpoint("b", done).is_dir()
    assert gruppo(*resume_command(words)) == 0
    straight(*SETTINGS, reward=SLOW_REWARD)
    same_run("a", "b")


def test_twice_stops_at_once_and_the_last_checkpoint_stands() -> None:
    hold_from(checkpoint("b", 3))  # so that the second Ctrl-C comes before the step ends
    process = start("train", *SMALL, *SETTINGS, "save.name=b")
    wait_for(checkpoint("b", 3).is_dir, process)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: "Ctrl-C again" in said(), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    release()
    words = said()
    assert "gruppo: stopped at once. Step 3 is saved: go on with  gruppo train --resume runs/b" in words
    assert "Traceback" not in words and saved("b") == ["step-000003"]
    assert gruppo(*resume_command(words)) == 0
    straight(*SETTINGS, reward=SLOW_REWARD)
    same_run("a", "b")


def test_a_loop_ends_although_a_signal_has_lost_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tasks, where Python may raise KeyboardInterrupt, the next one is in nobody's hands."""
    monkeypatch.setattr("gruppo.train.waiting.GRACE", 0.1)
    waits = Loop()
    waits(asyncio.sleep(0))
    inner = waits._runner.get_loop()
    lost, other = inner.create_task(asyncio.sleep(0)), inner.create_task(asyncio.sleep(1000))
    inner._ready.popleft()  # type: ignore[attr-defined]
    begun = time.monotonic()
    waits.close()
    assert not lost.done() and other.cancelled() and time.monotonic() - begun < 60
    lost.get_coro().close()  # type: ignore[union-attr]


def test_a_signal_while_tasks_are_cancelled_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """The second Ctrl-C may end a task that is just being cancelled; nobody asks for its exception."""
    loop, left = Loop(), list[asyncio.Task[None]]()

    async def interrupted() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    async def begin() -> None:
        left.append(asyncio.create_task(interrupted()))
        await asyncio.sleep(0)

    loop(begin())
    with pytest.raises(KeyboardInterrupt):
        loop.close()
    left.clear()
    gc.collect()
    assert not caplog.records


def test_a_folder_with_a_space_is_quoted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from gruppo.train import trainer

    plain = trainer.train_step

    async def train_step(run: object, step: int) -> object:
        if step == 0 and not saved("my run"):
            signal.raise_signal(signal.SIGINT)
        return await plain(run, step)  # type: ignore[arg-type]

    monkeypatch.setattr(trainer, "train_step", train_step)
    assert train("my run", "steps=2", "eval.prompts=2") == 0
    assert gruppo(*resume_command(capsys.readouterr().out)) == 0
    assert metrics("my run")[-1]["step"] == 2


def test_during_the_imports() -> None:
    process = start("train", *SMALL, "steps=1", "save.name=c", forked=False)
    wait_for(lambda: "libtorch" in Path(f"/proc/{process.pid}/maps").read_text(), process)
    process.send_signal(signal.SIGINT)
    code = process.wait(120)
    assert code in (130, -signal.SIGINT, 0) and "Traceback" not in said()
    if code:
        assert not Path("runs").exists()
    else:  # it came after the imports, or the shell that started the tests ignores it: the run is whole
        assert gruppo("train", "--resume", "runs/c") == 0 and metrics("c")[-1]["step"] == 1


class Noisy:
    """A destructor in which a second signal arrives: Python drops what it raises."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def lost_once() -> Stop:
    """A run whose second signal is lost, after the interrupt that it must be given all the same."""
    with pytest.raises(KeyboardInterrupt), Stop() as stop:
        signal.raise_signal(signal.SIGINT)
        noisy = Noisy()
        del noisy
        end = time.monotonic() + 100
        while time.monotonic() < end:
            pass
    return stop


def test_an_interrupt_that_is_lost_in_a_destructor_is_sent_once_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert lost_once().asked == 2 and "Traceback" not in capsys.readouterr().err


def test_it_is_sent_again_also_if_it_comes_while_it_is_being_sent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the timer was faster than its own `start`."""
    plain, early = threading.Timer.start, iter([True, True])

    def start(self: threading.Timer) -> None:
        plain(self)
        if next(early, False):
            self.join()

    monkeypatch.setattr(threading.Timer, "start", start)
    assert lost_once().asked == 2 and "ignored" not in capsys.readouterr().err


def test_from_python_it_is_an_interrupt_with_words() -> None:
    with pytest.raises(KeyboardInterrupt, match="the truth") as found, Stop(lambda: "the truth"):
        signal.raise_signal(signal.SIGTERM)
    assert isinstance(found.value, Stopped) and found.value.code == 143


def test_an_interrupt_that_has_words_keeps_them() -> None:
    with pytest.raises(Stopped, match="it goes on") as found, Stop(lambda: ""):
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("it goes on") from None
    assert found.value.code == 143
