"""Pitfall 3: "generation prompt missing / doubled between turns". Rule: "golden token test of a … dialogue".

Here one turn: <bos>, the task's own words, the answer, <eos>; chat templates of several turns have their golden tokens
in tests/policies/test_chat.py. If the bug came back, the ids below would have a token more or less between question and
answer.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import running

from gruppo.data import pack
from gruppo.engines import Completion, Request
from gruppo.stages import Ask, Prompt, prompting
from gruppo.tasks import Task

# <bos> 5 7 + 6 8 = 1 2 5 <eos>; '0' is id 20
GOLDEN = [1, 25, 27, 15, 26, 28, 33, 21, 22, 25, 2]


class Scripted:
    """Answers 125 to everything."""

    version = 7
    can: frozenset[str] = frozenset()

    async def generate(self, requests: Sequence[Request]) -> AsyncIterator[tuple[int, Completion]]:
        for i in reversed(range(len(requests))):
            yield i, Completion(np.array([21, 22, 25, 2]), np.full(4, -0.5), np.full(4, 7, np.int32), "stop")


def trained_ids(run: Any) -> list[int]:
    ctx = run.context(0)
    ctx.engine = Scripted()
    task = Task("addition/2/57+68", "57+68=", "125", 2, "addition")
    return pack(asyncio.run(run.walk.drawn(ctx, [Ask(task, 1)], run.method.rollout))).inputs.ids_M.tolist()


def test_the_golden_ids_of_one_turn(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(policy) as run:
        assert trained_ids(run) == GOLDEN

        for bug in ("57+68==", "57+68"):  # doubled, missing

            def wrong(ctx: Any, ask: Ask, text: str = bug) -> list[Prompt]:
                ids = np.concatenate([[1], ctx.tokenizer.encode(text)])
                return [Prompt(ids, ask, ask.group, ask.samples)]

            monkeypatch.setattr(prompting, "plain", wrong)
            assert trained_ids(run) != GOLDEN
