"""The rooms before the batch, for the laws: tasks, a tokenizer, and an engine that really samples."""

import asyncio
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from gruppo.data import Episode
from gruppo.data.keyed import uniform
from gruppo.engines.native import NativeEngine
from gruppo.lab.laws.world import GROUPS, World
from gruppo.policies import CharTokenizer, TinyConfig, TinyTransformer
from gruppo.stages import Ask, Method, Prompt
from gruppo.stages.prompting import prompts_for
from gruppo.stages.reward import add_components
from gruppo.stages.rollout import Group
from gruppo.tasks import Task


class Desk:
    """The rooms before the batch: tasks, a tokenizer and an engine that really samples."""

    def __init__(self, world: World) -> None:
        self.ctx = world.ctx
        self.tasks = [
            Task(f"t-{g}", f"{i}+{i}=", str(2 * i), 1 + i % 2, "desk", f"{i} and {i} is {2 * i}")
            for i, g in enumerate(GROUPS)
        ]
        config = TinyConfig(vocab=CharTokenizer.vocab, dim=8, layers=1, heads=2, ffn=12, context=64)
        policy = TinyTransformer(config, world.seed).double()
        models = {"policy": policy, **{name: policy for name in world.method.cast}}
        self.ctx.tokenizer, self.ctx.engine = CharTokenizer(), NativeEngine(models)
        self.ctx.prompts, self.ctx.samples = 3, 2
        self.ctx.fresh = lambda n: world.method.curriculum(replace(self.ctx, prompts=n, round=1), self.tasks)
        self.ctx.draw = lambda asks: self._draw(world.method, asks)
        self.ctx.reward = lambda episodes: self._reward(world.method, list(episodes))

    async def _draw(self, method: Method, asks: Seq[Ask | Prompt]) -> list[Episode]:
        prompts: list[Prompt] = []
        for ask in asks:
            prompts += [ask] if isinstance(ask, Prompt) else prompts_for(self.ctx, method.prompting, ask)
        return self._reward(method, await Group()(self.ctx, prompts))

    def _reward(self, method: Method, episodes: list[Episode]) -> list[Episode]:
        """Right or wrong by chance, keyed by what was written; an episode is scored once."""
        new = [e for e in episodes if e.status.judged and "task" not in e.reward]
        for e in new:
            e.reward["task"] = float(uniform("right", e.task, e.text) < 0.5)
        add_components(self.ctx, method.reward, new)
        return episodes

    def asks(self, curriculum: Any) -> list[Ask]:
        return curriculum(self.ctx, self.tasks)

    def prompts(self, chain: Seq[Any]) -> list[Prompt]:
        """Every second ask wishes for a hint, and has a draft."""
        asks = [Ask(t, 4, how={"hint": 0.5, "draft": "12"} if i % 2 else {}) for i, t in enumerate(self.tasks[:4])]
        return [p for ask in asks for p in prompts_for(self.ctx, tuple(chain), ask)]

    def episodes(self, rollout: Any, chain: Seq[Any] = ()) -> list[Episode]:
        return asyncio.run(rollout(self.ctx, self.prompts(chain)))
