"""examples/flat_loop.py is GRPO: its gradient is the learner's, and it learns."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from gruppo.data import pack
from gruppo.engines.native import NativeEngine
from gruppo.methods import method
from gruppo.policies import clone, load_policy, load_tokenizer
from gruppo.stages import Context
from gruppo.stages.walk import Walk
from gruppo.tasks import load_task
from gruppo.tasks.imports import load_object
from gruppo.tasks.judge import Judge
from gruppo.train.learner import Learner, OptimConfig

FILE = Path(__file__).parents[2] / "examples" / "flat_loop.py"


@pytest.fixture
def flat() -> Any:
    return load_object(f"{FILE}:main").__globals__


def test_it_is_short() -> None:
    assert len(FILE.read_text().splitlines()) <= 100


def test_its_gradient_is_the_learners(flat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away from the reference, so that both terms count; with another coefficient it is another gradient."""
    policy, tokenizer = clone(load_policy("tiny"), train=True), load_tokenizer("tiny")
    reference, tasks = load_policy("tiny"), load_task("addition", level=2)
    with torch.no_grad():
        for w in policy.parameters():
            w.mul_(1.02)
    engine = NativeEngine({"policy": policy}, eos=tokenizer.stops)
    with Judge(tasks.scorer) as judge:
        drawn = flat["answers"](engine, tokenizer, judge, tasks.train[:8], 8, tasks.max_tokens, 0)
        episodes = asyncio.run(drawn)
    assert 0 < sum(e.reward["task"] for e in episodes) < len(episodes)

    def gradient() -> torch.Tensor:
        flat["loss_of"](policy, reference, episodes).backward()
        found = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
        policy.zero_grad()
        return found

    grpo = method("grpo")
    learner = Learner(grpo, {"policy": policy, "ref": reference}, OptimConfig())
    walk, ctx = Walk(grpo, learner.read), Context()
    batch = walk.credited(ctx, walk.with_needs(pack(episodes), walk.needs(ctx)))
    theirs = learner.gradient("policy", batch)
    assert float((gradient() - theirs).norm() / theirs.norm()) < 1e-5
    for name, value in (("KL", 0.05), ("KL", 0.0)):
        monkeypatch.setitem(flat, name, value)
        assert float((gradient() - theirs).norm() / theirs.norm()) > 1e-3


def test_it_learns(flat: Any) -> None:
    before, after = asyncio.run(flat["main"](steps=8, held_out=100))
    assert after > before + 0.15
