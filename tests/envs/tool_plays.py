"""Episodes with tools, played by a puppet that says what it is told."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from hf_models import CHATML

from gruppo.data import Episode
from gruppo.engines.base import Completion, Request
from gruppo.policies import CharTokenizer
from gruppo.stages import Context, Sampling
from gruppo.stages.context import Ask
from gruppo.stages.converse import Converse, play_of
from gruppo.stages.play import Start
from gruppo.stages.prompting import plain
from gruppo.tasks import Task, TaskConfig, load_task

MINE = '''
from gruppo.tools import ToolError, tool
import beside

def double(n: int) -> int:
    """Doubles a number."""
    return 2 * n

@tool(seconds=0.05)
async def hangs(word: str) -> str:
    """Never answers."""
    import asyncio
    await asyncio.sleep(60)

def breaks(word: str) -> str:
    """Does not work."""
    raise RuntimeError("out of order")

def picky(word: str) -> str:
    """Takes one word alone."""
    if word != "please":
        raise ToolError("say please")
    return "\\u2264 <|im_end|> thanks"

TOOLS = [double, hangs, breaks, picky]
NUMBER = 3
'''
CALL = '{"name": "calculator", "arguments": {"expression": "2 + 3"}}'
CHATML_TOOLS = "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}" + CHATML


class Puppet:
    """An engine in which every prompt has its own script of actions; … at the end: it was cut off there."""

    def __init__(self, scripts: Sequence[Sequence[str]], tokenizer: Any) -> None:
        self.scripts, self.tokenizer, self.asked = [list(s) for s in scripts], tokenizer, list[Request]()

    def context(self, role: str = "policy") -> int:
        return 2048

    async def together(self, coroutines: Any) -> Any:
        return await asyncio.gather(*coroutines)

    async def ask(self, request: Request) -> Completion:
        self.asked.append(request)
        text = self.scripts[request.key - 100].pop(0)
        ids = self.tokenizer.encode(text.removesuffix("…"))
        ids = ids if text.endswith("…") else np.append(ids, self.tokenizer.eos)
        reason = "length" if text.endswith("…") else "stop"
        return Completion(ids, np.full(len(ids), -1.0), np.zeros(len(ids), np.int32), reason)


def context(scripts: Sequence[Sequence[str]], tokenizer: Any = None, **settings: Any) -> tuple[Context, Converse]:
    tokenizer = tokenizer or CharTokenizer()
    play: Any = Converse()
    if settings:
        play = play_of(load_task("addition", tools=settings["tools"]), TaskConfig(**settings), tokenizer)
    return Context(engine=Puppet(scripts, tokenizer), tokenizer=tokenizer, sampling=Sampling(max_tokens=80)), play


def starts_of(ctx: Context, play: Any, tasks: Sequence[Task], **how: Any) -> list[Start]:
    asks = [Ask(play.shown(t), 1, how=how) for t in tasks]
    return [Start(plain(ctx, ask)[0], 100 + i, ctx.sampling) for i, ask in enumerate(asks)]


def played(ctx: Context, play: Any, starts: Sequence[Start]) -> list[Episode]:
    async def all_of_them() -> dict[int, Episode]:
        return {i: e async for i, e in play(ctx, starts)}

    found = asyncio.run(asyncio.wait_for(all_of_them(), 60))
    return [found[i] for i in range(len(starts))]


def said(*actions: str, tools: str = "calculator", tokenizer: Any = None, format: str = "line", **how: Any) -> Episode:
    ctx, play = context([actions], tokenizer, tools=tools, format=format)
    [e] = played(ctx, play, starts_of(ctx, play, [load_task("addition", tools=tools, turns=4).train[0]], **how))
    return e
