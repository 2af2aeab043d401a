"""Where the episodes of a step come from: drawn when they are wanted, or ahead of learning.

    Now          step k is drawn by the weights after k steps, and then learned from
    Ahead(S)     step k is drawn by the weights after k - S steps, while earlier steps are learned from

Which weights, which memory and which remembered episodes draw a step depends on step numbers alone, never on the clock:
they are copied when the draw is admitted, at the beginning of step k - S. Draws leave in the order in which they were
admitted, and none is dropped. So the lag is exact, and a run repeats itself.

Draws are tasks of the event loop, so that their waits for worlds and judges overlap with each other. Learning runs in a
thread meanwhile. What was drawn and not learned is part of a checkpoint; what is still on its way is waited for.
"""

import asyncio
import ctypes
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from gruppo.data import Batch, Episode
from gruppo.policies import Unadapted, clone, learned_state, load_learned
from gruppo.stages import Context, Memory, Method, Need
from gruppo.stages.walk import Walk
from gruppo.train.memory_plan import stored
from gruppo.train.timing import Clock

if TYPE_CHECKING:
    from gruppo.train.run import Run

T = TypeVar("T")
SWITCH = 2e-4  # seconds until Python lets another thread go on: a step of decoding takes 1e-3, and Python's own is 5e-3


@dataclass
class Drawn:
    """The episodes of a step, before they are learned from."""

    step: int
    version: int  # of the weights that drew them
    episodes: list[Episode]  # all of them
    kept: list[Episode]  # by selection
    round: int  # of the last redraw
    sampled: int  # tokens
    open: list[Episode] = field(default_factory=list[Episode])  # of groups that are not complete: they go on

    def given_to(self, ctx: Context) -> "Drawn":
        """The context of the step, as the draw has left its own one."""
        ctx.version, ctx.round = self.version, self.round
        return self


Draw = Drawn | asyncio.Task[Drawn]  # one that is there, or under way


def uncorrected(method: Method, ahead: int, turns: int = 0) -> str:
    """What is wrong with learning from answers of older weights when nothing in the method looks at the difference."""
    if not (ahead or turns) or any(o.corrects for _, o in method.occupants()):
        return ""
    said, old, off = (
        (f"ahead={ahead}", f"answers are up to {ahead} steps old", "ahead=0")
        if ahead
        else (f"turns_a_step={turns}", "the first turns of an episode may be some steps old", "turns_a_step=0")
    )
    return (
        f"{said}: {old} when they are learned from, and {method.name} has nothing that corrects for it: it learns as "
        f"if its own weights had sampled them. Add method.select+=truncated_importance, or use {off}."
    )


async def draw(walk: Walk, ctx: Context) -> Drawn:
    """curriculum, prompting, rollout, reward, select.episodes and group rewards of the step of a context."""
    ctx.engine.forget()  # a resumed run has nothing in memory, so no step may depend on it
    version, before = ctx.version, ctx.engine.sampled
    drawn, kept = await walk.collected(ctx)
    return Drawn(ctx.step, version, drawn, kept, ctx.round, ctx.engine.sampled - before, list(ctx.open))


class Now:
    """Episodes are drawn when they are wanted, by the weights that learn from them."""

    versions = 0

    def __init__(self, run: "Run") -> None:
        self.run = run
        self.queue: deque[Draw] = deque()  # not learned from yet, the next step first

    async def take(self, ctx: Context) -> Drawn:
        """The episodes of the step of this context. What a run that sampled ahead has left comes first."""
        return await self._first(ctx) if self.queue else await draw(self.run.walk, ctx)

    async def aside(self, work: Callable[..., T], *given: Any) -> T:
        """The result of some learning."""
        return work(*given)

    async def settled(self) -> None:
        """Waits until nothing is under way. Raises what a draw has raised: without it no checkpoint would be whole."""
        for i, d in enumerate(self.queue):
            if isinstance(d, asyncio.Task):
                try:
                    self.queue[i] = await d
                except ValueError as error:
                    raise ValueError(f"{d.get_name()}: {error}") from error

    @property
    def drawn(self) -> list[Drawn]:
        """What was drawn and not learned, once it has settled."""
        return [d for d in self.queue if isinstance(d, Drawn)]

    def restore(self, drawn: Sequence[Drawn]) -> None:
        for e in (e for d in drawn for e in d.episodes):
            self.run.walk.asked(e)
            e.rewarded = True
        self.queue = deque(drawn)

    def close(self) -> None:
        """Ends what is under way."""

    async def _first(self, ctx: Context) -> Drawn:
        first = self.queue.popleft()
        self.run.between_steps = False  # a checkpoint would lack what was taken out here
        with self.run.clock("waiting"):
            found = first if isinstance(first, Drawn) else await first
        if found.step != ctx.step:
            raise ValueError(
                f"the next episodes were drawn for step {found.step}, and step {ctx.step} was to learn from them: "
                "episodes are learned from in the order in which they were drawn. Take the steps in their order."
            )
        return found.given_to(ctx)


