"""A bench for rollouts: an engine that says what a script tells it, tasks by hand, and steps of a real run."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from gruppo.cli import overrides
from gruppo.data import Episode, Status
from gruppo.engines.base import Completion, Request
from gruppo.policies import CharTokenizer
from gruppo.stages import Ask, Context, Method, Sampling, StepRecord
from gruppo.stages.prompting import prompts_for
from gruppo.stages.walk import Walk
from gruppo.tasks import Task
from gruppo.train.config import RunConfig
from gruppo.train.loop import train_step
from gruppo.train.run import Run

TOKENS = CharTokenizer()
T = TypeVar("T")
Say = Callable[[str, Request], str]  # what is written after this text
Worth = Callable[[Episode], float | None]  # None: it could not be judged


class Scripted:
    can: frozenset[str] = frozenset()
    version, sampled = 0, 0

    def __init__(self, say: Say) -> None:
        self.say = say
        self.heard: list[Request] = []

    async def generate(self, requests: Sequence[Request]) -> AsyncIterator[tuple[int, Completion]]:
        self.heard += requests
        for i, r in enumerate(requests):
            ids = np.append(TOKENS.encode(self.say(TOKENS.decode(r.prefix), r)), TOKENS.eos).astype(np.int64)
            yield i, Completion(ids, np.full(len(ids), -0.5, np.float32), np.zeros(len(ids), np.int32), "stop")


def task(i: int = 0, hints: Sequence[str] = ("1", "12", "123")) -> Task:
    return Task(f"t{i}", f"q{i}=", "1234", 1, "own", "1234", meta={"hints": list(hints)})


class Judged(Walk):
    """The walk of a run, in which an episode is worth what a function says."""

    worth: Worth = staticmethod(lambda e: 1.0)

    async def scored(self, ctx: Context, episodes: Sequence[Episode]) -> None:
        for e in episodes:
            if not e.status.judged or "task" in e.reward:
                continue
            value = self.worth(e)
            if value is None:
                e.status = Status.ENV_ERROR
            else:
                e.reward["task"] = value


def bench(method: Method, say: Say, worth: Worth, **fields: Any) -> Context:
    """A context that draws and judges as a run does."""
    walk = Judged(method, read=lambda role, batch, needs: {})
    walk.worth = worth
    ctx = walk.opened(Context(**{"step": 5, "steps": 10, "sampling": Sampling(max_tokens=16), **fields}))
    ctx.tokenizer, ctx.engine, ctx.replay = TOKENS, Scripted(say), fields.get("replay", ())
    return ctx


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine. `asyncio.run` writes a result that it returns down as text (Python 3.11, to restore
    the handler of a signal), which takes longer than the step that made it."""
    found: list[T] = []

    async def kept() -> None:
        found.append(await coroutine)

    asyncio.run(kept())
    return found[0]


def rolled(method: Method, ctx: Context, tasks: Sequence[Task], samples: int = 4) -> list[Episode]:
    """What the method's rollout makes of these tasks, judged."""
    prompts = [p for t in tasks for p in prompts_for(ctx, method.prompting, Ask(t, samples))]

    async def drawn() -> list[Episode]:
        return await ctx.reward(await method.rollout(ctx, prompts))

    return finished(drawn())


def prompt_of(e: Episode) -> str:
    s = e.sequences[0]
    return TOKENS.decode(s.ids[: s.prompt_len])


SMALL = ("model=tiny", "prompts=3", "samples=4", "steps=4", "save.tensorboard=no", "eval.every=0", "threads=1")
# Of several turns, and of a policy that knows nothing.
IN_A_WORLD = ("model=tiny-random", "task=guess", "task.options.turns=3", "prompts=2", "samples=3")
IN_A_WORLD += ("sampling.max_tokens=12", "accept=dead_groups,mask")


def steps_of(method: Method, *settings: str, first: int = 0, steps: int = 1) -> tuple[dict[str, Any], list[StepRecord]]:
    """The weights after some steps of a real run, and the records of the steps."""
    run = Run(replace(overrides.apply(RunConfig(), (*SMALL, *settings)), method=method), say=lambda said: None)
    try:
        records = [finished(train_step(run, step)) for step in range(first, first + steps)]
        return {k: v.clone() for k, v in run.models["policy"].state_dict().items()}, records
    finally:
        run.close()


def far_apart(a: dict[str, Any], b: dict[str, Any]) -> float:
    return max(float((a[k].double() - b[k].double()).abs().max()) for k in a)


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(torch.equal(a[k], b[k]) for k in a)
