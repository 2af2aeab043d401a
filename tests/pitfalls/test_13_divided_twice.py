"""Pitfall 13: "accumulate-then-divide twice (Trainer divides by GAS)". Rule: "own the step".

Adam hides a gradient that is k times too small, so weights are the wrong place to look: the logged norm is the
right one. If the bug came back, it would shrink with the number of micro-batches, and clipping would act k times
too late.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import flat, running, take_step

from gruppo.train.learner import Learner, OptimConfig


def one_step(policy: Path, micro_tokens: int) -> tuple[float, torch.Tensor]:
    with running(policy, optim=OptimConfig(lr=0.01, clip_norm=1e9, micro_tokens=micro_tokens)) as run:
        facts = take_step(run).facts
        return facts["grad_norm"], flat(run.models["policy"])


def test_accumulation_does_not_shrink_the_gradient(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, after = one_step(policy, 1 << 20)
    pieces, after_pieces = one_step(policy, 1)
    assert whole > 0.1 and pieces == pytest.approx(whole, rel=1e-4)

    grad = Learner.grad

    def divided(self: Learner, role: str, batch: Any, *rest: Any, **more: Any) -> None:  # the bug
        grad(self, role, batch, *rest, **more)
        for p in self.models[role].parameters():
            p.grad /= batch.size("S")

    monkeypatch.setattr(Learner, "grad", divided)
    shrunk, after_shrunk = one_step(policy, 1)
    assert shrunk == pytest.approx(whole / 32, rel=1e-4)
    moved = [float((other - after).abs().max()) for other in (after_pieces, after_shrunk)]
    assert max(moved) < 0.005  # half a step: Adam hides it


def test_the_step_is_taken_once_a_batch(policy: Path) -> None:
    with running(policy, optim=OptimConfig(micro_tokens=1)) as run:
        take_step(run)
        assert {int(s["step"]) for s in run.learner.moments("policy")} == {1}
