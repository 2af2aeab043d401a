"""The resident engine: many callers against one call, dialogues of several turns, and forks.

    python benchmarks/engine.py

Prints one line for each figure. Times are seconds of the processor, on one thread, the best of several, in turns: other
processes and a clock that changes do not count. Tokens are counted by the engine.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import torch

from gruppo.engines import Completion, NativeEngine, Request, complete
from gruppo.policies import TinyConfig, TinyTransformer

CALLERS, PROMPT, ANSWER, REPEATS = 64, 60, 16, 25
TURNS, SEEN, SAID = 8, 40, 12
MODEL = TinyConfig(context=512)  # as large as the built-in policy


def engine_of(cache_tokens: int = 65536) -> NativeEngine:
    return NativeEngine({"policy": TinyTransformer(MODEL)}, eos=None, cache_tokens=cache_tokens)


def requests(seed: int) -> list[Request]:
    rng = np.random.default_rng(seed)
    return [Request(rng.integers(3, MODEL.vocab, PROMPT), ANSWER, key=i) for i in range(CALLERS)]


async def asked(engine: NativeEngine, some: Sequence[Request]) -> list[Completion]:
    return await asyncio.gather(*(engine.ask(r) for r in some))


def seconds(work: Callable[[], Awaitable[object]]) -> float:
    async def timed() -> float:
        start = time.process_time()
        await work()
        return time.process_time() - start

    return asyncio.run(timed())


def callers() -> None:
    """One call of 64 against 64 callers of one."""
    engine = engine_of()
    one, many = list[float](), list[float]()
    for i in range(REPEATS):
        some = requests(i)
        one.append(seconds(lambda some=some: complete(engine, some)))
        many.append(seconds(lambda some=some: asked(engine, some)))
    print(f"one call of {CALLERS} requests ({PROMPT} + {ANSWER} tokens): {1e3 * min(one):.1f} ms")
    print(f"{CALLERS} callers with one request each: {1e3 * min(many):.1f} ms, {min(many) / min(one):.2f} ×")


async def talk(engine: NativeEngine, number: int) -> int:
    """One dialogue; returns the tokens that were seen or said in it."""
    rng, ids = np.random.default_rng(number), np.zeros(0, np.int64)
    for turn in range(TURNS):
        ids = np.concatenate([ids, rng.integers(3, MODEL.vocab, SEEN)])
        done = await engine.ask(Request(ids, SAID, key=1000 * number + turn))
        ids = np.concatenate([ids, done.ids])
    return len(ids)


def dialogues(cache_tokens: int = 65536) -> None:
    engine = engine_of(cache_tokens)

    async def all_of_them() -> int:
        return sum(await asyncio.gather(*(talk(engine, i) for i in range(CALLERS))))

    start = time.process_time()
    new = asyncio.run(all_of_them())
    took, computed = time.process_time() - start, engine.prefilled + engine.decoded
    print(
        f"{CALLERS} dialogues of {TURNS} turns ({SEEN} + {SAID}), cache_tokens={cache_tokens}: "
        f"{computed:,} tokens computed, {new:,} new, {computed / new:.3f} ×, {took:.2f} s"
    )


def forks() -> None:
    """The same prompt again, and a fork in the middle of an answer."""
    engine = engine_of()
    [first] = requests(0)[:1]

    async def fork() -> tuple[int, int]:
        done = await engine.ask(first)
        before = engine.prefilled
        await engine.ask(Request(first.prefix, ANSWER, key=7))
        again = engine.prefilled
        await engine.ask(Request(np.concatenate([first.prefix, done.ids[:8]]), ANSWER, key=8))
        return again - before, engine.prefilled - again

    again, middle = asyncio.run(fork())
    print(f"the same prompt again: {again} tokens of it computed; a fork after 8 tokens: {middle} (of {PROMPT + 8})")


if __name__ == "__main__":
    torch.set_num_threads(1)
    callers()
    dialogues()
    dialogues(0)
    forks()
