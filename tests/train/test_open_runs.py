"""Runs with `turns_a_step`: episodes of worlds that a step leaves open. What a play of them keeps: tests/envs."""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_runs import contents, gruppo, metrics, refused, train

from gruppo.cli import overrides
from gruppo.data import Episode, Status
from gruppo.methods import all_methods
from gruppo.stages import Ask, Context, Memory, Occupant, Prompt, StepRecord
from gruppo.stages.rollout import pauses
from gruppo.train import loop
from gruppo.train.checkpoint import State, load_checkpoint, save_checkpoint
from gruppo.train.config import RunConfig
from gruppo.train.folder import RunFolder
from gruppo.train.run import Run
from gruppo.train.trainer import Trainer

BASE = ("prompts=4", "samples=3", "steps=9", "eval.prompts=2", "eval.every=0", "save.tensorboard=no", "threads=1")
BASE += ("optim.lr=3e-3",)


@contextmanager
def running(*settings: str) -> Iterator[Run]:
    run = Run(overrides.apply(RunConfig(), (*BASE, *settings)), say=lambda _: None)
    try:
        yield run
    finally:
        run.close()


def step(run: Run, number: int) -> Any:
    return asyncio.run(loop.train_step(run, number))


def flat(run: Run) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in run.models["policy"].parameters()])


# ---- laws


@pytest.mark.parametrize(("task", "method", "turns"), [("guess", "gigpo", 5), ("kuhn", "spiral", 9)])
def test_a_limit_that_no_episode_reaches_changes_no_bit(task: str, method: str, turns: int) -> None:
    small = (f"task={task}", f"method={method}", "steps=2", "prompts=2", "samples=2", "eval.prompts=2")
    small += ("save.episodes_every=1",)
    assert train("a", *small) == 0 and train("b", *small, f"turns_a_step={turns}") == 0
    assert metrics("a") == metrics("b")
    for part in ("policy", "episodes", "checkpoints"):
        assert contents(Path("runs/a") / part) == contents(Path("runs/b") / part), part


def test_an_episode_that_was_left_is_learned_from_as_it_was_sampled() -> None:
    """Law: ids trained = ids sampled, also across pauses, with the log-probabilities and versions of their own time.

    And a group is learned from once, whole, when all of its episodes are over.
    """
    begun, learned, mixed = dict[int, Episode](), list[int](), 0
    with running("task=kuhn", "method=spiral", "turns_a_step=1") as run:
        for number in range(8):
            record = step(run, number)
            for e in record.drawn:
                learned.append(e.uid)
                assert e.status.judged and e.scores
                if (before := begun.pop(e.uid, None)) is not None:
                    mixed += versions_before(before, e)
            for e in run.open:
                begun[e.uid] = e
                assert e.status != Status.OPEN or not e.reward
            groups = {g: [e for e in record.drawn if e.group == g] for g in {e.group for e in record.drawn}}
            assert all(len(g) == 3 and len({e.step for e in g}) == 1 for g in groups.values())
            assert {e.group for e in run.open}.isdisjoint(groups)
            if record.batch is not None:
                trained_is_sampled(record)
    assert mixed > 3 and len(set(learned)) == len(learned) > 20


def versions_before(before: Episode, now: Episode) -> bool:
    """Asserts that what was there is there; whether it was sampled by other weights than the rest."""
    for then, s in zip(before.sequences, now.sequences, strict=False):  # a later one may have begun since
        n = len(then.ids)
        for column in ("ids", "source", "logp", "version"):
            np.testing.assert_array_equal(getattr(s, column)[:n], getattr(then, column))
    assert [t.text for t in now.turns][: len(before.turns)] == [t.text for t in before.turns]
    return len({v for s in now.sequences for v in s.version.tolist() if v >= 0}) > 1


def trained_is_sampled(record: Any) -> None:
    b = record.batch
    of = {e.uid: e.sequences for e in record.episodes}
    columns = {"ids": b.token_N, "version": b.version_N, "logp": b.logp_gen_N}
    for i, uid in enumerate(b.uid_E.tolist()):
        for name, rows_N in columns.items():
            sampled = np.concatenate([getattr(s, name)[s.version >= 0] for s in of[uid]])
            np.testing.assert_array_equal(rows_N[b.up("N", "E") == i].numpy(), sampled)


