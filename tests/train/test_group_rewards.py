"""Rewards that compare a group wait for the whole of it, and may stand in place of the task's own."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gruppo.cli import overrides
from gruppo.data import Episode, Use
from gruppo.data.store import load_episodes, save_episodes
from gruppo.methods import method
from gruppo.stages import Ask, Context, Occupant, StepRecord
from gruppo.train.config import RunConfig
from gruppo.train.loop import train_step
from gruppo.train.run import Run

calls: list[list[int]] = []


@dataclass(frozen=True)
class TwoMoreOfEach(Occupant):
    """Draws two more answers for every group of the first round, and puts one of them aside."""

    def episodes(self, ctx: Context, episodes: Sequence[Episode]) -> tuple[list[bool], list[Any]]:
        first = {e.group: e for e in reversed(episodes)}
        again = [Ask(e.ask.task, 2, group=g, key="more") for g, e in first.items()] if ctx.round == 0 else []
        if ctx.round == 1:
            last = {e.group: e for e in episodes}
            for e in last.values():
                e.use = Use.NONE
        return [True] * len(episodes), again


@dataclass(frozen=True)
class SizeOfGroup(Occupant):
    """Pays how many episodes of the group it was shown, in place of `task`."""

    of_groups = True
    reads = ("answer_E",)
    replaces = ("task",)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        calls.append([len(episodes), sum(bool(e.answer) for e in episodes)])
        seen = [e.group for e in episodes]
        return {"size": [float(seen.count(g)) for g in seen]}


def stepped(**rooms: Any) -> tuple[StepRecord, Run]:
    m = method("grpo").but(name="whole", penalties=(), **rooms)
    small = ("task=chain", "task.level=1", "steps=2", "prompts=2", "samples=3", "model=tiny", "save.tensorboard=no")
    run = Run(replace(overrides.apply(RunConfig(), small), method=m), say=lambda said: None)
    try:
        return asyncio.run(train_step(run, 0)), run
    finally:
        run.close()


def test_it_sees_all_rounds_once_and_replaces_the_task(tmp_path: Path) -> None:
    calls.clear()
    record, _ = stepped(select=TwoMoreOfEach(), reward=SizeOfGroup())
    assert [n for n, _ in calls] == [8], "once, with three and two answers of two groups, less the two put aside"
    used = [e for e in record.drawn if e.use != Use.NONE]
    assert len(record.drawn) == 10 and all(e.total == 4 for e in used)
    assert all("task" in e.reward and e.replaced == {"task"} for e in used)
    assert 0 <= record.facts["accuracy"] <= 1 and record.facts["reward/size"] == 4
    assert record.batch is not None and set(record.batch.reward_E.tolist()) == {4}
    assert record.facts["dead_groups"] == 1, "by what is paid"
    save_episodes(tmp_path / "a.arrow", used)
    back = load_episodes(tmp_path / "a.arrow")
    assert [(e.answer, e.replaced, e.total) for e in back] == [(e.answer, e.replaced, e.total) for e in used]


def test_answers_are_read_where_someone_reads_them() -> None:
    calls.clear()
    record, _ = stepped(reward=SizeOfGroup())
    said = [(e.text, e.answer) for e in record.drawn]
    assert all(answer == next(reversed(text.split()), "") for text, answer in said) and any(a for _, a in said)
    assert calls == [[6, sum(bool(a) for _, a in said)]]
    record, _ = stepped()
    assert all(e.answer == "" for e in record.drawn), "nobody asked, so nothing was spent on it"


def test_copo_compares_answers_of_a_real_run() -> None:
    record, _ = stepped(credit=method("copo").credit, objective=method("copo").objective)
    assert record.batch is not None and 0 < record.facts["local_share"] < 1
    assert len(set(record.batch.answer_E.tolist())) > 1
