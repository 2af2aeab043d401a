"""Sampling in actors of Ray: the native engine on the other side of a call.

A question holds all that its answer depends on: which weights (a reference into Ray's store), what was asked before it
since the engine last forgot (references, too, and only where that leaves something behind), and the requests. A draw
depends on its random key and the weights alone, so a sampler that died is restarted by Ray, is asked the same again,
and answers the same bits.
"""

import asyncio
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from gruppo.engines.base import Completion, Request
from gruppo.engines.calls import Call
from gruppo.engines.config import EngineConfig, engine_of
from gruppo.engines.native import NativeEngine
from gruppo.policies import learned_state, load_learned
from gruppo.scale.cluster import RESTARTED, Cluster, answered, at_home, told
from gruppo.stages import Method, kind
from gruppo.stages.requires import Promised

Plain = dict[str, dict[str, NDArray[np.uint8]]]  # bytes of weights, by role and name
Asked = list[tuple[list[Request], bool]]  # calls of one wave: requests, and whether they are remembered
UNLIKE = {"steer", "fork", "shared"}  # what an engine in the process of the run may promise, and an actor may not
REMEDY = "If memory ran out there, lower engine.rows or sampling.max_tokens, or give it a larger machine."
Found = list[tuple[int, int, Completion]]  # (call, request, completion), in the order in which they ended


@dataclass(frozen=True)
class Question:
    """What a sampler is asked. References of Ray are in lists, so that only what is missing is fetched."""

    engine: int  # of those of the run: `ahead` has several, each with weights of its own
    version: int
    stamp: int  # of the weights: another one for each sync
    weights: list[Any]
    epoch: int  # a new one: what is kept is forgotten
    past: list[Any]  # waves of this epoch that left something behind
    asked: Asked


@dataclass
class _Engine:
    """One of the engines of an actor, and where it is in its history."""

    models: dict[str, Any]
    native: NativeEngine
    stamp: int = -1
    epoch: int = -1
    seen: int = 0  # waves of this epoch that left something behind


class Sampler:
    """The actor. It loads the models of the run by itself, and takes the weights that a question names."""

    def __init__(self, here: Mapping[str, Any], table: Any, told: Mapping[str, Any], engine: EngineConfig) -> None:
        at_home(here)
        self.given = (table, told, engine)
        self.engines: dict[int, _Engine] = {}

    async def ready(self, number: int) -> int:
        """Loads the models of an engine; its process."""
        self._engine(number)
        return os.getpid()

    async def answer(self, q: Question) -> tuple[Found, int]:
        """What was drawn, and the process that drew it."""
        mine = self._engine(q.engine)
        if mine.stamp != q.stamp:
            await self._load(mine, q)
        if mine.epoch != q.epoch:
            mine.native.forget()
            mine.epoch, mine.seen = q.epoch, 0
        for wave in q.past[mine.seen :]:  # of a sampler that has died: what it kept, this one keeps again
            await _wave(mine.native, await wave)
            mine.seen += 1
        found = await _wave(mine.native, q.asked)
        mine.seen = max(mine.seen, len(q.past) + int(remembered(q.asked)))
        return found, os.getpid()

    async def _load(self, mine: _Engine, q: Question) -> None:
        weights: Plain = await q.weights[0]
        if mine.stamp == q.stamp:  # another question has done it meanwhile
            return
        for role, table in weights.items():
            own = learned_state(mine.models[role])
            load_learned(mine.models[role], {name: tensor_of(x, own[name]) for name, x in table.items()})
        mine.native.sync(q.version, mine.models)
        mine.stamp, mine.epoch = q.stamp, -1

    def _engine(self, number: int) -> _Engine:
        if number not in self.engines:
            from gruppo.policies import load_tokenizer
            from gruppo.scale.ranks import cast_of

            table, told, engine = self.given
            config, method, models = cast_of(table, told)
            mine = {role: model for role, model in models.items() if method.cast[role].as_ == "full"}
            native = engine_of(engine, mine, load_tokenizer(config.model.name))  # `samplers_of` refuses any other
            self.engines[number] = _Engine(mine, cast(NativeEngine, native))
        return self.engines[number]


