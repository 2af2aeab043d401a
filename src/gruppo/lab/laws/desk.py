"""For laws about the rooms before the batch: tasks, a tokenizer, and an engine that really samples."""

from collections.abc import Sequence as Seq
from typing import Any

from gruppo.data import Episode
from gruppo.data.keyed import uniform
from gruppo.engines.native import NativeEngine
from gruppo.lab.laws.episodes import GROUPS
from gruppo.lab.laws.world import World
from gruppo.policies import CharTokenizer, TinyConfig, TinyTransformer
from gruppo.stages import Ask, Prompt
from gruppo.stages.prompting import prompts_for
from gruppo.tasks import Task
from gruppo.tasks.judge import Verdict
from gruppo.train.waiting import waited


class ByChance:
    """A judge that calls answers right or wrong at random, keyed by their text."""

    in_order = True

    async def score(self, items: Seq[tuple[Task, str]]) -> list[Verdict]:
        return [Verdict({"task": float(uniform("right", task.uid, text) < 0.5)}) for task, text in items]

    async def answers(self, groups: Seq[Seq[tuple[Task, str]]]) -> list[list[str]]:
        return [[text for _, text in group] for group in groups]


class Desk:
    """Adds tasks, a judge and an engine to the walk of a world."""

    def __init__(self, world: World) -> None:
        self.tasks = [
            Task(f"t-{g}", f"{i}+{i}=", str(2 * i), 1 + i % 2, "desk", f"{i} and {i} is {2 * i}")
            for i, g in enumerate(GROUPS)
        ]
        config = TinyConfig(vocab=CharTokenizer.vocab, dim=8, layers=1, heads=2, ffn=12, context=64)
        policy = TinyTransformer(config, world.seed).double()
        models = {"policy": policy, **{name: policy for name in world.method.cast}}
        world.walk.tasks, world.walk.judge = self.tasks, ByChance()
        self.ctx = world.walk.opened(world.ctx, world.store)
        self.ctx.tokenizer, self.ctx.engine = CharTokenizer(), NativeEngine(models)
        self.ctx.prompts, self.ctx.samples = 3, 2

    def asks(self, curriculum: Any) -> list[Ask]:
        return curriculum(self.ctx, self.tasks)

    def prompts(self, chain: Seq[Any]) -> list[Prompt]:
        """Every second ask requests a hint, and has a draft."""
        asks = [Ask(t, 4, how={"hint": 0.5, "draft": "12"} if i % 2 else {}) for i, t in enumerate(self.tasks[:4])]
        return [p for ask in asks for p in prompts_for(self.ctx, tuple(chain), ask)]

    def episodes(self, rollout: Any, chain: Seq[Any] = ()) -> list[Episode]:
        return waited(rollout(self.ctx, self.prompts(chain)))