class Ahead(Now):
    """Episodes are drawn by weights that are `versions` steps old, while earlier ones are learned from.

    At most `versions` + 1 draws are under way, each by weights of its own. All steps of a run belong to one event loop.
    """

    def __init__(self, run: "Run", versions: int) -> None:
        super().__init__(run)
        self.versions = versions
        self.samplers = [Sampler(run) for _ in range(min(versions + 1, run.config.steps))]  # no step has two
        self.thread, self.work = ThreadPoolExecutor(1, "learner"), Future[Any]()
        self.stream = torch.cuda.Stream(run.device) if run.device.type == "cuda" else None  # of learning
        self.usual = sys.getswitchinterval()
        if self.stream is not None:
            sys.setswitchinterval(SWITCH)
        run.say(f"ahead={versions}: {self._copies()}")

    def _copies(self) -> str:
        own = [p for s in self.samplers for role in s.follows for p in learned_state(s.models[role]).values()]
        count = "a copy" if len(self.samplers) == 1 else f"{len(self.samplers)} copies"
        return f"{count} of the weights to sample from, {stored(own) / (1 << 20):.1f} MiB in all"

    async def take(self, ctx: Context) -> Drawn:
        self._admit(ctx.step)
        return await self._first(ctx)

    def _admit(self, step: int) -> None:
        """Begins every draw that these weights may make, up to `versions` steps ahead and to the end of the run."""
        last = max(step, min(step + self.versions, self.run.config.steps - 1))
        store = self.run.replay
        for k in range(step + len(self.queue), last + 1):
            sampler = self.samplers[k % len(self.samplers)]  # whose last draw, of step k - versions - 1, is over
            before = self.queue[-1] if self.queue else None
            walk, ctx = sampler.opened(k, store, before)
            task = asyncio.get_running_loop().create_task(draw(walk, ctx), name=f"step {k + 1}")
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # told when its step comes
            self.queue.append(task)
            store = []  # what goes on from an earlier step goes on once

    async def aside(self, work: Callable[..., T], *given: Any) -> T:
        """In a thread, while draws go on."""
        self.work = self.thread.submit(self._beside, work, *given)
        return await asyncio.wrap_future(self.work)

    def _beside(self, work: Callable[..., T], *given: Any) -> T:
        """On a GPU in a stream of its own: in that of the draws, each would wait for all that the other has begun.

        It begins after what was begun there, and ends before anybody uses what it has made.
        """
        if self.stream is None:
            return work(*given)
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        try:
            with torch.cuda.stream(self.stream):
                return work(*given)
        finally:
            self.stream.synchronize()

    def close(self) -> None:
        for d in self.queue:
            if isinstance(d, asyncio.Task) and not d.get_loop().is_closed():
                d.cancel()
        if self.work.running():  # as Ctrl-C does where learning is in the main thread
            for thread in self.thread._threads:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
                )
        self.thread.shutdown()
        sys.setswitchinterval(self.usual)


class Sampler:
    """Weights of its own, an engine that samples from them, and what reads them while episodes are drawn."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        sampled = run.sampled()
        self.follows = [role for role in sampled if run.changes(role)]
        self.models: dict[str, Any] = {role: clone(run.models[role]) for role in self.follows}
        for role, model in run.models.items():
            if not run.changes(role):  # nobody writes to its weights, so they are shared
                self.models[role] = Unadapted(self._mine(model.policy)) if isinstance(model, Unadapted) else model
        self.engine = run.engine_of({role: self.models[role] for role in sampled})
        self.reader = copy(run.learner)  # trains nothing, and shares nothing that learning writes to
        self.reader.models, self.reader.optimisers, self.reader.clock = self.models, {}, Clock()

    def _mine(self, policy: Any) -> Any:
        return next(self.models[role] for role in self.follows if self.run.models[role] is policy)

    def opened(self, step: int, store: Sequence[Episode], before: Draw | None) -> tuple[Walk, Context]:
        """A walk and a context for the draw of a step, with weights, memory and replay as they are now."""
        run = self.run
        for role in self.follows:
            load_learned(self.models[role], learned_state(run.models[role]))
        self.engine.sync(run.version, self.models)
        walk = replace(
            run.walk, read=self._read, current=lambda: None, clock=Clock(), judge=InTurn(run.walk.judge, before)
        )
        ctx = run.bare_context(step)
        ctx.memory = Memory(_copied(run.memory.plain))
        ctx.cast, ctx.engine, ctx.tokenizer = self.models, self.engine, run.tokenizer
        return walk, walk.opened(ctx, store)

    def _read(self, role: str, batch: Batch, needs: list[Need]) -> Any:
        for name in {role, *(n.against for n in needs if n.against)} - {"old"}:
            if name not in self.models:
                raise ValueError(
                    f"ahead={self.run.config.ahead}: {self.run.method.name} reads the role {name!r} while episodes are "
                    "drawn, and it has changed when they are learned from. Use ahead=0, or another method."
                )
        return self.reader.read(role, batch, needs)


class InTurn:
    """A judge that a draw shares with others. A scorer that may keep state hears the answers of one draw at a time."""

    def __init__(self, judge: Any, before: Draw | None) -> None:
        self.judge, self.before = judge, before

    @property
    def in_order(self) -> bool:
        return self.judge.in_order

    async def score(self, items: Sequence[tuple[Any, str]]) -> Sequence[Any]:
        await self._turn()
        return await self.judge.score(items)

    async def answers(self, groups: Sequence[Sequence[tuple[Any, str]]]) -> Sequence[Sequence[str]]:
        await self._turn()
        return await self.judge.answers(groups)

    async def _turn(self) -> None:
        if self.in_order and isinstance(self.before, asyncio.Task):
            await asyncio.wait({self.before})
        self.before = None


def source_of(run: "Run") -> Now:
    """The source that the settings of a run describe."""
    return Ahead(run, run.config.ahead) if run.config.ahead else Now(run)


def _copied(x: Any) -> Any:
    """A value of memory whose tables are its own. Tensors are shared: nothing changes them in place."""
    if isinstance(x, dict):
        return {k: _copied(v) for k, v in x.items()}
    return [_copied(v) for v in x] if isinstance(x, list) else x