async def _wave(engine: NativeEngine, asked: Asked) -> Found:
    """All calls of a wave: they join in their order, before a token is sampled."""
    found: Found = []

    async def one(number: int, requests: list[Request], remember: bool) -> None:
        async for i, completion in engine.generate(requests, remember):
            found.append((number, i, completion))

    await asyncio.gather(*(one(number, *call) for number, call in enumerate(asked)))
    return found


def remembered(asked: Asked) -> bool:
    """Whether a wave leaves something behind."""
    return any(remember for _, remember in asked)


class Packed:
    """Bytes of weights in main memory, to be put into a store, which copies them.

    Those of a GPU come through pinned memory, all at the speed of the bus, and it is used again the next time: 2.9 GiB
    had taken 4.6 s to the other process and onto its GPU, tensor by tensor through memory of their own.
    """

    def __init__(self) -> None:
        self.pinned = torch.zeros(0, dtype=torch.uint8)

    def __call__(self, weights: Mapping[str, Mapping[str, torch.Tensor]]) -> Plain:
        found = {role: {name: _bytes(p) for name, p in table.items()} for role, table in weights.items()}
        size = sum(len(x) for table in found.values() for x in table.values() if x.is_cuda)
        if size > len(self.pinned):
            self.pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        out, left = Plain(), self.pinned
        for role, table in found.items():
            out[role] = {}
            for name, x in table.items():
                if x.is_cuda:
                    here, left = left[: len(x)], left[len(x) :]
                    x = here.copy_(x, non_blocking=True)
                out[role][name] = x.numpy()
        if size:
            torch.cuda.synchronize()
        return out


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """NumPy knows no bfloat16."""
    return x.detach().contiguous().reshape(-1).view(torch.uint8)


