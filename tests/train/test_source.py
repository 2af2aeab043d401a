"""Sampling ahead of learning: an exact lag, the same bits whatever the clock does, and nothing lost in a checkpoint."""

import asyncio
import signal
import threading
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_resume_killed import killed_and_resumed
from train_runs import (
    SLOW_REWARD,
    SLOWLY,
    SMALL,
    checkpoint,
    gruppo,
    hold_from,
    metrics,
    refused,
    said,
    same_run,
    saved,
    start,
    train,
    wait_for,
)

from gruppo.cli import overrides
from gruppo.data.store import load_episodes
from gruppo.policies import learned_state, load_learned
from gruppo.stages import Context, Memory
from gruppo.train import loop, trainer
from gruppo.train.checkpoint import load_checkpoint
from gruppo.train.config import RunConfig
from gruppo.train.learner import Tally, sampler_gap
from gruppo.train.run import Run
from gruppo.train.source import Ahead, Drawn, InTurn, Now, draw

TINY = ("prompts=3", "samples=3", "threads=1", "save.tensorboard=no", "eval.every=0")


def run_of(*settings: str) -> Run:
    words: list[str] = []
    run = Run(overrides.apply(RunConfig(), (*TINY, *settings)), words.append)
    run.words = words  # type: ignore[attr-defined]
    return run


def taken(run: Run, steps: int) -> list[Any]:
    """The records of so many steps, in one event loop."""

    async def all_of_them() -> list[Any]:
        return [await loop.train_step(run, step) for step in range(steps)]

    try:
        return asyncio.run(all_of_them())
    finally:
        run.close()


def versions(drawn: Any) -> set[int]:
    return {int(v) for e in drawn for s in e.sequences for v in s.version[s.version >= 0]}


def figures(record: Any) -> dict[str, float]:
    return {name: value for name, value in record.facts.items() if "second" not in name}


def same(left: Run, right: Run) -> None:
    for role, model in left.models.items():
        for a, b in zip(model.parameters(), right.models[role].parameters(), strict=True):
            assert torch.equal(a, b), role


# laws


