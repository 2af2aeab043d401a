"""A context without a model: tasks, the character tokenizer, an engine that says what it is told, and a walk."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from gruppo.data import Episode
from gruppo.engines.base import Completion, Request
from gruppo.methods import method
from gruppo.policies import CharTokenizer
from gruppo.stages import Ask, Context, Prompt, Sampling
from gruppo.stages.walk import Walk
from gruppo.tasks import Task

TOKENS = CharTokenizer()


class Says:
    """Answers every request with the same text; "length" where it does not fit. Ends requests last first."""

    can: frozenset[str] = frozenset()
    version, sampled = 7, 0

    def __init__(self, text: str = "ab", eos: bool = True) -> None:
        self.ids = np.concatenate([TOKENS.encode(text), [TOKENS.eos] if eos else []]).astype(np.int64)
        self.heard: list[Request] = []

    async def generate(self, requests: Sequence[Request]) -> AsyncIterator[tuple[int, Completion]]:
        self.heard += requests
        for i, r in reversed(list(enumerate(requests))):
            ids = self.ids[: r.max_tokens]
            logp = -0.5 - np.arange(len(ids), dtype=np.float32) - i
            version = np.arange(len(ids), dtype=np.int32) + 10
            allowed = [np.array([t, 5]) for t in ids] if r.truncates else None
            yield i, Completion(ids, logp, version, "stop" if ids[-1] == TOKENS.eos else "length", None, allowed)


def task(i: int, **fields: Any) -> Task:
    return Task(f"t{i}", f"{i}+{i}=", str(2 * i), 1, "own", f"{i} and {i}", **fields)


def context(**fields: Any) -> Context:
    """Episodes are played by the walk of a run, and nobody judges them."""
    ctx = Context(**{"tokenizer": TOKENS, "engine": Says(), "sampling": Sampling(max_tokens=8), **fields})
    ctx.play = fields.get("play") or partial(Walk(method("grpo"), read=no_model).played, ctx)
    return ctx


def no_model(*_: Any) -> Any:
    raise AssertionError("there is no model here")


def prompt(ask: Ask, **fields: Any) -> Prompt:
    ids = TOKENS.chat(ask.task.messages)
    return Prompt(**{"ids": ids, "ask": ask, "group": ask.group, "samples": ask.samples, **fields})


def rolled(rollout: Any, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
    return asyncio.run(rollout(ctx, prompts))
