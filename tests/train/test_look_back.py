"""Methods that look back, as whole runs: where they are GRPO to the last bit, and what they add."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch
from pitfalls.small_runs import running, save_policy

from gruppo.methods import method
from gruppo.methods.pipo import LookBack, attributed, improvement
from gruppo.methods.ssb import Selective
from gruppo.stages.replay import as_learned
from gruppo.train.learner import OptimConfig
from gruppo.train.loop import train_step

GRPO, SSB, PIPO = method("grpo"), method("ssb"), method("pipo")


def weights(run: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.models["policy"].parameters()])


def after(policy: Any, chosen: Any, steps: int = 3, **changes: Any) -> torch.Tensor:
    with running(policy, chosen, **changes) as run:
        for i in range(steps):
            asyncio.run(train_step(run, i))
        return weights(run)


@pytest.fixture
def policy(tmp_path: Any) -> Any:
    return save_policy(tmp_path / "policy")


def test_without_remembered_answers_ssb_is_grpo(policy: Any) -> None:
    plain, none = after(policy, GRPO), after(policy, SSB.but(replay=Selective(share=0.0)))
    torch.testing.assert_close(plain, none, rtol=0, atol=1e-6)
    assert not torch.allclose(plain, after(policy, SSB), atol=1e-4)


def test_ssb_learns_when_all_new_answers_are_alike(policy: Any) -> None:
    """No group says anything in step two; the buffer still does, with the advantages of step one."""
    with running(policy, SSB.but(penalties=())) as run:
        asyncio.run(train_step(run, 0))
        judge, before = run.judge.score, weights(run)

        async def alike(items: Any) -> Any:
            return [replace(v, components=dict.fromkeys(v.components, 1.0)) for v in await judge(items)]

        run.judge.score = alike  # type: ignore[method-assign]
        record = asyncio.run(train_step(run, 1))
        assert record.facts["dead_groups"] == 1.0
        new_N = ~record.batch.spread(record.batch.replayed_E, "E", "N")
        assert bool((record.batch.adv_N[new_N] == 0).all())
        assert record.facts["grad_norm"] > 0
        assert not torch.equal(before, weights(run))


def test_pipo_is_grpo_until_its_window_is_full(policy: Any) -> None:
    plain = after(policy, GRPO, steps=3)
    torch.testing.assert_close(plain, after(policy, PIPO, steps=3), rtol=0, atol=1e-6)
    short = PIPO.but(update=LookBack(window=2))
    assert not torch.allclose(plain, after(policy, short, steps=3), atol=1e-4)


def test_no_improvement_is_no_step_back(policy: Any) -> None:
    """ξ = 0: the step back has the gradient 0. Without momentum nothing moves; one with ξ ≠ 0 does."""
    moved: dict[float, float] = {}
    for limit in (0.0, 3.0):
        optim = OptimConfig(lr=0.01, beta1=0.0)
        with running(policy, PIPO.but(update=LookBack(window=2, limit=limit)), optim=optim) as run:
            for i in range(2):
                asyncio.run(train_step(run, i))
            before, seen, step = weights(run), list[float](), run.learner.step

            def watched(*what: Any, run: Any = run, step: Any = step, seen: Any = seen, **how: Any) -> None:
                step(*what, **how)
                seen.append(float((weights(run) - before).abs().max()))  # noqa: B023

            run.learner.step = watched  # type: ignore[method-assign]
            asyncio.run(train_step(run, 2))
            moved[limit] = seen[0]
    assert moved[0.0] == 0.0 < moved[3.0]


def test_the_step_back_is_the_surrogate_on_the_last_batch(policy: Any) -> None:
    """By hand: ratios to the stored log π_old, advantages φ a, no penalty; then the step of GRPO."""
    with running(policy, PIPO.but(update=LookBack(window=2)), seed=2) as run:  # one whose mean reward moves
        for i in range(2):
            asyncio.run(train_step(run, i))
        taken: list[Any] = []
        step = run.learner.step

        def watched(role: str, batch: Any, **how: Any) -> None:
            taken.append((batch, how))
            step(role, batch, **how)

        run.learner.step = watched  # type: ignore[method-assign]
        past = list(run.memory["batch_means"])
        record = asyncio.run(train_step(run, 2))
        back, how = taken[0]
        assert len(taken) == 2 and how["penalties"] is False
        assert how["lr"] == run.learner.lr("policy")
        mean = float(record.batch.reward_E[record.batch.judged_E].mean())
        factor = improvement(mean, past, undo=0.1, limit=3.0)
        before = as_learned(record.ctx, record.ctx.replay)
        torch.testing.assert_close(back.adv_N, attributed(before, factor).adv_N)
        torch.testing.assert_close(back.logp_old_N, before.logp_old_N)
        run.learner.step = step  # type: ignore[method-assign]
        mine = run.learner.gradient("policy", back, penalties=False)
        run.learner.method = run.method.but(penalties=())
        torch.testing.assert_close(mine, run.learner.gradient("policy", back))
        assert float(mine.abs().max()) > 0
