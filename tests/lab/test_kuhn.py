"""`lab.kuhn`: exploitability of a policy and of the average of its last half, and nothing learned differently."""

import asyncio
from typing import Any

import pytest
import torch

from gruppo.envs.kuhn_exact import ALL, equilibrium, exploitability
from gruppo.lab.kuhn import KuhnPasses, added, average, in_last_half, metric
from gruppo.methods import method
from gruppo.stages.update import Passes
from gruppo.tasks import TaskConfig
from gruppo.train import loop
from gruppo.train.config import EvalConfig, ModelConfig, RunConfig, SaveConfig
from gruppo.train.kuhn import dialogue, strategy_of
from gruppo.train.run import Run


def a_run(update: Any) -> Run:
    return Run(
        RunConfig(
            method=method("spiral").but(update=update),
            task=TaskConfig("kuhn"),
            model=ModelConfig("tiny-agent", device="cpu"),
            eval=EvalConfig(every=0, prompts=4),
            save=SaveConfig(tensorboard="no"),
            steps=3,
            prompts=24,
            samples=1,
        ),
        say=lambda _: None,
    )


def steps(update: Any) -> tuple[torch.Tensor, list[Any]]:
    run = a_run(update)
    try:
        made = [asyncio.run(loop.train_step(run, step)) for step in range(3)]
        return torch.cat([p.detach().flatten() for p in run.models["policy"].parameters()]), made
    finally:
        run.close()


def test_an_equilibrium_stays_one_and_what_is_not_reached_does_not_count() -> None:
    past: Any = {}
    for bluff in (0.0, 1 / 6, 1 / 3):  # equilibria are a convex set, if each is weighted by how often it gets there
        past = added(past, equilibrium(bluff))
    assert exploitability(average(past)) == pytest.approx(0.0, abs=1e-12)
    always, never = equilibrium() | {"king": 1.0, "king check bet": 0.0}, equilibrium() | {"king": 0.0}
    mixed = average(added(added({}, always), never))
    assert (mixed["king"], mixed["king check bet"]) == (0.5, 1.0)  # who always bets never comes there


def test_the_average_of_two_that_are_exploitable_may_not_be() -> None:
    """With a jack the second seat must bluff a third of the time: always and never are both exploited."""
    past: Any = {}
    for bluff in (1.0, 0.0, 0.0):
        past = added(past, equilibrium() | {"jack check": bluff})
        assert exploitability(equilibrium() | {"jack check": bluff}) > 0.01
    assert exploitability(average(past)) == pytest.approx(0.0, abs=1e-12)


def test_what_is_learned_is_the_same_and_what_was_asked_is_what_is_read() -> None:
    (plain, told), (measured, more) = (steps(update) for update in (Passes(epochs=2), KuhnPasses(epochs=2)))
    assert torch.equal(plain, measured)
    new = [set(m.facts) - set(t.facts) for t, m in zip(told, more, strict=True)]
    every = {metric(s) for s in ALL} | {"exploitability"}
    assert new == [every, every, every | {"exploitability_average"}]  # 3 steps: the last half is the last one
    assert more[-1].facts["exploitability_average"] == pytest.approx(more[-1].facts["exploitability"])
    run = a_run(KuhnPasses())
    try:
        seen = {s: dialogue(run.tokenizer, s).tolist() for s in ALL}
        played = {
            t.state: e.sequences[t.sequence].ids[: t.start].tolist()
            for e in (e for m in more for e in m.drawn)
            for t in e.turns
            if not any(u.flags for u in e.turns)
        }
        assert len(played) >= 9 and all(seen[state] == ids for state, ids in played.items())
        strategy = strategy_of(run.models["policy"], run.tokenizer)
        assert exploitability(strategy) == pytest.approx(more[0].facts["exploitability"], abs=1e-6)
    finally:
        run.close()


def test_the_last_half() -> None:
    assert [in_last_half(step, 5) for step in range(5)] == [False, False, False, True, True]
    assert [in_last_half(step, 4) for step in range(4)] == [False, False, True, True]
