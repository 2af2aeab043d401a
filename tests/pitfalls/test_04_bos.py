"""Pitfall 4: "BOS twice or never". Rule: "pass ids, not text, to the sampler".

If the bug came back, a prompt would start with two <bos> or none, in the sampler, in the trainer, or in both; step
zero must refuse both. A <bos> that the policy samples is no such bug, and must not be taken for one.
"""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import BOS, drawn, in_world, running

from gruppo.data import Source, pack
from gruppo.engines.native import NativeEngine
from gruppo.stages import Ask, Prompt, prompting
from gruppo.train.doctor import refuse, step_zero


def test_sampler_and_trainer_see_one_bos(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    generate = NativeEngine.generate

    async def listening(engine: Any, requests: Any) -> Any:
        asked.extend(requests)
        async for pair in generate(engine, requests):
            yield pair

    monkeypatch.setattr(NativeEngine, "generate", listening)
    with running(policy) as run:
        episodes = drawn(run)
    for request, e in zip(asked, episodes, strict=True):
        assert request.prefix[0] == BOS and (request.prefix == BOS).sum() == 1
        s = e.sequences[0]
        assert np.array_equal(s.ids[: s.prompt_len], request.prefix)
    inputs = pack(episodes).inputs
    assert bool((inputs.ids_M[inputs.pos_M == 0] == BOS).all())


def prompts_with(count: int) -> Any:
    def plain(ctx: Any, ask: Ask) -> list[Prompt]:
        ids = np.concatenate([np.full(count, BOS), ctx.tokenizer.encode(ask.task.prompt)])
        return [Prompt(ids.astype(np.int64), ask, ask.group, ask.samples)]

    return plain


@pytest.mark.parametrize("count", [0, 2])
def test_step_zero_refuses_another_number_of_bos(policy: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    with running(policy) as run:
        refuse(asyncio.run(step_zero(run)))
        monkeypatch.setattr(prompting, "plain", prompts_with(count))
        with pytest.raises(ValueError, match="tokens"):
            refuse(asyncio.run(step_zero(run)))


def test_a_sampled_bos_is_no_fault(policy: Path) -> None:
    with running(policy) as run:
        middle = [e for e in drawn(run) if BOS in e.sequences[0].ids[e.sequences[0].prompt_len :]]
        assert middle
        tokens = next(c for c in asyncio.run(step_zero(run)) if c.name == "tokens")
        assert tokens.ok


def test_the_tokenizer_adds_nothing(policy: Path) -> None:
    with running(policy) as run:
        assert BOS not in run.tokenizer.encode("<bos>57+68=")
        assert len(run.tokenizer.encode("57+68=")) == 6


@pytest.mark.parametrize("window", [-1, 1])
def test_a_dialogue_has_one_bos(window: int, policy: Path, tmp_path: Path) -> None:
    """One a context: not one a turn, and in windows, where every turn has a context of its own, not one an episode."""
    with running(policy, task=in_world(tmp_path, window=window)) as run:
        episodes = drawn(run)
    assert {len(e.sequences) for e in episodes} == {3 if window >= 0 else 1}
    for s in (s for e in episodes for s in e.sequences):
        given = s.ids[s.source == Source.ENV]
        assert given[0] == BOS and (given == BOS).sum() == 1
