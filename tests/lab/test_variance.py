"""`lab.variance`: what it logs is the variance of a step's gradient, and what is learned does not change by it."""

import asyncio
from typing import Any

import pytest
import torch

from gruppo.data import minibatches
from gruppo.lab.variance import MeasuredPasses, variance_of_mean
from gruppo.methods import method
from gruppo.stages.update import Passes
from gruppo.train import loop
from gruppo.train.config import EvalConfig, ModelConfig, RunConfig, SaveConfig
from gruppo.train.run import Run


def test_by_hand() -> None:
    """ḡ = (1, 2), |g − ḡ|² = 5 for both, over 2 · 1."""
    assert variance_of_mean(torch.tensor([[0.0, 0.0], [2.0, 4.0]])) == pytest.approx(5.0)


def test_it_is_the_variance_of_the_mean_of_the_parts() -> None:
    g_RPX = 3.0 * torch.randn(2000, 8, 5, generator=torch.Generator().manual_seed(0))
    told = sum(variance_of_mean(g_PX) for g_PX in g_RPX) / len(g_RPX)
    assert told == pytest.approx(float(g_RPX.mean(1).var(0).sum()), rel=0.05)
    assert told == pytest.approx(5 * 9 / 8, rel=0.05)


def a_run(update: Any) -> Run:
    return Run(
        RunConfig(
            method=method("grpo").but(update=update),
            model=ModelConfig("tiny", dtype="float64", device="cpu"),
            eval=EvalConfig(every=0, prompts=4),
            save=SaveConfig(tensorboard="no"),
            prompts=6,
            samples=4,
        ),
        say=lambda _: None,
    )


def steps(update: Any) -> tuple[torch.Tensor, list[dict[str, float]]]:
    run = a_run(update)
    try:
        facts = [asyncio.run(loop.train_step(run, step)).facts for step in range(2)]
        return torch.cat([p.detach().flatten() for p in run.models["policy"].parameters()]), facts
    finally:
        run.close()


@pytest.mark.parametrize("minibatches", [1, 2])
def test_what_is_learned_and_logged_is_the_same(minibatches: int) -> None:
    (plain, told), (measured, more) = (
        steps(update) for update in (Passes(minibatches=minibatches), MeasuredPasses(minibatches=minibatches, parts=3))
    )
    assert torch.equal(plain, measured)
    assert [set(m) - set(t) for t, m in zip(told, more, strict=True)] == [{"grad_variance", "grad_noise"}] * 2
    same = [k for k in told[0] if not k.startswith(("seconds", "tokens_per_second"))]
    assert all(t[k] == m[k] for t, m in zip(told, more, strict=True) for k in same)


def test_it_is_that_of_the_gradients_of_parts_of_whole_groups() -> None:
    """Rewards of a known kind; the parts are cut and summed here once more."""
    run = a_run(MeasuredPasses(parts=3))
    try:
        ctx = run.context(0)
        run.learner.begin(ctx)
        asks = run.method.curriculum(ctx, run.tasks.train)
        episodes = asyncio.run(run.walk.drawn(ctx, asks, run.method.rollout))
        for i, e in enumerate(episodes):
            e.reward["task"] = float(i % 3 == 0)
        batch = run.walk.batch_of(ctx, episodes, episodes)
        assert batch is not None
        batch = run.walk.credited(ctx, batch)
        run.method.update(ctx, run.learner, batch)
        told, noise = (run.learner.tally.means()[name] for name in ("grad_variance", "grad_noise"))
    finally:
        run.close()
    again = a_run(Passes())
    try:
        again.learner.begin(ctx)
        grads = []
        for part in minibatches(batch, 3, ctx.seed, ctx.step, "variance"):
            assert len(part.uid_G) == 2 and part.size("E") == 8
            grads.append(again.learner.gradient("policy", part))
    finally:
        again.close()
    mean = sum(grads) / 3
    assert told == pytest.approx(sum(float((g - mean).square().sum()) for g in grads) / 6, rel=1e-9) and told > 0
    assert noise == pytest.approx(told / float(mean.square().sum()), rel=1e-9)


def test_one_part_has_no_variance() -> None:
    with pytest.raises(ValueError, match=r"parts=1 .*use a whole number >= 2\."):
        MeasuredPasses(parts=1)
