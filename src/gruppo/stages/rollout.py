"""How are episodes made? A coroutine: it may wait for an engine, an environment or a reward."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from gruppo.data import Episode, Note, Source, Status, key_hash, single_turn
from gruppo.engines.base import Completion, Request, complete
from gruppo.stages.context import Ask, Context, Prompt, Sampling
from gruppo.stages.occupant import Occupant


class Rollout(Protocol):
    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]: ...


def sampling_for(ctx: Context, ask: Ask) -> Sampling:
    """The run's sampling, with what the ask says about it."""
    said = {k: v for k, v in ask.how.items() if k in Sampling.__dataclass_fields__}
    return replace(ctx.sampling, **said)


def episode_uid(ctx: Context, prompt: Prompt, place: int, sample: int) -> int:
    ask = prompt.ask
    how = ",".join(f"{k}={ask.how[k]}" for k in sorted(ask.how))
    uid = key_hash(ctx.seed, ctx.step, "episode", ctx.round, prompt.group, ask.key, how, place, sample)
    assert isinstance(uid, int)
    return uid


def requests_for(ctx: Context, prompts: Sequence[Prompt]) -> list[tuple[Prompt, int, Request]]:
    """(prompt, episode uid, request) for every sample of every prompt."""
    out: list[tuple[Prompt, int, Request]] = []
    for place, prompt in enumerate(prompts):
        how = vars(sampling_for(ctx, prompt.ask))
        for sample in range(prompt.samples):
            uid = episode_uid(ctx, prompt, place, sample)
            out.append((prompt, uid, Request(prefix=prompt.ids, key=uid, stop=(ctx.tokenizer.eos,), **how)))
    return out


def prompt_source(prompt: Prompt) -> Any:
    source = np.full(len(prompt.ids), Source.ENV, np.int8)
    for start, stop, name in prompt.given:
        source[start:stop] = Source[name.upper()]
    return source


@dataclass(frozen=True)
class Group(Occupant):
    """`samples` answers to every prompt, one turn each: the plain default."""

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        wanted = requests_for(ctx, prompts)
        done = await complete(ctx.engine, [request for _, _, request in wanted])
        return [
            self.episode(ctx, prompt, uid, request, completion)
            for (prompt, uid, request), completion in zip(wanted, done, strict=True)
        ]

    def episode(self, ctx: Context, prompt: Prompt, uid: int, request: Request, completion: Completion) -> Episode:
        given = [prompt.ids[a:b] for a, b, _ in prompt.given]  # decisions made for the policy: part of its answer
        return single_turn(
            uid,
            prompt.ask.task.uid,
            prompt.group,
            prompt.ids,
            completion.ids,
            completion.logp,
            completion.version,
            temperature=request.temperature,
            allowed=completion.allowed,
            prompt_source=prompt_source(prompt) if prompt.given else None,
            train_as=prompt.train_as,
            status=Status.OK if completion.reason == "stop" else Status.TRUNCATED,
            text=ctx.tokenizer.decode(np.concatenate([*given, completion.ids])),
            notes={k: Note(np.array([v], np.float32)) for k, v in prompt.ask.notes.items()},
            step=ctx.step,
        )
