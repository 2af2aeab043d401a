"""Sampling ahead of learning: what is said and refused, and what is kept."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_source import run_of, taken

from gruppo.train import loop
from gruppo.train.ranks import Ranks
from gruppo.train.source import Ahead, Sampler


def test_the_warning_names_the_setting_once() -> None:
    run = run_of("steps=4", "ahead=2")
    taken(run, 4)
    [told] = [w for w in run.words if "older" in w or "steps old" in w]  # type: ignore[attr-defined]
    assert "ahead=2" in told and "method.select+=truncated_importance" in told
    assert any(w.startswith("ahead=2: 3 copies of the weights") for w in run.words)  # type: ignore[attr-defined]
    for quiet in (("ahead=2", "method.select+=truncated_importance"), ("ahead=2", "method=grpo_tis"), ("ahead=0",)):
        run = run_of("steps=3", *quiet)
        taken(run, 3)
        assert not [w for w in run.words if "steps old" in w], quiet  # type: ignore[attr-defined]


def test_a_role_that_has_changed_meanwhile_cannot_be_read() -> None:
    run = run_of("method=ppo", "ahead=1")
    try:
        sampler = run.source.samplers[0]  # type: ignore[attr-defined]
        assert "critic" not in sampler.models and "policy" in sampler.models
        with pytest.raises(ValueError, match=r"ahead=1: ppo reads the role 'critic' while episodes are drawn.*ahead=0"):
            sampler._read("critic", None, [])
    finally:
        run.close()


def test_steps_are_taken_in_their_order() -> None:
    run = run_of("steps=4", "ahead=1")

    async def skip() -> None:
        await loop.train_step(run, 0)
        await loop.train_step(run, 2)

    try:
        with pytest.raises(ValueError, match="drawn for step 1, and step 2"):
            asyncio.run(skip())
    finally:
        run.close()


def test_there_are_no_more_copies_of_the_weights_than_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Sampler] = []
    monkeypatch.setattr(Sampler, "__init__", lambda self, run: made.append(self))
    monkeypatch.setattr(Ahead, "_copies", lambda self: "")
    ranks, config, device = Ranks(), SimpleNamespace(steps=3), torch.device("cpu")
    run: Any = SimpleNamespace(learner=SimpleNamespace(ranks=ranks), config=config, device=device, say=print)
    for versions, count in ((1_000_000, 3), (2, 3), (1, 2)):
        made.clear()
        Ahead(run, versions).close()
        assert len(made) == count
