"""Rollouts in environments: a policy that knows nothing, or an engine that goes by a script."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gruppo.data import Episode
from gruppo.engines import NativeEngine, Request
from gruppo.engines.base import Completion
from gruppo.policies import CharTokenizer, TinyConfig, TinyTransformer
from gruppo.stages import Context, Method, Sampling
from gruppo.stages.context import Ask
from gruppo.stages.converse import Converse
from gruppo.stages.walk import Walk
from gruppo.tasks import load_task

EOS = CharTokenizer.eos


def small_policy() -> TinyTransformer:
    config = TinyConfig(vocab=CharTokenizer.vocab, dim=16, layers=2, heads=2, kv_heads=1, ffn=16, context=1024)
    return TinyTransformer(config).to(torch.float64)


def real_engine() -> NativeEngine:
    return NativeEngine({"policy": small_policy()}, eos=EOS, decode=CharTokenizer().decode)


def turn_of(request: Request) -> int:
    """The turn that a request is for: actions end in eos, and nothing else does."""
    return int((request.prefix == EOS).sum())


class Told:
    """An engine that says what it is told by request, with the entropies that it is told."""

    def __init__(self, say: Callable[[Request], str], unsure: Callable[[Request], bool] = lambda r: False) -> None:
        self.say, self.unsure, self.asked = say, unsure, list[Request]()

    def context(self, role: str = "policy") -> int:
        return 4096

    async def together(self, coroutines: Any) -> Any:
        return [await c for c in coroutines]

    async def ask(self, request: Request) -> Completion:
        self.asked.append(request)
        ids = np.append(CharTokenizer().encode(self.say(request)), EOS)
        p = np.full((len(ids), 2), 0.5 if self.unsure(request) else 0.1)
        topk = (np.zeros((len(ids), 2), np.int64), np.log(p)) if request.topk_logprobs else None
        return Completion(ids, np.full(len(ids), -1.0), np.zeros(len(ids), np.int32), "stop", topk)


def played(method: Method, engine: Any, world: str, tasks: int = 1, samples: int = 4, **how: Any) -> list[Episode]:
    """The episodes that a method's rollout makes, with their rewards."""
    play, set_ = Converse(), load_task(world)
    walk = Walk(method, lambda role, batch, needs: {}, tasks=set_.train, play=play)
    ctx = Context(engine=engine, tokenizer=CharTokenizer(), sampling=Sampling(max_tokens=6))
    ctx = walk.opened(ctx)
    asks: Sequence[Ask] = [Ask(set_.train[i], samples, how=how, index=i) for i in range(tasks)]
    return asyncio.run(asyncio.wait_for(walk.drawn(ctx, asks, method.rollout), 60))