def test_no_version_ahead_is_now_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of its own, a task and a thread change nothing."""
    settings = ("steps=4", "save.checkpoint_every=2")
    assert train("a", *settings) == 0
    made: list[Ahead] = []
    monkeypatch.setattr("gruppo.train.run.source_of", lambda run: made.append(Ahead(run, 0)) or made[-1])
    assert train("b", *settings) == 0
    assert made and made[0].samplers[0].engine.sampled > 0
    same_run("a", "b", keep=2)


class Serial(Now):
    """The same lag without copies, tasks and threads: what was true then is put back for the draw."""

    def __init__(self, run: Run, lag: int) -> None:
        super().__init__(run)
        self.lag, self.past = lag, dict[int, Any]()

    async def take(self, ctx: Context) -> Drawn:
        run, roles = self.run, [r for r in self.run.sampled() if self.run.changes(r)]
        now = {r: deepcopy(learned_state(run.models[r])) for r in roles}
        self.past[ctx.step] = run.version, now, deepcopy(run.memory.plain), list(run.replay)
        version, weights, memory, store = self.past[max(ctx.step - self.lag, 0)]
        for role in roles:
            load_learned(run.models[role], weights[role])
        run.engine.sync(version, run.models)
        then = replace(run.bare_context(ctx.step), version=version, memory=Memory(memory), cast=run.models)
        then.engine, then.tokenizer = run.engine, run.tokenizer
        walk = replace(run.walk, current=lambda: None)
        found = await draw(walk, walk.opened(then, store))
        for role in roles:
            load_learned(run.models[role], now[role])
        run.engine.sync(run.version, run.models)
        return found.given_to(ctx)


CASES = [
    ("method=grpo_tis", "regime.sampler_noise=0.1", "regime.flip=0.5", "regime.flip_every=2"),
    ("method=dapo", "task.level=1"),  # draws again
    ("method=spo_single", "task.train_size=6"),  # a memory and a replay that choose tasks
    ("method=t_ppo",),  # answers go on in a later step
    ("method=igpo_gain", "task=search", "prompts=2"),  # reads the policy while it draws
    ("method=archer", "task=guess", "method.update.critic_epochs=1", "method.update.utterances=4"),  # the update draws
]


# A memory, open answers and draws of the update are what a lag could lose; the others with the slow tests.
OFTEN = ("method=spo_single", "method=t_ppo", "method=archer")
LAGS = [
    pytest.param(c, id=c[0].removeprefix("method="), marks=() if c[0] in OFTEN else pytest.mark.slow) for c in CASES
]


@pytest.mark.parametrize("case", LAGS)
def test_a_serial_run_with_the_same_lag_gives_the_same_bits(case: tuple[str, ...]) -> None:
    both = [run_of(*case, "steps=5", f"ahead={ahead}") for ahead in (2, 0)]
    both[1].source = Serial(both[1], 2)
    left, right = ([figures(r) for r in taken(run, 5)] for run in both)
    assert left == right
    same(*both)


def test_a_draw_keeps_the_memory_and_the_weights_of_its_beginning() -> None:
    run = run_of("ahead=1")
    try:
        with run.memory.writing() as memory:
            memory["table"] = {"a": [1]}
        sampler = run.source.samplers[0]  # type: ignore[attr-defined]
        _, ctx = sampler.opened(3, [], None)
        with run.memory.writing() as memory:
            memory["table"]["a"].append(2)
            memory["later"] = 1
        mine, learned = (next(m["policy"].parameters()) for m in (sampler.models, run.models))
        assert torch.equal(mine, learned)
        with torch.no_grad():
            learned.add_(1.0)
        assert ctx.memory.plain == {"table": {"a": [1]}} and not torch.equal(mine, learned)
    finally:
        run.close()


def test_the_lag_is_exact_and_nothing_is_dropped() -> None:
    run = run_of("steps=7", "ahead=3", "method.select+=truncated_importance")
    records = taken(run, 7)
    assert [versions(r.drawn) for r in records] == [{0}, {0}, {0}, {0}, {1}, {2}, {3}]
    assert [r.facts["age"] for r in records] == [0, 1, 2, 3, 3, 3, 3]
    assert [{e.step for e in r.drawn} for r in records] == [{k} for k in range(7)]
    assert not run.source.queue and sum(s.engine.sampled for s in run.source.samplers) == sum(  # type: ignore[attr-defined]
        r.facts["sampled"] for r in records
    )


def test_the_gap_of_the_sampler_is_measured_at_equal_versions_only() -> None:
    """An older sampler differs because it is older: that is its age, and no mistake of the engine."""
    first, *rest = taken(run_of("steps=3", "ahead=1", "optim.lr=0.01"), 3)
    assert first.facts["sampler_gap_max"] < 1e-3 and first.facts["age"] == 0
    assert all("sampler_gap" not in r.facts and r.facts["age"] == 1 for r in rest)
    tally = Tally()
    sampler_gap(tally, rest[1].batch, rest[1].batch.logp_gen_N + 1.0)  # the newest of the batch, as it was
    assert tally.means()["sampler_gap"] == 1.0
    assert all("sampler_gap" in r.facts and r.facts["age"] == 0 for r in taken(run_of("steps=2"), 2))


def test_a_run_repeats_itself_however_long_the_rewards_take(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("reward.py").write_text(SLOW_REWARD.replace("time.sleep(", "import random; time.sleep(random.random() * "))
    for name, seconds in (("a", "0"), ("b", "0.05")):
        monkeypatch.setenv("SECONDS_EACH", seconds)
        assert train(name, "steps=5", "ahead=2", "save.checkpoint_every=2", *SLOWLY) == 0
    same_run("a", "b", keep=2)


# a checkpoint holds what was drawn


def test_four_steps_killed_and_four_more_with_draws_in_flight() -> None:
    killed_and_resumed("grpo", 8, *SLOWLY, "ahead=2")
    state = load_checkpoint(checkpoint("b", 4))
    assert [(d.step, d.version, len(d.episodes)) for d in state.drawn] == [(4, 2, 16), (5, 3, 16)]
    assert [p.name for p in sorted(checkpoint("b", 4).glob("drawn-*"))] == ["drawn-000004.arrow", "drawn-000005.arrow"]
    assert not load_checkpoint(checkpoint("b", 8)).drawn  # no step is left to draw for


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo_tis", "dapo", "spo_single"])
def test_forty_steps_are_twenty_killed_and_twenty_more(method: str) -> None:
    print(killed_and_resumed(method, 40, "ahead=2"))


@pytest.mark.slow
def test_forty_steps_in_a_world_are_twenty_killed_and_twenty_more() -> None:
    print(killed_and_resumed("gigpo", 40, "task=household", "ahead=2"))


def stopped_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trainer.train_step

    async def train_step(run: Any, k: int) -> Any:
        if k == step:
            raise RuntimeError("the power is off")
        return await plain(run, k)

    monkeypatch.setattr(trainer, "train_step", train_step)


def test_one_signal_saves_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ("steps=5", "ahead=2", "save.checkpoint_every=3")
    assert train("a", *settings) == 0
    plain = trainer.train_step

    async def train_step(run: Any, k: int) -> Any:
        if k == 1:
            signal.raise_signal(signal.SIGINT)
        return await plain(run, k)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train_step", train_step)
        assert train("b", *settings) == 0
    assert saved("b") == ["step-000002"] and len(load_checkpoint(checkpoint("b", 2)).drawn) == 2
    assert gruppo("train", "--resume", "runs/b") == 0
    same_run("a", "b", keep=2)


def test_two_signals_end_draws_and_learning_at_once() -> None:
    process = start("train", *SMALL, *SLOWLY, "ahead=2", "steps=100000", "save.name=b", seconds_each=0.02)
    wait_for(lambda: len(metrics("b")) >= 3, process)
    hold_from(Path())  # from now on: the second signal comes before the first has ended the step
    process.send_signal(signal.SIGINT)
    wait_for(lambda: "Ctrl-C again" in said(), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert "stopped at once. No step is saved yet" in said() and "Traceback" not in said()


def test_a_run_that_goes_on_otherwise_learns_what_was_drawn_first(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ("steps=6", "save.checkpoint_every=2", "save.episodes_every=1")
    with monkeypatch.context() as patch:
        stopped_after(3, patch)
        with pytest.raises(RuntimeError):
            train("a", *settings, "ahead=2")
    drawn = load_checkpoint(checkpoint("a", 2)).drawn
    assert saved("a")[-1] == "step-000002" and [(d.step, d.version) for d in drawn] == [(2, 0), (3, 1)]
    assert gruppo("train", "--resume", "runs/a", "ahead=0", "--allow-changes") == 0
    for d in drawn:
        learned = load_episodes(f"runs/a/episodes/step-{d.step + 1:06d}.arrow")
        assert [e.uid for e in learned] == [e.uid for e in d.kept]
    assert [row["age"] for row in metrics("a")[1:]] == [0, 1, 2, 2, 0, 0]
    assert [row["step"] for row in metrics("a")] == list(range(7))


def test_a_draw_that_fails_ends_the_run_before_a_checkpoint_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its weights are gone by then, so the run goes on from the last whole checkpoint, exactly."""
    settings = ("steps=6", "ahead=2", "save.checkpoint_every=2")
    assert train("a", *settings) == 0
    with monkeypatch.context() as patch:
        failing_at(4, patch)
        assert "step 5: no such task" in refused(capsys, "train", *SMALL, "save.name=b", *settings)
    assert saved("b") == ["step-000002"]  # step 4 is drawn while 2 and 3 are learned, and 4 could not be saved whole
    assert gruppo("train", "--resume", "runs/b") == 0
    same_run("a", "b", keep=1)


