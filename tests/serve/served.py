"""What the tests of the endpoint share: a puppet of an engine, a small policy, and programs as text."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gruppo.data import Episode
from gruppo.engines.base import Completion, Request
from gruppo.policies import CharTokenizer
from gruppo.serve.player import Agents
from gruppo.serve.programs import programs_of
from gruppo.stages import Context, Sampling
from gruppo.stages.context import Ask
from gruppo.stages.play import Start
from gruppo.stages.prompting import plain
from gruppo.tasks import Task


class Puppet:
    """An engine that says what it is told, in turn; "" ends at once. Texts that end in … are cut off."""

    version = 0

    def __init__(self, said: Sequence[str] = (), tokenizer: Any = None, room: int = 1024) -> None:
        self.said, self.tokenizer, self.room = list(said), tokenizer or CharTokenizer(), room
        self.asked = list[Request]()

    def context(self, role: str = "policy") -> int:
        return self.room

    async def ask(self, request: Request) -> Completion:
        self.asked.append(request)
        await asyncio.sleep(0)
        text = self.said.pop(0) if self.said else "ok"
        ids = self.tokenizer.encode(text.removesuffix("…"))
        ids = ids if text.endswith("…") else np.append(ids, self.tokenizer.eos)
        reason = "length" if text.endswith("…") else "stop"
        return Completion(ids, np.full(len(ids), -1.0), np.zeros(len(ids), np.int32), reason)


def context(engine: Any, tokens: int = 8, tokenizer: Any = None) -> Context:
    return Context(engine=engine, tokenizer=tokenizer or CharTokenizer(), sampling=Sampling(max_tokens=tokens))


def task(i: int = 0) -> Task:
    return Task(f"t{i}", f"{i}+{i}=", str(2 * i), 1, "sums")


def starts(ctx: Context, n: int = 1, **how: Any) -> list[Start]:
    asks = [Ask(task(i), 1, how=how) for i in range(n)]
    return [Start(plain(ctx, ask)[0], 100 + i, ctx.sampling) for i, ask in enumerate(asks)]


def played(ctx: Context, agent: str, n: int = 1, how: Any = None, **options: Any) -> list[Episode]:
    """Episodes of an agent, in the order of the starts."""
    play = Agents(programs_of(agent), **options)
    play.programs.start()

    async def all_of_them() -> dict[int, Episode]:
        return {i: e async for i, e in play(ctx, starts(ctx, n, **(how or {})))}

    try:
        found = asyncio.run(asyncio.wait_for(all_of_them(), 60))
    finally:
        play.close()
    return [found[i] for i in range(n)]


def written(folder: Path, body: str, name: str = "mine.py") -> str:
    """A file with a function `agent`; returns its path."""
    (folder / name).write_text(body)
    return f"{folder / name}:agent"


def post(url: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """With plain urllib: the status, and the JSON or the text of the reply."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            status, text = reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read().decode()
    return status, json.loads(text) if text.startswith("{") else text
