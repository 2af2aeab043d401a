"""Pitfall 3: "generation prompt missing / doubled between turns". Rule: "golden token test of a … dialogue".

One turn: <bos>, the task's own words, the answer, <eos>. Three turns in a world, with the built-in tokenizer and with a
chat template; other templates have their golden tokens in tests/policies/test_chat.py. If the bug came back, the ids
below would have a token more or less between question and answer.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import WORLDS, running

from gruppo.data import pack
from gruppo.engines import Completion, Request
from gruppo.policies import CharTokenizer
from gruppo.stages import Ask, Context, Prompt, Sampling, prompting
from gruppo.stages.converse import Converse
from gruppo.stages.play import Start
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


class Acts:
    """Does 12 in every turn, and ends it."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = np.array(ids)

    def context(self, role: str = "policy") -> int:
        return 256

    async def together(self, coroutines: Any) -> Any:
        return [await c for c in coroutines]

    async def ask(self, request: Request) -> Completion:
        n = len(self.ids)
        return Completion(self.ids, np.full(n, -0.5), np.zeros(n, np.int32), "stop")


def three_turns(tokenizer: Any) -> list[int]:
    """The ids that are trained on after three turns in a world that says "go", "on" and "on"."""
    play, engine = Converse(), Acts([*tokenizer.encode("12").tolist(), tokenizer.eos])
    ctx = Context(engine=engine, tokenizer=tokenizer, sampling=Sampling(max_tokens=8))
    task = play.shown(Task("t", "5", "", 1, "t", meta={"env": f"{WORLDS}:Lucky"}))

    async def played() -> list[Any]:
        return [e async for _, e in play(ctx, [Start(prompting.plain(ctx, Ask(task, 1))[0], 1, ctx.sampling)])]

    return pack(asyncio.run(played())).inputs.ids_M.tolist()


# <bos> 5 \n g o, then 1 2 <eos> and what is seen, o n
GOLDEN_TURNS = [1, 25, 3, 75, 83, *(21, 22, 2, 83, 82) * 2, 21, 22, 2]


def test_the_golden_ids_of_three_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert three_turns(CharTokenizer()) == GOLDEN_TURNS
    follow = CharTokenizer.follow
    for bug in (lambda ids: np.append(ids, 33), lambda ids: ids[1:]):  # doubled, missing
        monkeypatch.setattr(CharTokenizer, "follow", lambda *given, bug=bug: bug(follow(*given)))
        assert three_turns(CharTokenizer()) != GOLDEN_TURNS


def test_the_golden_text_of_three_turns_in_a_chat_template() -> None:
    pytest.importorskip("transformers")
    from chat_templates import CHATML
    from hf_models import chat_tokenizer

    from gruppo.policies.hf_tokenizer import HFTokenizer

    tok = chat_tokenizer(CHATML)
    seen = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n12<|im_end|>".format
    assert tok.decode(three_turns(HFTokenizer(tok))) == "\n".join([seen("5\ngo"), seen("on"), seen("on")])
