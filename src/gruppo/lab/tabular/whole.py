"""The training loop itself on an exact world, one seed after another: for methods that need episodes.

`train_step` is that of a run, with the same walk and the same learner. Only what surrounds them is small: the policy is
a table, and the engine samples from it.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, pack
from gruppo.engines.base import Completion, Request
from gruppo.lab.exact.groups import Masses, Script, Unlike
from gruppo.lab.exact.trial import ExactJudge
from gruppo.lab.exact.world import NEVER, ExactWorld, TableCritic, TablePolicy
from gruppo.lab.tabular.probe import PROBES, Found
from gruppo.lab.tabular.setup import Setup
from gruppo.lab.tabular.tables import Tables
from gruppo.stages import Context, Memory, Method
from gruppo.stages.check import check_first_batch, problems
from gruppo.stages.recorded import Recorded
from gruppo.stages.walk import Walk
from gruppo.tasks.jobs import Verdict
from gruppo.train.learner import Learner
from gruppo.train.loop import train_step
from gruppo.train.source import Now
from gruppo.train.waiting import Loop

RECORDED = 16  # answers of the initial policy to each prompt, for methods that learn from recorded ones


class TableEngine(Script):
    """Samples answers from the policy's table; a request may have a part of an answer already."""

    def __init__(self, world: ExactWorld, tables: Tables, policy: TablePolicy, run: "TableRun") -> None:
        super().__init__(world, lambda *key: run.ctx.uniform(*key), self.at)
        self.tables, self.policy, self._made = tables, policy, dict[float, Masses]()

    def at(self, temperature: float) -> Masses:
        if temperature not in self._made:
            with torch.no_grad():
                log_p = self.tables.log_p(self.policy.theta.view(1, self.tables.prompts, -1) / temperature)
                mass_QA = self.tables.along(log_p)[0].exp()
            self._made[temperature] = Masses(mass_QA, Paths(self.tables, log_p[0]))
        return self._made[temperature]

    async def generate(
        self, requests: Sequence[Request], remember: bool = False
    ) -> AsyncIterator[tuple[int, Completion]]:
        async for i, c in super().generate(requests, remember):
            self.sampled += len(c.ids)
            yield i, replace(c, version=np.full(len(c.ids), self.version, np.int32))

    def sync(self, version: int, weights: Mapping[str, Any]) -> None:
        self._made, self.version = {}, version

    @contextmanager
    def without_memory(self) -> Iterator[None]:
        yield

    def context(self) -> int:
        return self.policy.context


class WidePolicy(TablePolicy):
    """The policy with a logit for every token that a text can have: those that no answer has are impossible."""

    def rows(self) -> Tensor:
        more = self.world.tokenizer.vocab - self.world.tokenizer.choices
        return torch.nn.functional.pad(super().rows(), (0, more), value=NEVER)


class Paths(Sequence[Tensor]):
    """The log-probabilities of the tokens of each answer to each prompt, looked up when asked for."""

    def __init__(self, tables: Tables, log_p_QC: Tensor) -> None:
        self.tables, self.log_p_QC = tables, log_p_QC

    def __getitem__(self, number: Any) -> Any:
        q, a = divmod(number, self.tables.answers)
        return self.log_p_QC[q, self.tables.path_AD[a, : int(self.tables.length_A[a])]]

    def __len__(self) -> int:
        return self.tables.prompts * self.tables.answers


class Turning(ExactJudge):
    """Turns the rewards of some answers, by the setup's `flip`."""

    def __init__(self, world: ExactWorld, run: "TableRun") -> None:
        super().__init__(world)
        self.run, self.judged = run, 0

    async def score(self, items: Sequence[tuple[Any, str]]) -> list[Verdict]:
        true, chance = await super().score(items), self.run.setup.flips(self.run.ctx.step)
        first, self.judged = self.judged, self.judged + len(true)
        key = torch.arange(first, self.judged)
        turned = (self.run.ctx.uniform("flip", key) < chance).tolist() if chance else [False] * len(true)
        return [Verdict({"task": 1 - v.components["task"]}) if t else v for v, t in zip(true, turned, strict=True)]


class Sgd(torch.optim.SGD):
    """Steps of lr · prompts · gradient."""

    def __init__(self, params: Any, prompts: int) -> None:
        super().__init__(params, lr=1.0)
        self.prompts = prompts

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["lr"] *= self.prompts
        return super().step(closure)


def provided(method: Method) -> Method:
    """The method with a start for roles that a run must be given: the world has a table for each."""
    return method.but(cast={name: replace(role, start=role.start or "policy") for name, role in method.cast.items()})