@pytest.mark.parametrize(("task", "method", "turns"), [("household", "gigpo", 3), ("kuhn", "spiral", 1)])
def test_a_policy_that_stays_as_it_is_says_the_same_with_pauses(task: str, method: str, turns: int) -> None:
    """And earns the same. Log-probabilities may differ by rounding: contexts are read anew."""
    found: dict[int, list[Episode]] = {}
    for limit in (0, turns):
        with running(f"task={task}", f"method={method}", "optim.lr=0", f"turns_a_step={limit}") as run:
            drawn = [e for number in range(4 if limit else 1) for e in step(run, number).drawn]
            found[limit] = sorted((e for e in drawn if e.step == 0), key=lambda e: e.uid)
    assert len(found[0]) == len(found[turns]) == 12
    for a, b in zip(found[0], found[turns], strict=True):
        assert [s.ids.tolist() for s in a.sequences] == [s.ids.tolist() for s in b.sequences]
        assert [replace(t, seconds=0.0) for t in a.turns] == [replace(t, seconds=0.0) for t in b.turns]
        assert (a.uid, a.reward, a.status, a.text) == (b.uid, b.reward, b.status, b.text)
        for s, t in zip(a.sequences, b.sequences, strict=True):
            np.testing.assert_allclose(s.logp, t.logp, atol=1e-5)


# ---- what a checkpoint must hold


HALF = ("task=kuhn", "method=spear", "turns_a_step=1")


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> tuple[State, torch.Tensor]:
    torch.set_num_threads(1)
    with running(*HALF) as run:
        for number in range(6):
            if number == 3:
                path = save_checkpoint(tmp_path_factory.mktemp("checkpoints"), run.state(3, {}))
            step(run, number)
        return load_checkpoint(path), flat(run)


def gone_on(state: State) -> torch.Tensor:
    with running(*HALF) as run:
        run.restore(state)
        for number in range(3, 6):
            step(run, number)
        return flat(run)


def test_open_episodes_are_part_of_a_checkpoint(halfway: Any) -> None:
    state, end = halfway
    assert {e.status == Status.OPEN for e in state.open} == {True, False}  # open ones, and others of their groups
    assert torch.equal(gone_on(state), end)
    assert not torch.equal(gone_on(replace(state, open=[])), end)  # the bug: they are lost
    over = [e for e in state.open if e.status == Status.OPEN]
    assert not torch.equal(gone_on(replace(state, open=over)), end)  # the bug: a group without those that are over


