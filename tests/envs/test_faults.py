"""Worlds that raise, hang, pay NaN or die, and a judge that does, in 5 % of all calls of a training run."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import faulty
import pytest
from drawing import finished

from gruppo.cli import overrides
from gruppo.data import Status
from gruppo.envs.format import Line
from gruppo.envs.hosted import Hosted
from gruppo.envs.registry import make_env
from gruppo.stages import StepRecord
from gruppo.stages.converse import Converse
from gruppo.train.config import RunConfig
from gruppo.train.loop import train_step
from gruppo.train.run import Run

READ = Line()
SETTINGS = ("model=tiny-random", f"task={faulty.HERE}:tasks", "prompts=6", "samples=4", "sampling.max_tokens=3")
SETTINGS += ("task.seconds=2", "task.workers=1", "threads=1", "save.tensorboard=no", "eval.every=0")
SETTINGS += ("accept=dead_groups,mask",)


@pytest.fixture
def run(one_thread: None) -> Iterator[Run]:
    """A run in which `Mortal` has a process of its own, as worlds of other libraries have."""

    def hosted(name: str, own: bool) -> Any:
        return Hosted(name) if name == faulty.WORLDS["Mortal"] else make_env(name, own)

    run = Run(overrides.apply(RunConfig(), SETTINGS), say=lambda said: None)
    assert isinstance(run.walk.play, Converse)
    run.walk.play.make = hosted
    yield run
    run.close()


def looked_at(record: StepRecord) -> Counter[str]:
    """Nothing is lost, nothing is worth 0 because it failed; what went wrong, by kind."""
    drawn, found = record.drawn, Counter[str]()
    assert len(drawn) == len({e.uid for e in drawn}) == 24 and record.batch is not None
    for e in drawn:
        what, paid = faulty.expected(e.task, [READ(t.text).action for t in e.turns], e.text)
        if what:
            late = what == "hang"
            assert e.status == (Status.TIMEOUT if late else Status.ENV_ERROR) and e.error and e.reward == {}, (what, e)
        else:
            assert e.status == Status.OK and e.reward == {"task": paid} and len(e.turns) == 3, e
        found[f"{e.task.partition('/')[0]} {what}".strip()] += 1
    judged = [e.total for e in drawn if e.status.judged]
    assert record.facts["reward"] == pytest.approx(sum(judged) / len(judged), abs=1e-6)
    assert record.facts["failed"] == pytest.approx(1 - len(judged) / len(drawn))
    learned = record.batch.uid_N[record.batch.adv_N != 0].tolist()
    assert not {e.uid for e in drawn if not e.status.judged} & set(learned)
    return found


def taken(run: Run, steps: int) -> Counter[str]:
    found = Counter[str]()
    for step in range(steps):
        found += looked_at(finished(train_step(run, step)))
        assert run.version == step + 1  # it was learned from
    return found


def test_a_few_steps(run: Run) -> None:
    found = taken(run, 3)
    assert sum(found.values()) == 72 and {"Shaky raise", "Shaky hang", "Mortal die", "Judged raise"} < found.keys()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_steps(run: Run) -> None:
    found = taken(run, 200)
    print(dict(sorted(found.items())))
    assert sum(found.values()) == 4800
    kinds = {f"{w.__name__} {k}" for w in (faulty.Shaky, faulty.Mortal) for k in w.kinds}
    assert kinds | {f"Judged {k}" for k in faulty.VERDICTS} < found.keys()
