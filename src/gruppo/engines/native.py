"""The engine in the trainer's process: it samples from the weights that are being trained."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, TypeVar

import numpy as np

from gruppo.engines.base import CAN_PROMISE, Completion, Ints, Reals, Request, check, check_ids
from gruppo.engines.calls import Call, Item, items_of
from gruppo.engines.paged import PagedStream, can_page
from gruppo.engines.parked import Parked
from gruppo.engines.rough import Copies
from gruppo.engines.score import evaluating, modules_of, score, without_gradients
from gruppo.engines.stream import Limits, Stream
from gruppo.engines.waves import Waves
from gruppo.policies.base import Incremental, Policy
from gruppo.policies.layout import cuts
from gruppo.policies.memory import free_memory, out_of_memory

T = TypeVar("T")


class NativeEngine:
    """Samples from `models` (role → policy). It shares their weights, so they are never stale.

    With `copies` it samples from those instead, which follow the weights at every `sync`.

    All callers share one running batch for each role: a request joins it at the next token. What `ask` has computed is
    kept ("parked", `cache_tokens` at most), and a later `ask` that begins alike goes on from there. `generate` keeps
    nothing unless told to, so one call alone always computes the same, bit for bit.

    Several callers get the same bits in every run only in lockstep (`waves.py`): tasks inside `together`, or each
    inside `caller()`. Without (free) whoever is ready goes on. Then the random keys are the same, and every request is
    still answered exactly once, but log-probabilities may differ in their last bits, and with them a draw now and then.
    Lockstep is the default on a CPU.

    The trainer increments `version` after each update, which drops what is parked. An update while requests are in
    flight is an error (pitfall 22). `prefilled` and `decoded` count the tokens that went through the model, `sampled`
    those of completions.
    """

    def __init__(
        self,
        models: Mapping[str, Policy],
        max_rows: int = 1024,
        eos: int | tuple[int, ...] | None = 2,
        prefill_tokens: int = 16384,
        say: Callable[[str], None] = print,
        cache_tokens: int = 65536,
        lockstep: bool | None = None,
        decode: Callable[[Seq[int]], str] | None = None,
        copies: Copies | None = None,
    ) -> None:
        models = models if copies is None else {**models, **copies.models}
        for role, model in models.items():
            if not isinstance(model, Incremental):
                raise ValueError(
                    f"model of role {role!r} ({type(model).__name__}) has no prefill and decode, so the native engine "
                    "cannot sample from it. Use another engine."
                )
        if max_rows < 1:
            raise ValueError(f"max_rows={max_rows}: nothing could be sampled. Use 1 or more.")
        self.models, self.copies = dict(models), copies
        self.eos = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
        self.limits, self.say = Limits(max_rows, prefill_tokens), say
        self.parked, self.decode = Parked(cache_tokens), decode
        on_cpu = all(model.device.type == "cpu" for model in models.values())
        self.waves = Waves(on_cpu if lockstep is None else lockstep)
        self.version = self.sampled = 0
        self._streams: dict[str, Stream] = {}
        self._drivers: dict[str, asyncio.Task[None]] = {}

    @property
    def max_rows(self) -> int:
        return self.limits.rows

    @property
    def prefilled(self) -> int:
        return sum(s.prefilled for s in self._streams.values())

    @property
    def decoded(self) -> int:
        return sum(s.decoded for s in self._streams.values())

    def _model(self, role: str) -> Incremental:
        if role not in self.models:
            raise ValueError(
                f"role {role!r} has no model in this engine, so it cannot be sampled. Roles: {', '.join(self.models)}."
            )
        return self.models[role]  # type: ignore[return-value]

    def context(self, role: str = "policy") -> int:
        """The positions that a sequence of this role can have."""
        return self._model(role).context

    @property
    def promises(self) -> frozenset[str]:
        own = self.copies is not None
        missing = {"lockstep": not self.waves.lockstep, "stop_text": self.decode is None, "shared": own}
        return frozenset(name for name in CAN_PROMISE["native"] if not missing.get(name))

    def forget(self) -> None:
        """Drop everything that is parked."""
        self.parked.clear()

    def sync(self, version: int, weights: Mapping[str, Any]) -> None:
        """The weights are shared, so only the version is new; copies follow them."""
        if self.copies is not None:
            self.copies.follow(version, weights)
        self.version = version
        self.forget()

    def close(self) -> None:
        """It has started nothing."""

    @contextmanager
    def without_memory(self) -> Iterator[None]:
        """Nothing is kept, and nothing that was kept is used: for an update that samples while weights change."""
        budget, self.parked.budget = self.parked.budget, 0
        self.forget()
        try:
            yield
        finally:
            self.parked.budget = budget

    @asynccontextmanager
    async def caller(self) -> AsyncGenerator[None, None]:
        """`async with engine.caller():` around the work of a task that asks again and again registers it for waves."""
        with self.waves.caller():
            yield

    async def together(self, coroutines: Seq[Coroutine[Any, Any, T]]) -> list[T]:
        """The results of coroutines that ask, run at the same time; each is a caller."""
        return await self.waves.together(coroutines)

    async def ask(self, request: Request) -> Completion:
        """One completion. A caller that is cancelled frees its row."""
        async with aclosing(self.generate([request], remember=True)) as stream:
            async for _, completion in stream:
                return completion
        raise AssertionError("a request ends, or fails")

    def generate(self, requests: Seq[Request], remember: bool = False) -> AsyncGenerator[tuple[int, Completion], None]:
        """A stream of (index, completion), in the order in which they finish. Bad requests fail at the call.

        remember  go on from parked rows, and park these
        """
        for role in {r.role for r in requests}:
            model = self._model(role)
            check([r for r in requests if r.role == role], model.vocab, model.context)
        if self.decode is None and (texts := next((r.stop_text for r in requests if r.stop_text), None)):
            raise ValueError(
                f"stop_text={texts!r}: this engine has no decoder, so it sees ids and no texts. Give it one: "
                "NativeEngine(…, decode=tokenizer.decode)."
            )
        if remember and self.parked.budget > 0:
            self._refuse_unkept(requests)
        return self._generate(list(requests), remember and self.parked.budget > 0)

    def _refuse_unkept(self, requests: Seq[Request]) -> None:
        for r in requests:
            total, budget = len(r.prefix) + r.max_tokens, self.parked.budget
            if total > budget:
                fewer = f", max_tokens of at most {budget - len(r.prefix)}" if budget > len(r.prefix) else ""
                raise ValueError(
                    f"cache_tokens={budget}: a request of {len(r.prefix)} + {r.max_tokens} tokens could never be kept, "
                    f"so nothing would be shared. Use cache_tokens={total} or more{fewer}, or "
                    "cache_tokens=0: keep nothing."
                )

    async def _generate(self, requests: list[Request], remember: bool) -> AsyncGenerator[tuple[int, Completion], None]:
        call = Call(len(requests))
        if not requests:
            return
        try:
            self.waves.submit(call, lambda: self._start(call, requests, remember))
            while call.left:
                yield await call.next()
        finally:
            if call.left:
                self.waves.drop(call)
                self._leave(call)

    def _start(self, call: Call, requests: list[Request], remember: bool) -> None:
        items = items_of(call, requests, remember)
        for role in dict.fromkeys(r.role for r in requests):
            stream = self._stream(role)
            stream.join([item for item in items if item.request.role == role], self.version)
            if role not in self._drivers:
                driver = asyncio.get_running_loop().create_task(self._drive(role, stream))
                # A Ctrl-C that hits the driver ends the loop, too: nobody else needs to hear of it.
                driver.add_done_callback(lambda done: done.cancelled() or done.exception())
                self._drivers[role] = driver

    def _leave(self, call: Call) -> None:
        """Nobody waits for it any more."""
        for stream in self._streams.values():
            with without_gradients(stream.model):
                stream.leave(call)

    def _stream(self, role: str) -> Stream:
        """The running batch of a role. One that an event loop left behind when it was closed is cleared."""
        driver = self._drivers.get(role)
        if driver is not None and (driver.done() or driver.get_loop() is not asyncio.get_running_loop()):
            del self._drivers[role]
            self._streams[role].clear()
        if role not in self._streams:
            model = self._model(role)
            kind = PagedStream if can_page(model) else Stream
            self._streams[role] = kind(role, model, self.eos, self.limits, self.parked, self.decode)
        return self._streams[role]

    async def _drive(self, role: str, stream: Stream) -> None:
        """Runs while the stream has requests."""
        modules = modules_of(stream.model)
        try:
            while stream.busy:
                # Not around the delivery: consumers must see the model's own training mode. Nor at every token:
                # switching the mode of many modules takes a twentieth of the time of a token.
                try:
                    with evaluating(stream.model, modules):
                        ended = await self._until_one_ends(stream)
                except (RuntimeError, MemoryError) as error:
                    if not out_of_memory(error):
                        raise
                    ended = None
                if ended is None:
                    self._smaller(stream)
                    continue
                self._end_faulty(stream)
                self._deliver(ended)
                await asyncio.sleep(0)
        except BaseException as error:
            for call in {id(item.call): item.call for item in stream.clear()}.values():
                call.fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            if self._drivers.get(role) is asyncio.current_task():
                del self._drivers[role]

    def _end_faulty(self, stream: Stream) -> None:
        """Calls whose own steer failed."""
        faults, stream.faults = stream.faults, []
        for call, error in faults:
            call.fail(error)
            with without_gradients(stream.model):
                stream.leave(call)

    def _deliver(self, ended: list[tuple[Item, Completion]]) -> None:
        for item, completion in ended:
            if item.call.error is not None:
                continue
            self.sampled += len(completion.ids)
            if (answered := item.ended(completion)) is not None and answered.done is not None:
                answered.call.deliver(answered.index, answered.done)

    async def _until_one_ends(self, stream: Stream) -> list[tuple[Item, Completion]]:
        """Sample tokens until some rows finish; returns those."""
        while stream.busy:
            if self.version != stream.version:
                raise RuntimeError(
                    f"version went from {stream.version} to {self.version} while a stream of generate was open: its "
                    "keys and values belong to the old weights. Finish or close the stream before the update."
                )
            with without_gradients(stream.model):
                ended = stream.step()
            if ended:
                return ended
            await asyncio.sleep(0)  # lets callers, environments and tools run between two tokens
        return []

    def _smaller(self, stream: Stream) -> None:
        """Memory ran out: begin again without what is parked or, if nothing is, with half the rows and prompt tokens.

        Samples stay the same: the noise of a row is its own.
        """
        left = stream.clear()
        roots = list({id(item.root): item.root for item in left}.values())
        rows, parked = min(len(left), self.limits.rows), len(self.parked)
        self.parked.clear()
        if not parked and rows == 1:
            error = ValueError(
                "out of memory with a single row in flight: this model does not fit at this length. Lower "
                "sampling.max_tokens, or use a smaller model or model.dtype=bfloat16 on a GPU."
            )
            for item in roots:
                item.call.fail(error)
            return
        if not parked:
            self.limits.rows, self.limits.prefill_tokens = rows // 2, max(self.limits.prefill_tokens // 2, 1)
            self.say(
                f"out of memory while sampling: from now on {self.limits.rows} rows at once instead of {rows}. The "
                "samples stay the same, only slower."
            )
        free_memory()
        for item in roots:
            item.restart()  # one that has forked forks again
        for call in {id(item.call): item.call for item in roots}.values():
            try:
                stream.join([item for item in roots if item.call is call], self.version)
            except Exception as error:
                call.fail(error)

    def logprobs(
        self, prefixes: Seq[Ints], continuations: Seq[Ints], temperature: float = 1.0, role: str = "policy"
    ) -> list[Reals]:
        """Log-probabilities of given continuations at a temperature, by the trainer's forward.

        Nothing that is parked is read: this is what sampling is checked against.
        """
        model = self._model(role)
        if temperature <= 0:
            raise ValueError(f"temperature={temperature}: logits are divided by it. Use a positive number.")
        pairs = list(zip(prefixes, continuations, strict=True))
        check([Request(p, len(t), 0) for p, t in pairs if len(t)], model.vocab, model.context)
        check_ids(continuations, model.vocab)
        sequences = [np.concatenate(pair) for pair in pairs]
        while True:
            out: list[Reals] = []
            try:
                with without_gradients(model), evaluating(model):
                    for a, b in cuts([len(s) for s in sequences], self.limits.prefill_tokens):
                        out += score(model, sequences[a:b], [len(t) for t in continuations[a:b]], temperature)
                return out
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or self.limits.prefill_tokens == 1:
                    raise
            self.limits.prefill_tokens = min(self.limits.prefill_tokens, sum(map(len, sequences))) // 2 or 1
            free_memory()