class TableRun:
    """What `train_step` asks of a run, for one seed."""

    def __init__(self, method: Method, setup: Setup, tables: Tables, world: ExactWorld, seed: int) -> None:
        self.method, self.setup, self.tables = provided(method), setup, tables
        self.world, self.seed = world, seed
        if several := [name for name, role in method.cast.items() if role.outputs > 1]:
            raise Unlike(f"its role {several[0]} has several outputs, and a table holds one value")
        self.models = self._models(method)
        self.memory, self.replay = Memory(), list[Episode]()
        self.version, self.checked, self.between_steps, self.compared = 0, False, True, True
        self.engine = TableEngine(world, tables, self.models["policy"], self)
        self.learner = Learner(self.method, self.models, setup.optim, say=lambda said: None)
        if setup.optimiser == "sgd":
            for role in self.learner.trained:
                self.learner.optimisers[role] = Sgd(self.models[role].parameters(), setup.prompts)
        self.learner.version, self.clock = self.version, self.learner.clock
        self.judge = Turning(world, self)
        self.walk = Walk(self.method, self.learner.read, self._tasks(), self.judge, self.packed, current=self.current)
        self.source = Now(self)  # type: ignore[arg-type]
        self.ctx = self.context(0)
        if found := problems(self.method, self.ctx, samples=setup.samples):
            raise Unlike(found[0].removeprefix(f"{method.name}: ").rstrip("."))

    def _models(self, method: Method) -> dict[str, Any]:
        policy = WidePolicy(self.world, self.world.theta)
        models: dict[str, Any] = {"policy": policy}
        for name, role in method.cast.items():
            if name != "policy":
                theta = (self.world if role.start else self.setup.given(self.world)).theta
                models[name] = TableCritic(self.world, None) if role.as_ == "head" else WidePolicy(self.world, theta)
        return models

    def _tasks(self) -> Any:
        """The prompts; for a method that reads recorded answers, with answers of the initial policy."""
        if not isinstance(self.method.rollout, Recorded):
            return self.world.tasks
        rng, many = np.random.default_rng(self.seed), len(self.world.answers)
        mass_QA = self.world.mass_QA.numpy()
        picks = [q * many + rng.choice(many, RECORDED, p=m / m.sum()) for q, m in enumerate(mass_QA)]
        return [self.world.with_recorded(q, p.tolist()) for q, p in enumerate(picks)]

    def context(self, step: int, seed: int | None = None) -> Context:
        ctx = self.setup.context(step, self.memory, self.tables.max_tokens)
        ctx.seed, ctx.version, ctx.cast = self.seed if seed is None else seed, self.version, self.models
        ctx.engine, ctx.tokenizer = self.engine, self.world.tokenizer
        self.ctx = self.walk.opened(ctx, self.replay)
        return self.ctx

    def packed(
        self, episodes: Sequence[Episode], drawn: Mapping[str, int] | None = None, views: Sequence[str] = ()
    ) -> Batch:
        return pack(episodes, drawn=drawn, views=views, dtype=torch.float64)

    def current(self) -> None:
        if self.learner.moved:
            self.next_version()

    def next_version(self) -> None:
        self.version = self.learner.version = self.version + 1
        self.engine.sync(self.version, self.models)
        self.learner.moved.clear()

    def look_at_first(self, drawn: Sequence[Episode], batch: Batch) -> None:
        """As in a run, at the first batch with right and wrong answers."""
        rewards = batch.reward_E[batch.judged_E]
        if len(rewards) and float(rewards.min()) != float(rewards.max()):
            check_first_batch(self.method, batch)
            self.checked = True

    def stop_if_failing(self, failed: float, drawn: Sequence[Episode]) -> None:
        if failed:
            raise Unlike(f"an answer could not be judged: {next(e.error for e in drawn if e.error)}")

    def warn_if_empty(self, empty: bool) -> None:
        """Nothing is said: rows of measures show what is learned."""

    def warn_if_stale(self, age: float) -> None: ...

    def warn_of_worlds(self, drawn: Sequence[Episode]) -> None: ...

    def warn_if_dead(self, share: float, drawn: Sequence[Episode] = ()) -> None: ...

    def theta(self) -> Tensor:
        return self.models["policy"].theta.detach()

    async def gradients(self, step: int, draws: int) -> Tensor:
        """The gradients of steps that are not taken, each with random numbers of its own, [D, Q · J]."""
        judged, out = self.judge.judged, list[Tensor]()
        for seed in range(PROBES + self.seed * draws, PROBES + (self.seed + 1) * draws):
            ctx = self.context(step, seed)
            self.learner.begin(ctx)
            drawn, kept = await self.walk.collected(ctx)
            batch = self.walk.batch_of(ctx, drawn, kept)
            if batch is None:  # selection has left nothing to learn from
                out.append(torch.zeros_like(self.theta()))
            else:  # the learner descends
                out.append(-self.learner.gradient("policy", self.walk.credited(ctx, batch)))
        self.judge.judged = judged  # the next step turns what it would have turned
        return torch.stack(out)


class Whole:
    """All seeds of one method, each with a loop of its own."""

    def __init__(self, method: Method, setup: Setup, tables: Tables, worlds: Sequence[ExactWorld], seeds: Tensor):
        self.tables, self.loop = tables, Loop()
        pairs = zip(worlds, seeds.tolist(), strict=True)
        self.runs = [TableRun(method, setup, tables, world, seed) for world, seed in pairs]

    def step(self, step: int) -> Mapping[str, Tensor]:
        facts = self.loop(self._facts(step))
        return {
            name: torch.tensor([f.get(name, torch.nan) for f in facts], dtype=torch.float64)
            for name in dict.fromkeys(n for f in facts for n in f)
        }

    async def _facts(self, step: int) -> list[Mapping[str, float]]:
        """Only numbers leave the event loop, which writes out what a task returned at every change of a signal."""
        return [(await train_step(run, step)).facts for run in self.runs]  # type: ignore[arg-type]

    def found(self, theta_QJ: Tensor, seed: int, step: int) -> Found:
        """Draws of a step at the policy of a run, which is that of the table that is given."""
        run, draws = self.runs[seed], self.runs[seed].setup.noise
        grad_DT = self.loop(run.gradients(step, draws))
        asked_DX = torch.arange(self.tables.prompts).expand(draws, -1)
        chance_D = torch.full((draws,), 1 / draws, dtype=torch.float64)
        return Found(grad_DT.view(draws, self.tables.prompts, -1), asked_DX, chance_D, True, knows_asked=False)

    @property
    def theta(self) -> Tensor:
        return torch.stack([run.theta() for run in self.runs]).view(len(self.runs), self.tables.prompts, -1)

    def close(self) -> None:
        self.loop.close()