def failing_at(step: int, patch: pytest.MonkeyPatch) -> None:
    plain = draw

    async def fails(walk: Any, ctx: Context) -> Drawn:
        if ctx.step == step:
            raise ValueError("no such task")
        return await plain(walk, ctx)

    patch.setattr("gruppo.train.source.draw", fails)


# what overlaps, and what does not


def test_draws_go_on_while_a_step_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    over, plain = dict[int, threading.Event](), draw
    waits: list[bool] = []

    async def seen(walk: Any, ctx: Context) -> Drawn:
        found = await plain(walk, ctx)
        over.setdefault(ctx.step, threading.Event()).set()
        return found

    monkeypatch.setattr("gruppo.train.source.draw", seen)
    run = run_of("steps=3", "ahead=1")
    update = type(run.method.update).__call__

    def waiting(self: Any, ctx: Context, learner: Any, batch: Any) -> Any:
        later = over.setdefault(min(ctx.step + 1, 2), threading.Event())
        waits.append(later.wait(120))  # what is drawn in the same thread would never come
        return update(self, ctx, learner, batch)

    monkeypatch.setattr(type(run.method.update), "__call__", waiting)
    taken(run, 3)
    assert waits == [True] * 3


class Pausing:
    """A judge whose earlier calls take longer."""

    def __init__(self, in_order: bool) -> None:
        self.in_order, self.heard = in_order, list[str]()

    async def score(self, items: Any) -> list[Any]:
        await asyncio.sleep(0)
        self.heard += [text for _, text in items]
        return []


@pytest.mark.parametrize("in_order", [True, False])
def test_a_scorer_with_a_state_hears_one_draw_after_the_other(in_order: bool) -> None:
    judge = Pausing(in_order)

    async def one(mine: InTurn, name: str, pause: float) -> Any:
        await asyncio.sleep(pause)
        await mine.score([(None, name)])
        await mine.score([(None, f"{name} again")])

    async def both() -> None:
        first = asyncio.create_task(one(InTurn(judge, None), "first", 0.05))
        await one(InTurn(judge, first), "second", 0.0)
        await first

    asyncio.run(both())
    told = ["first", "first again", "second", "second again"]
    assert judge.heard == (told if in_order else told[2:] + told[:2])
