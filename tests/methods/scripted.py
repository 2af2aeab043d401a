"""Rollouts that go by a script: prompts, engines that say what they are told, and who is used for what."""

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count
from typing import Any

from drawing import Scripted, bench, task

from gruppo.data import Episode, Use
from gruppo.engines.base import Completion, Request
from gruppo.methods import method
from gruppo.stages import Context, Method, Sampling

GRPO = method("grpo").but(penalties=())


TASKS = [task(i) for i in range(3)]


def uses(episodes: list[Episode]) -> list[int]:
    return [sum(e.use == use for e in episodes) for use in (Use.LEARN, Use.NONE, Use.APART)]


def in_turn(*texts: str) -> Any:
    """A script that says these texts one after the other, again and again; and r for a refinement."""
    said: Iterator[int] = count()
    return lambda prompt, request: "r" if "\n" in prompt else texts[next(said) % len(texts)]


class Cut(Scripted):
    """Says what it is told, and stops where the request ends."""

    async def generate(self, requests: Sequence[Request]) -> AsyncIterator[tuple[int, Completion]]:
        async for i, c in super().generate(requests):
            n = requests[i].max_tokens
            yield i, c if len(c.ids) <= n else Completion(c.ids[:n], c.logp[:n], c.version[:n], "length")


def writes(text: str) -> Any:
    """A script that writes this after every prompt, and goes on with it where a part stands there already."""
    return lambda prompt, request: text[len(prompt.split("=", 1)[1]) :]


def cutting(m: Method, text: str, max_tokens: int, **fields: Any) -> Context:
    ctx = bench(m, lambda p, r: "", lambda e: 1.0, sampling=Sampling(max_tokens=max_tokens), **fields)
    ctx.engine = Cut(writes(text))
    return ctx
