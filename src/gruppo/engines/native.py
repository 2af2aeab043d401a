"""The engine in the trainer's own process: it samples from the very weights that are trained."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import numpy as np
import torch

from gruppo.engines.base import Completion, Ints, Reals, Request, check, check_ids
from gruppo.engines.stream import Stream
from gruppo.policies.base import Incremental, Policy
from gruppo.policies.layout import cuts, packed
from gruppo.policies.lora import Unadapted
from gruppo.policies.memory import free_memory, out_of_memory

HEAD_CELLS = 1 << 24  # logits that score holds at once


class NativeEngine:
    """Samples from `models` (role → policy), whose weights it shares: nothing is copied, nothing is stale.

    The trainer raises `version` after each update. Keys and values live as long as one call of `generate`; a
    version that changes while its stream is open is an error (pitfall 22). `prefilled` and `decoded` count
    the tokens that went through the model, `sampled` those of completions.
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
                    f"model of role {role!r} ({type(model).__name__}) has no prefill and decode, so "
                    "the native engine would compute every prefix again for each token. Use another engine."
                )
        if max_rows < 1:
            raise ValueError(f"max_rows={max_rows}: nothing could be sampled. Use 1 or more.")
        self.models = dict(models)
        self.eos = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
        self.max_rows, self.prefill_tokens, self.say = max_rows, prefill_tokens, say
        self.version = 0
        self.prefilled = self.decoded = self.sampled = 0

    def _model(self, role: str) -> Incremental:
        if role not in self.models:
            raise ValueError(
                f"role {role!r} has no model in this engine: there is nothing to sample from. "
                f"Roles: {', '.join(self.models)}."
            )
        return self.models[role]  # type: ignore[return-value]

    def generate(self, requests: Seq[Request]) -> AsyncIterator[tuple[int, Completion]]:
        """A stream of (index, completion) in order of completion. Bad requests are refused at the call."""
        for role in {r.role for r in requests}:
            model = self._model(role)
            check([r for r in requests if r.role == role], model.vocab, model.context)
        return self._generate(list(requests))

    async def _generate(self, requests: list[Request]) -> AsyncIterator[tuple[int, Completion]]:
        version = self.version
        for role in dict.fromkeys(r.role for r in requests):
            waiting = {i: r for i, r in enumerate(requests) if r.role == role}
            while waiting:  # again only after memory ran out
                async for i, completion in self._stream(role, dict(waiting), version):
                    del waiting[i]
                    yield i, completion

    async def _stream(
        self, role: str, requests: dict[int, Request], version: int
    ) -> AsyncIterator[tuple[int, Completion]]:
        """(index, completion) of requests; ends early, with fewer rows from then on, when memory runs out."""
        model, index = self._model(role), list(requests)
        stream = Stream(model, list(requests.values()), self.max_rows, self.eos, version, self.prefill_tokens)
        while stream.busy:
            # Not around the yield: the consumer must find its gradients and the model its mode. Not at every token
            # either: to switch a model of many modules takes as long as a twentieth of a token.
            try:
                with _evaluating(model):
                    ended = await self._until_one_ends(stream, version)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                ended = None
            if ended is None:
                del stream
                self._smaller(len(index))
                return
            for i, completion in ended:
                self.sampled += len(completion.ids)
                yield index[i], completion

    async def _until_one_ends(self, stream: Stream, version: int) -> list[tuple[int, Completion]]:
        """Draw tokens until some rows have ended, and give those."""
        while stream.busy:
            self._same(version)
            prefilled, decoded = stream.prefilled, stream.decoded
            try:
                with torch.inference_mode():
                    ended = stream.step()
            finally:
                self.prefilled += stream.prefilled - prefilled
                self.decoded += stream.decoded - decoded
            await asyncio.sleep(0)  # environments and tools run between two tokens
            if ended:
                return ended
        return []

    def _smaller(self, rows: int) -> None:
        """Half the rows and half the prompt tokens at once. The luck of a row is its own, so what is drawn stays."""
        rows = min(rows, self.max_rows)
        if rows == 1:
            raise ValueError(
                "out of memory with a single row in flight: this model and this length do not fit here. Use fewer "
                "sampling.max_tokens, a smaller model, or model.dtype=bfloat16 on a GPU."
            )
        self.max_rows, self.prefill_tokens = rows // 2, max(self.prefill_tokens // 2, 1)
        free_memory()
        self.say(
            f"out of memory while sampling: {self.max_rows} rows at once instead of {rows} from here on. The answers "
            "are drawn as before, only more slowly."
        )

    def _same(self, version: int) -> None:
        if self.version != version:
            raise RuntimeError(
                f"version went from {version} to {self.version} while a stream of generate was open: its "
                "keys and values belong to the old weights. Finish or close the stream before the update."
            )

    def score(
        self, prefixes: Seq[Ints], continuations: Seq[Ints], temperature: float = 1.0, role: str = "policy"
    ) -> list[Reals]:
        """Log-probabilities of given continuations at a temperature, through the trainer's own forward."""
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
                with torch.inference_mode(), _evaluating(model):
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
    hidden_MD, _ = model.hidden(inputs)
    parts = []
    for rows in at.to(model.device).split(max(HEAD_CELLS // model.vocab, 1)):
        logp_XV = torch.log_softmax(model.head(hidden_MD[rows - 1]) / temperature, -1)
        parts.append(logp_XV.gather(1, inputs.ids_M[rows][:, None])[:, 0])
    flat = torch.cat(parts).cpu().numpy()
    return [piece.copy() for piece in np.split(flat, np.cumsum(tails)[:-1])]


_MODES: WeakKeyDictionary[Policy, list[bool]] = WeakKeyDictionary()  # of each model, as those who draw found it


@contextmanager
def _evaluating(model: Policy) -> Iterator[None]:
    """Evaluation mode, and back to what it was: a dropout of the trainer's must not reach a sample.

    Streams of one model take turns, so the mode comes back when the last of them that draws has left.
    """
    model = model.policy if isinstance(model, Unadapted) else model  # the reference of a LoRA run shares its modules
    modes = _MODES.setdefault(model, [])
    modes.append(model.training)
    if model.training:
        model.train(False)
    try:
        yield
    finally:
        was = modes[0]
        modes.pop()
        if was and not modes:
            model.train(True)