def test_a_step_that_fails_leaves_what_waits_as_it_was(halfway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state, end = halfway
    with running(*HALF) as run:
        run.restore(state)
        with monkeypatch.context() as patched:
            patched.setattr(type(run.walk), "batch_of", lambda *_: (_ for _ in ()).throw(ValueError("refused")))
            with pytest.raises(ValueError, match="refused"):
                step(run, 3)
        assert run.between_steps
        for number in range(3, 6):
            step(run, number)
        assert torch.equal(flat(run), end)


@dataclass(frozen=True)
class AsksLater(Occupant):
    """It asks again for the groups that it has, which cannot be tried before the run."""

    def episodes(self, ctx: Context, episodes: Sequence[Episode]) -> tuple[list[bool], list[Ask | Prompt]]:
        return [True] * len(episodes), [e.ask for e in episodes[:1] if e.ask.task.meta]  # type: ignore[union-attr]


def test_a_selection_that_asks_again_later_is_refused_then() -> None:
    with running("task=kuhn", "method=spear", "turns_a_step=1") as run:
        run.walk.method = run.walk.method.but(select=AsksLater())
        with pytest.raises(ValueError, match=r"turns_a_step=1: selection draws other groups .* Leave turns_a_step out"):
            for number in range(6):
                step(run, number)
        assert run.between_steps


CANNOT_GO_ON = {
    "task=kuhn method=spear ahead=1": r"ahead=1: the checkpoint holds .* episodes .* Use ahead=0",
    "task=kuhn method=remax": r"method=remax: the checkpoint .* with_greedy in rollout .* Take the method back",
    "task=guess method=spear": r"task=guess: the checkpoint .* 'kuhn/.*' is no task .* settings of the task back",
}


@pytest.mark.parametrize("settings", CANNOT_GO_ON)
def test_who_cannot_take_open_episodes(halfway: Any, settings: str) -> None:
    """With --allow-changes, anything may be another than when they began: it is said before a step."""
    lone = [replace(e, ask=None) for e in halfway[0].open]  # as read from a file
    with running(*settings.split()) as run, pytest.raises(ValueError, match=CANNOT_GO_ON[settings]):
        run.restore(replace(halfway[0], open=lone), allow=True)


# ---- what else looks at episodes


def test_a_step_without_a_complete_group_is_nothing_to_learn_from_for_every_method_that_pauses() -> None:
    """No built-in method stumbles over a step in which nothing was drawn to its end."""
    pausing = [m for m in all_methods().values() if pauses(m.rollout)]
    assert len(pausing) > 50
    for m in pausing:
        memory = Memory()
        ctx = Context(memory=memory)
        with memory.writing():
            for _, occupant in m.occupants():
                occupant.observe(StepRecord(0, [], None, {}, ctx, []), memory)
        assert m.replay.put(ctx, [], []) == [], m.name


def test_metrics_episodes_and_evaluations(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Status] = []
    plain = Trainer._evaluate

    async def evaluated(self: Trainer) -> Any:
        found = await plain(self)
        seen.extend(e.status for e in found.episodes)
        return found

    monkeypatch.setattr(Trainer, "_evaluate", evaluated)
    settings = ("task=kuhn", "method=spiral", "turns_a_step=1", "steps=5", "save.episodes_every=1", "eval.prompts=2")
    assert train("a", *settings, "eval.every=2") == 0
    rows = metrics("a")[1:]
    assert rows[0]["open"] > 0.5 and rows[0]["reward"] is None and rows[0]["sampled"] > 0 == rows[0]["tokens"]
    assert max(row.get("age", 0) for row in rows) > 0
    rows = RunFolder(Path("runs/a")).metrics()[1:]
    assert all(row["tokens_per_second"] == pytest.approx(row["sampled"] / row["seconds"]) for row in rows)
    summary, sampled = json.loads(Path("runs/a/summary.json").read_text()), sum(row["sampled"] for row in rows)
    assert summary["tokens_per_second"] == pytest.approx(sampled / summary["seconds"], rel=0.05)
    assert sampled > sum(row["tokens"] for row in rows) > 0  # what is open at the end was sampled, too
    assert seen and Status.OPEN not in seen  # an evaluation plays to the end
    said = capsys.readouterr()
    assert "kept no episode" not in said.err + said.out and "turns_a_step=1: the first turns" in said.err + said.out
    assert gruppo("episodes", "runs/a", "--limit", "1") == 0


@pytest.mark.parametrize("select", ["none", "equal_dropped"])
def test_steps_that_learn_nothing_are_told_also_if_others_lie_between_them(select: str) -> None:
    """Three steps with complete groups, all dead; steps without a complete group neither count nor begin anew."""
    said = list[str]()
    dropped = ("method.select+=redraw_equal_groups", "method.select.redraw_equal_groups.max_rounds=0")
    rooms = dropped if select == "equal_dropped" else ()
    settings = ("task=household", "task.level=3", "task.options.turns=8", "method=gigpo", "turns_a_step=4", *rooms)
    run = Run(overrides.apply(RunConfig(), (*BASE, *settings)), say=said.append)
    try:
        dead = sum(bool(record.drawn) for record in (step(run, number) for number in range(6)))
    finally:
        run.close()
    assert 3 <= dead < 6
    assert any("kept no episode" in s if rooms else "every group of the last three" in s for s in said), said


REFUSED = {
    "task=addition turns_a_step=2": "turns_a_step=2: task=addition is one answer.*task=household, or method=t_ppo",
    "task=household turns_a_step=-1": "turns_a_step=-1",
    "task=household turns_a_step=2 ahead=1": "turns_a_step=2 with ahead=1: .* Use ahead=0, or turns_a_step=0",
    "task=household turns_a_step=2 budget_tokens=9": "turns_a_step=2 with budget_tokens=9: .* Leave one of them out",
    "task=household turns_a_step=2 method=arpo_agentic": "arpo_agentic: branches in rollout .* method=gigpo",
    "task=household turns_a_step=2 method=memact": "memact: with_memory in rollout may look at its episodes",
    "task=household turns_a_step=2 method=remax": "remax: with_greedy in rollout",
    "task=household turns_a_step=2 method=./mine.py:MINE": "mine: endings in rollout may .* pauses = True",
    "task=household turns_a_step=2 method=gigpo method.select+=redraw_equal_groups": (
        "gigpo: redraw_equal_groups in select draws other groups .*redraw_equal_groups.max_rounds=0"
    ),
    "task=addition task.tools=python turns_a_step=2": "with task.tools=python: .* called a second time",
    "task=addition task.agent=./agent.py:play turns_a_step=2": "with task.agent=./agent.py:play: a program plays",
}


MINE = """
from dataclasses import dataclass
from gruppo.methods import method
from gruppo.stages.rollout import Group

@dataclass(frozen=True)
class Endings(Group):
    async def __call__(self, ctx, prompts):
        return [e for e in await super().__call__(ctx, prompts) if e.status.judged]

MINE = method("grpo").but(name="mine", rollout=Endings())
"""


@pytest.mark.parametrize("settings", REFUSED)
def test_where_no_episode_can_be_left(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("agent.py").write_text("def play(task, client):\n    return client\n")
    Path("mine.py").write_text(MINE)
    words = " ".join(refused(capsys, "train", *BASE, *settings.split()).split())
    assert re.search(REFUSED[settings], words), words
