"""`[engine]`: settings reach the engine of a run and of an evaluation, and what cannot be is refused."""

import asyncio
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from gruppo.cli.evaluate import evaluations
from gruppo.cli.overrides import apply, from_toml
from gruppo.engines import Engine, EngineConfig, NativeEngine, Request
from gruppo.lab.exact.groups import Masses, Script
from gruppo.lab.exact.world import ExactWorld
from gruppo.methods import method
from gruppo.stages.check import refuse_weaker
from gruppo.stages.requires import Promised, Requirement
from gruppo.stages.rollout import Group
from gruppo.train.config import RunConfig
from gruppo.train.doctor import step_zero
from gruppo.train.loop import train_step
from gruppo.train.run import Run, tasks_of

SMALL = ["prompts=2", "samples=2", "eval.prompts=3", "model.device=cpu", "threads=1"]


def test_settings_of_a_run():
    words = ["engine.rows=3", "engine.prefill_tokens=50", "engine.cache_tokens=7", "engine.lockstep=no"]
    config = apply(RunConfig(), ["engine=native", *words, *SMALL])
    table = {"engine": {"rows": 3, "prefill_tokens": 50, "cache_tokens": 7, "lockstep": "no"}}
    assert config.engine == from_toml(table, RunConfig()).engine == EngineConfig("native", 3, 50, 7, "no")
    run = Run(config, say=lambda _: None)
    try:
        engine = run.engine
        assert (engine.limits.rows, engine.limits.prefill_tokens, engine.parked.budget) == (3, 50, 7)
        assert not engine.waves.lockstep and engine.decode is not None
        [gap] = [check for check in asyncio.run(step_zero(run)) if check.name == "sampler_gap"]
        assert gap.ok
    finally:
        run.close()


def test_settings_of_an_evaluation(monkeypatch):
    made = []
    start = NativeEngine.__init__
    monkeypatch.setattr(NativeEngine, "__init__", lambda self, *a, **k: made.append(self) or start(self, *a, **k))
    plain = apply(RunConfig(), SMALL)
    found = [
        evaluations(config, tasks_of(config), config.sampling, ["tiny"])["tiny"]
        for config in (plain, replace(plain, engine=EngineConfig(rows=2)))
    ]
    assert [e.limits.rows for e in made] == [1024, 2]
    assert [e.text for e in found[0].episodes] == [e.text for e in found[1].episodes]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("engine=nativ", r"engine.name=nativ is not one of its values \(nearest: native\)"),
        ("engine.rows=0", "engine.rows=0 is out of range"),
        ("engine.cache_tokens=-1", "engine.cache_tokens=-1 is out of range"),
        ("engine.row=3", "nearest: rows"),
        ("engine.lockstep=maybe", "engine.lockstep=maybe is not one of its values.*auto, yes, no"),
    ],
)
def test_settings_that_make_no_sense(word, says):
    with pytest.raises(ValueError, match=says):
        apply(RunConfig(), [word])


@dataclass(frozen=True)
class Steered(Group):
    requires: ClassVar[tuple[Requirement, ...]] = (Promised("steer", "it forces the first token"),)


def test_a_method_that_needs_more_than_the_engine_promises():
    needy = method("grpo").but(name="needy", rollout=Steered())
    with pytest.raises(
        ValueError, match=r"needy: steered in rollout needs an engine that promises 'steer'.*forces"
    ) as e:
        refuse_weaker(needy, "script", Script.promises)
    assert "It promises: keyed, logp" in str(e.value) and "Use engine=native, or another occupant" in str(e.value)
    refuse_weaker(method("grpo"), "script", Script.promises)
    assert isinstance(Script(ExactWorld(), lambda *_: 0.0, lambda _: Masses(torch.zeros(1, 1), [])), Engine)


def test_every_step_and_evaluation_begins_without_memory():
    """What is parked in one step would be shared in the next, but not after a resume."""
    run = Run(apply(RunConfig(), SMALL), say=lambda _: None)
    try:
        seen = []
        forget = run.engine.forget
        run.engine.forget = lambda: seen.append(len(run.engine.parked)) or forget()  # type: ignore[method-assign]
        prefix = run.tokenizer.chat(run.tasks.train[0].messages)
        asyncio.run(run.engine.ask(Request(prefix, 4, key=0)))
        assert len(run.engine.parked) == 1
        asyncio.run(train_step(run, 0))
        assert seen[0] == 1 and len(run.engine.parked) == 0
        assert run.engine.version == run.version == 1
        assert torch.is_grad_enabled()
    finally:
        run.close()
