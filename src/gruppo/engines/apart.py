"""Engines with weights of their own, such as vLLM or a server: what they have in common, and what they refuse.

They are given ids and return ids. How a draw is made is theirs: a seed that is a function of the random key and of the
length of the prefix makes a draw repeatable, as far as they keep to seeds, but it is not the keyed draw of the native
engine, and nothing can look at a token before it is drawn.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, TypeVar

import numpy as np

from gruppo.data import key_hash
from gruppo.engines.base import Completion, Ints, NotFinite, Reals, Reason, Request, check
from gruppo.engines.waves import Waves

T = TypeVar("T")


class Apart:
    """The part of an engine that does not sample. A subclass has `name`, `promises` and `_one`.

    models  role → what is known of its policy: vocab and context; of an engine that takes weights, the policy itself
    eos     ids that end every answer
    """

    name = "apart"
    promises: frozenset[str] = frozenset()

    def __init__(self, models: Mapping[str, Any], eos: tuple[int, ...]) -> None:
        self.models = self.known = dict(models)
        self.eos = tuple(eos)
        self.version = self.sampled = 0
        self.waves = Waves(False)

    async def _one(self, request: Request) -> Completion:
        """The answer to a request that this engine can serve."""
        raise NotImplementedError

    def context(self, role: str = "policy") -> int:
        """The positions that a sequence of this role can have."""
        return self._model(role).context

    def _model(self, role: str) -> Any:
        if role != "policy" or role not in self.known:
            raise ValueError(
                f"role {role!r} cannot be sampled by engine={self.name}, which has the policy alone. Use "
                "engine=native, or a method and a task in which only the policy writes."
            )
        return self.known[role]

    def forget(self) -> None:
        """Nothing is kept, unless a subclass says so."""

    def sync(self, version: int, weights: Mapping[str, Any]) -> None:
        raise ValueError(
            f"engine={self.name} cannot take new weights, so version {version} would be sampled from old ones. Use "
            "engine=native or engine=vllm."
        )

    def close(self) -> None:
        """Ends what the engine has started."""

    @contextmanager
    def without_memory(self) -> Iterator[None]:
        """New weights drop what is kept, so an update that samples needs nothing more."""
        yield

    @asynccontextmanager
    async def caller(self) -> AsyncGenerator[None, None]:
        yield

    async def together(self, coroutines: Seq[Coroutine[Any, Any, T]]) -> list[T]:
        """The results of coroutines that ask, run at the same time."""
        return await self.waves.together(coroutines)

    async def ask(self, request: Request) -> Completion:
        async with aclosing(self.generate([request])) as stream:
            async for _, completion in stream:
                return completion
        raise AssertionError("a request ends, or fails")

    def generate(self, requests: Seq[Request], remember: bool = False) -> AsyncGenerator[tuple[int, Completion], None]:
        """A stream of (index, completion), in the order in which they finish. Bad requests fail at the call.

        What is kept between requests is the engine's own affair, so `remember` changes nothing.
        """
        for request in requests:
            model = self._model(request.role)
            check([request], model.vocab, model.context)
            if said := self.refusal(request):
                raise ValueError(said)
        return self._generate(list(requests))

    def refusal(self, request: Request) -> str:
        """Why a request cannot be served, with the remedy; "" if it can."""
        wanted = {
            "truncation": (request.top_k > 0 or request.top_p < 1, f"top_k={request.top_k}, top_p={request.top_p}"),
            "topk": (request.topk_logprobs > 0, f"topk_logprobs={request.topk_logprobs}"),
            "stop_text": (bool(request.stop_text), f"stop_text={request.stop_text!r}"),
            "steer": (request.steer is not None, "a request with a steer"),
        }
        for promise, (asked, said) in wanted.items():
            if asked and promise not in self.promises:
                return (
                    f"{said}: engine={self.name} does not promise {promise!r}, so the answer would be another one. "
                    "Leave it out, or use engine=native."
                )
        if 0 < request.temperature < LEAST_WARM:
            return (
                f"temperature={request.temperature:g}: engine={self.name} samples at {LEAST_WARM:g} or more, so the "
                "draw would be another one. Use 0 (greedy), or more."
            )
        return ""

    async def _generate(self, requests: list[Request]) -> AsyncGenerator[tuple[int, Completion], None]:
        places = {asyncio.ensure_future(self._one(r)): i for i, r in enumerate(requests)}
        left = set(places)
        try:
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=places.__getitem__):
                    completion = task.result()
                    self._refuse_odd(requests[places[task]], completion)
                    self.sampled += len(completion.ids)
                    yield places[task], completion
        finally:
            for task in places:
                task.cancel()
            await asyncio.gather(*places, return_exceptions=True)

    def _refuse_odd(self, request: Request, c: Completion) -> None:
        """What no sampler of this model can have drawn is refused here: later it would be a riddle."""
        vocab, who = self._model(request.role).vocab, f"engine={self.name} returns"
        remedy = "Look whether it has the model that is asked for, and at its log."
        if len(odd := c.ids[(c.ids < 0) | (c.ids >= vocab)]):
            raise ValueError(f"{who} the id {odd[0]}, outside the vocabulary 0..{vocab - 1}. {remedy}")
        if len(c.ids) > request.max_tokens:
            raise ValueError(f"{who} {len(c.ids)} tokens, and {request.max_tokens} were asked for. {remedy}")
        if len(odd := c.logp[c.logp > ROUNDED]):
            raise ValueError(f"{who} {odd[0]} as the log-probability of a token: none is positive. {remedy}")
        if "logp" in self.promises and np.isnan(c.logp).any():
            raise NotFinite(f"{who} nan as the log-probability of a token: its weights are not finite. {remedy}")

    def logprobs(
        self, prefixes: Seq[Ints], continuations: Seq[Ints], temperature: float = 1.0, role: str = "policy"
    ) -> list[Reals]:
        raise ValueError(
            f"engine={self.name} does not promise 'score': it gives no log-probabilities of given tokens. Use "
            "engine=native."
        )


ROUNDED = 0.1  # by so much a log-probability of 0 may be rounded up where logits are bfloat16
LEAST_WARM = 0.01  # vLLM raises a temperature below it, with a warning


def seed_of(request: Request) -> int:
    """The seed of a draw, not negative. A continuation with the same key has another one: it is a longer prefix."""
    return int(key_hash("apart", request.key, len(request.prefix))) & ((1 << 63) - 1)


def stops_of(request: Request, eos: Seq[int]) -> list[int]:
    """All ids that end an answer."""
    return sorted({*eos, *request.stop})


def completion_of(
    request: Request,
    ids: Seq[int],
    logp: Seq[float],
    version: Seq[int],
    reason: Reason,
    likely: Seq[Mapping[int, float]] = (),
) -> Completion:
    """An answer of an engine. NaN is a log-probability that is not known.

    likely  the log-probabilities of some ids at each token, the most probable ones among them
    """
    ids_T, logp_T = np.asarray(ids, np.int64), np.asarray(logp, np.float32)
    if not len(ids_T):
        raise ValueError(
            "the engine returned an answer without a token: at least the id that ends it is part of it. Look at its "
            "log."
        )
    if np.isinf(logp_T).any():
        raise NotFinite(
            f"the engine reports {logp_T[np.isinf(logp_T)][0]} as the log-probability of a token that it sampled: its "
            "weights are not finite. Lower optim.lr, or look at the last steps."
        )
    greedy = request.temperature == 0  # a point mass, whatever the engine reports
    return Completion(
        ids=ids_T,
        logp=np.zeros(len(ids_T), np.float32) if greedy else logp_T,
        version=np.asarray(version, np.int32),
        reason=reason,
        topk=_topk(likely, request.topk_logprobs) if request.topk_logprobs else None,
        allowed=[ids_T[t : t + 1] for t in range(len(ids_T))] if greedy else None,
    )


def _topk(likely: Seq[Mapping[int, float]], k: int) -> tuple[Ints, Reals]:
    """The k most probable of each; the id that was sampled may be among them as one more."""
    best = [sorted(found.items(), key=lambda pair: -pair[1])[:k] for found in likely]
    ids = np.array([[i for i, _ in row] for row in best], np.int64)
    return ids.reshape(-1, k), np.array([[p for _, p in row] for row in best], np.float32).reshape(-1, k)
