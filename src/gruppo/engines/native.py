"""The engine in the trainer's process: it samples from the weights that are being trained."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from gruppo.engines.base import Completion, Ints, Reals, Request, check, check_ids
from gruppo.engines.graphs import Decoder
from gruppo.engines.paged import PagedStream, can_page, decoder_of
from gruppo.engines.stream import Stream
from gruppo.policies.base import Incremental, Policy
from gruppo.policies.layout import cuts, packed
from gruppo.policies.lora import Unadapted
from gruppo.policies.memory import free_memory, out_of_memory

GPU_ROWS = 512  # rows at once on a GPU
HEAD_CELLS = 1 << 24  # logits that `score` holds at once


class NativeEngine:
    """Samples from `models` (role → policy). It shares their weights, so they are never stale.

    The trainer increments `version` after each update. Keys and values live as long as one call of `generate`; an
    update while its stream is open is an error (pitfall 22). `prefilled` and `decoded` count the tokens that went
    through the model, `sampled` those of completions.
    """

    can = frozenset({"topk", "score"})

    def __init__(
        self,
        models: Mapping[str, Policy],
        max_rows: int = 1024,
        eos: int | tuple[int, ...] | None = 2,
        prefill_tokens: int = 16384,
        say: Callable[[str], None] = print,
    ) -> None:
        for role, model in models.items():
            if not isinstance(model, Incremental):
                raise ValueError(
                    f"model of role {role!r} ({type(model).__name__}) has no prefill and decode, so the native engine "
                    "cannot sample from it. Use another engine."
                )
        if max_rows < 1:
            raise ValueError(f"max_rows={max_rows}: nothing could be sampled. Use 1 or more.")
        self.models = dict(models)
        self.eos = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
        self.max_rows, self.prefill_tokens, self.say = max_rows, prefill_tokens, say
        self.version = 0
        self.decoders: dict[str, Decoder] = {}  # on a GPU, by role
        self.prefilled = self.decoded = self.sampled = 0

    def _model(self, role: str) -> Incremental:
        if role not in self.models:
            raise ValueError(
                f"role {role!r} has no model in this engine, so it cannot be sampled. Roles: {', '.join(self.models)}."
            )
        return self.models[role]  # type: ignore[return-value]

    def generate(self, requests: Seq[Request]) -> AsyncIterator[tuple[int, Completion]]:
        """A stream of (index, completion), in the order in which they finish. Bad requests fail at the call."""
        for role in {r.role for r in requests}:
            model = self._model(role)
            check([r for r in requests if r.role == role], model.vocab, model.context)
        return self._generate(list(requests))

    async def _generate(self, requests: list[Request]) -> AsyncIterator[tuple[int, Completion]]:
        version = self.version
        for role in dict.fromkeys(r.role for r in requests):
            waiting = {i: r for i, r in enumerate(requests) if r.role == role}
            while waiting:  # more than once only after running out of memory
                async for i, completion in self._stream(role, dict(waiting), version):
                    del waiting[i]
                    yield i, completion

    async def _stream(
        self, role: str, requests: dict[int, Request], version: int
    ) -> AsyncIterator[tuple[int, Completion]]:
        """Like `generate`, for one role. When memory runs out it ends early, and later streams have fewer rows."""
        model, index = self._model(role), list(requests)
        stream = self._opened(role, model, list(requests.values()), version)
        try:
            async for i, completion in self._run(stream, version):
                yield index[i], completion
        finally:  # also if the caller goes away
            stream.close()

    async def _run(self, stream: "Stream | PagedStream", version: int) -> AsyncIterator[tuple[int, Completion]]:
        while stream.busy:
            # Not around the yield: the consumer must see its own grad mode and training mode. Nor at every token:
            # switching the mode of many modules takes a twentieth of the time of a token.
            try:
                with _evaluating(stream.model):
                    ended = await self._until_one_ends(stream, version)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                ended = None
            if ended is None:
                stream.close()
                self._smaller(len(stream.requests))
                return
            for i, completion in ended:
                self.sampled += len(completion.ids)
                yield i, completion

    def _opened(self, role: str, model: Incremental, requests: list[Request], version: int) -> "Stream | PagedStream":
        if not can_page(model):
            return Stream(model, requests, self.max_rows, self.eos, version, self.prefill_tokens)
        rows = min(self.max_rows, GPU_ROWS)
        decoder = self.decoders[role] = decoder_of(model, requests, rows, self.decoders.pop(role, None))
        return PagedStream(decoder, requests, self.eos, version, self.prefill_tokens)

    async def _until_one_ends(self, stream: "Stream | PagedStream", version: int) -> list[tuple[int, Completion]]:
        """Sample tokens until some rows finish; returns those."""
        while stream.busy:
            if self.version != version:
                raise RuntimeError(
                    f"version went from {version} to {self.version} while a stream of generate was open: its keys and "
                    "values belong to the old weights. Finish or close the stream before the update."
                )
            prefilled, decoded = stream.prefilled, stream.decoded
            try:
                with _without_gradients(stream.model):
                    ended = stream.step()
            finally:
                self.prefilled += stream.prefilled - prefilled
                self.decoded += stream.decoded - decoded
            await asyncio.sleep(0)  # lets environments and tools run between two tokens
            if ended:
                return ended
        return []

    def _smaller(self, rows: int) -> None:
        """Halve the rows and the prompt tokens at once. Samples stay the same: the noise of a row is its own."""
        rows = min(rows, self.max_rows)
        if rows == 1:
            raise ValueError(
                "out of memory with a single row in flight: this model does not fit at this length. Lower "
                "sampling.max_tokens, or use a smaller model or model.dtype=bfloat16 on a GPU."
            )
        self.max_rows, self.prefill_tokens = rows // 2, max(self.prefill_tokens // 2, 1)
        free_memory()
        self.say(
            f"out of memory while sampling: from now on {self.max_rows} rows at once instead of {rows}. The samples "
            "stay the same, only slower."
        )

    def logprobs(
        self, prefixes: Seq[Ints], continuations: Seq[Ints], temperature: float = 1.0, role: str = "policy"
    ) -> list[Reals]:
        """Log-probabilities of given continuations at a temperature, by the trainer's forward."""
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
                with _without_gradients(model), _evaluating(model):
                    for a, b in cuts([len(s) for s in sequences], self.prefill_tokens):
                        out += _score(model, sequences[a:b], [len(t) for t in continuations[a:b]], temperature)
                return out
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or self.prefill_tokens == 1:
                    raise
            self.prefill_tokens = min(self.prefill_tokens, sum(map(len, sequences))) // 2 or 1
            free_memory()