def tensor_of(x: NDArray[np.uint8], like: torch.Tensor) -> torch.Tensor:
    """Nobody writes to it: it may be the store itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(x).view(like.dtype).view(like.shape)


class Team:
    """The sampler actors of a run, which all its engines ask."""

    def __init__(self, cluster: Cluster, table: Any, told: Mapping[str, Any], engine: EngineConfig) -> None:
        self.ray, self.say, self.numbers = cluster.ray, cluster.say, count()
        given = (cluster.here, table, told, engine)
        self.actors = [
            cluster.actor(f"sampler {i}", Sampler, *given, **RESTARTED) for i in range(cluster.config.scale.samplers)
        ]
        self.processes: dict[int, int] = {}
        self.lost = 0  # samplers that died and were replaced

    def begin(self) -> int:
        """The number of a new engine, once every sampler has its models."""
        number = next(self.numbers)
        for i, process in enumerate(self._got([actor.ready.remote(number) for actor in self.actors])):
            self._seen(i, process)
        return number

    async def answer(self, i: int, question: Question) -> Found:
        asked = self.actors[i].answer.remote(question)
        found, process = await answered(self.ray, asked, f"sampler {i}", REMEDY)
        self._seen(i, process)
        return found

    def _got(self, references: list[Any]) -> list[Any]:
        try:
            return self.ray.get(references)
        except self.ray.exceptions.RayError as error:
            raise told(error, "a sampler", REMEDY) from error

    def _seen(self, i: int, process: int) -> None:
        if self.processes.setdefault(i, process) != process:
            self.processes[i] = process
            self.lost += 1
            self.say(f"sampler {i} died and was replaced; what it was asked, it was asked again")


class Samplers(NativeEngine):
    """The engine of a run whose samplers are actors. Requests are checked, held and counted here, and drawn there.

    Steers look at every token, and what they note would stay in another process: they are not promised.
    """

    def __init__(self, team: Team, changing: Callable[[str], bool], here: NativeEngine) -> None:
        cache, lockstep = here.parked.budget, here.waves.lockstep
        super().__init__(
            here.models, here.max_rows, here.eos, here.limits.prefill_tokens, here.say, cache, lockstep, here.decode
        )
        self.team, self.number = team, team.begin()
        self.roles = [role for role in self.models if changing(role)]
        self.stamp, self.epoch, self.past = 0, 0, [list[Any]() for _ in team.actors]
        self.packed = Packed()
        self._due: list[tuple[Call, list[Request], bool]] = []
        self._open: dict[Call, asyncio.Task[None]] = {}
        self.sync(0, self.models)

    @property
    def promises(self) -> frozenset[str]:
        return super().promises - UNLIKE

    def forget(self) -> None:
        self.epoch += 1
        self.past = [list[Any]() for _ in self.team.actors]

    def sync(self, version: int, weights: Mapping[str, Any]) -> None:
        """The weights go into Ray's store, once; samplers fetch them when they are asked."""
        super().sync(version, weights)
        state = self.packed({role: learned_state(weights[role]) for role in self.roles})
        self.stored, self.stamp = self.team.ray.put(state), self.stamp + 1

    def _start(self, call: Call, requests: list[Request], remember: bool) -> None:
        """Calls of the same moment, such as those of a wave, are one question."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._send)
        self._due.append((call, requests, remember))

    def _send(self) -> None:
        due, self._due = self._due, []
        task = asyncio.get_running_loop().create_task(self._serve(due))
        self._open |= {call: task for call, _, _ in due}

    async def _serve(self, due: list[tuple[Call, list[Request], bool]]) -> None:
        try:
            shares = self._shares([(requests, remember) for _, requests, remember in due])
            for found in await asyncio.gather(*(self._ask(i, *share) for i, share in shares.items())):
                for number, i, completion in found:
                    self.sampled += len(completion.ids)
                    due[number][0].deliver(i, completion)
        except BaseException as error:
            for call, _, _ in due:
                call.fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            for call, _, _ in due:
                self._open.pop(call, None)

    async def _ask(self, i: int, asked: Asked, places: list[list[int]]) -> Found:
        past = self.past[i]
        question = Question(self.number, self.version, self.stamp, [self.stored], self.epoch, list(past), asked)
        found = await self.team.answer(i, question)
        if remembered(asked) and self.waves.lockstep:  # elsewhere no run repeats itself
            past.append(self.team.ray.put(asked))
        return [(number, places[number][j], completion) for number, j, completion in found]

    def _shares(self, calls: Asked) -> dict[int, tuple[Asked, list[list[int]]]]:
        """{sampler: (its part of each call, the places of its requests there)}.

        Requests that begin alike stay together; those of a row that is remembered go where it is.
        """
        n = len(self.team.actors)
        homes: dict[bytes, int] = {}
        out: dict[int, tuple[Asked, list[list[int]]]] = {}
        for number, (requests, remember) in enumerate(calls):
            for j, r in enumerate(requests):
                home = r.key % n if remember else homes.setdefault(r.prefix.tobytes(), len(homes) % n)
                asked, places = out.setdefault(home, ([([], again) for _, again in calls], [[] for _ in calls]))
                asked[number][0].append(r)
                places[number].append(j)
        return out

    def _leave(self, call: Call) -> None:
        """Nobody waits for a call any more; once that holds for all that were asked with it, nobody answers them."""
        if (task := self._open.pop(call, None)) is not None and task not in self._open.values():
            task.cancel()


def refusals(method: Method) -> list[str]:
    """Why a method cannot be sampled by actors, one sentence each."""
    return [
        f"{method.name}: {kind(o)} in {room} needs an engine that promises {r.promise!r}"
        f"{f' ({r.why})' if r.why else ''}, and a sampler in another process does not. Use scale.samplers=0: then the "
        "first rank samples."
        for room, o in method.occupants()
        for r in o.requires
        if isinstance(r, Promised) and r.promise in UNLIKE
    ]


def samplers_of(cluster: Cluster, run: Any, engine: EngineConfig, here: NativeEngine) -> NativeEngine:
    """The engine of a run with sampler actors, which all engines of the run share."""
    from gruppo.scale.config import ScaleConfig
    from gruppo.scale.ranks import SENT
    from gruppo.stages.record import to_table

    if said := refusals(run.method):
        raise ValueError("\n".join(said))
    if cluster.team is None:
        told = {name: getattr(run.bare_context(0), name) for name in SENT}
        cluster.team = Team(cluster, to_table(replace(run.config, scale=ScaleConfig())), told, engine)
    return Samplers(cluster.team, run.changes, here)