def _score(model: Policy, sequences: list[Ints], tails: list[int], temperature: float) -> list[Reals]:
    ends = np.cumsum([len(s) for s in sequences])
    at = torch.from_numpy(np.concatenate([np.arange(e - t, e) for e, t in zip(ends, tails, strict=True)]))
    inputs = packed(sequences, model.device)
    hidden_MD, _ = model(inputs)
    parts = []
    for rows in at.to(model.device).split(max(HEAD_CELLS // model.vocab, 1)):
        logp_XV = torch.log_softmax(model.head(hidden_MD[rows - 1]) / temperature, -1)
        parts.append(logp_XV.gather(1, inputs.ids_M[rows][:, None])[:, 0])
    flat = torch.cat(parts).cpu().numpy()
    return [piece.copy() for piece in np.split(flat, np.cumsum(tails)[:-1])]


_MODES: WeakKeyDictionary[nn.Module, list[bool]] = WeakKeyDictionary()  # the training mode that each stream found


def _module(model: Any) -> nn.Module:
    return model.policy if isinstance(model, Unadapted) else model


@contextmanager
def _evaluating(model: Policy) -> Iterator[None]:
    """Evaluation mode, then the mode from before. Streams of one model interleave: the last to leave restores it."""
    module = _module(model)
    modes = _MODES.setdefault(module, [])
    modes.append(module.training)
    if module.training:
        module.train(False)
    try:
        yield
    finally:
        was = modes[0]
        modes.pop()
        if was and not modes:
            module.train(True)


def _without_gradients(model: Policy) -> AbstractContextManager[object]:
    """Not inference mode for FSDP: what it gathers there could not be used in training."""
    return torch.no_grad() if hasattr(_module(model), "unshard") else torch.inference_mode()
