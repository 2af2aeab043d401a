"""Requests, completions, and the protocol of a sampling engine."""

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import index
from sys import float_info
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gruppo.engines.steer import Steer

T = TypeVar("T")
Ints = NDArray[np.int64]
Reals = NDArray[np.floating]
Reason = Literal["stop", "length", "drop"]  # an id or a text ended it; max_tokens did; a steer did


LEAST_TEMPERATURE = 1e-6  # logits divided by less may leave the range of float32


class NotFinite(ValueError):
    """A model gives logits that are not finite: no checkpoint of it should be kept."""


@dataclass(frozen=True, eq=False)
class Request:
    """Continue `prefix`. A fork is a request with a longer prefix.

    The token at absolute position p is drawn with the uniform number of (key, p). Requests with the same random key
    share their noise, and a continuation with the same key continues the same stream.
    """

    prefix: Ints
    max_tokens: int
    key: int
    temperature: float = 1.0  # 0 is greedy: a point mass, whose log-probability is 0
    top_k: int = 0  # 0: no limit; ties with the k-th id are kept
    top_p: float = 1.0  # the smallest set of most probable ids with this mass (after top_k)
    stop: tuple[int, ...] = ()  # ids that end the completion, besides the engine's eos, and are part of it
    topk_logprobs: int = 0  # number of most probable ids to report at each token
    role: str = "policy"
    stop_text: tuple[str, ...] = ()  # texts that end it, with the token in which one of them ends
    steer: "Steer | None" = None  # looks at every token before it is drawn
    payload: bytes = b""  # what the prefix holds besides its ids, such as a hash of its pictures; part of its identity

    def __post_init__(self) -> None:
        self._take()
        if len(self.prefix) == 0:
            raise ValueError("prefix is empty: there is nothing to continue. Give at least one id, such as bos.")
        for name, good, remedy in (
            ("max_tokens", self.max_tokens >= 1, "nothing would be sampled. Use 1 or more."),
            (
                "temperature",
                self.temperature == 0 or LEAST_TEMPERATURE <= self.temperature <= float_info.max,
                f"logits are divided by it. Use at least {LEAST_TEMPERATURE:g}, or 0: greedy.",
            ),
            ("top_p", 0 < self.top_p <= 1, "it is a probability mass. Use a number in (0, 1]; 1 keeps every id."),
            ("top_k", self.top_k >= 0, "it is a number of ids. Use 1 or more, or 0 to keep every id."),
            ("topk_logprobs", self.topk_logprobs >= 0, "it is a number of ids. Use 0 or more."),
        ):
            if not good:
                raise ValueError(f"{name}={getattr(self, name)}: {remedy}")
        if not all(isinstance(text, str) and text for text in self.stop_text) or isinstance(self.stop_text, str):
            raise ValueError(
                f"stop_text={self.stop_text!r}: no token can end an empty text, and a single text is no tuple of them. "
                'Use texts with at least one character, such as stop_text=("\\n",).'
            )

    def _take(self) -> None:
        """Whole numbers as Python's, the prefix as one array of int64; what is neither is refused here, not later."""
        for name in ("max_tokens", "key", "top_k", "topk_logprobs"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        if not isinstance(self.stop, tuple | list):
            raise ValueError(f"stop={self.stop!r}: it is a tuple of ids, such as (2,).")
        if not isinstance(self.payload, bytes):
            raise ValueError(f"payload={self.payload!r}: it is bytes, such as a hash of a picture.")
        object.__setattr__(self, "stop", tuple(_whole("stop", i) for i in self.stop))
        prefix = np.asarray(self.prefix)
        if prefix.ndim != 1 or (len(prefix) and prefix.dtype.kind not in "iu"):
            raise ValueError(
                f"prefix is an array of {prefix.dtype} with {prefix.ndim} dimensions: it is one row of ids. Give whole "
                "numbers, such as tokenizer.encode(text)."
            )
        object.__setattr__(self, "prefix", prefix.astype(np.int64, copy=False))

    @property
    def truncates(self) -> bool:
        """Whether some ids have probability 0."""
        return self.top_k > 0 or self.top_p < 1 or self.temperature == 0


def _whole(name: str, value: Any) -> int:
    try:
        found = index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r}: it must be a whole number.") from None
    if name != "key" and abs(found) >= 1 << 62:  # any integer is a key; the others go into tables of 64 bits
        raise ValueError(f"{name}={value!r}: it is beyond 64 bits. Use a smaller number.")
    return found


@dataclass(frozen=True, eq=False)
class Completion:
    """A sampled continuation. The id that ends it is part of it: stopping is a decision, and is trained."""

    ids: Ints
    logp: Reals  # of the distribution sampled from; float32, or float64 if the weights are
    version: NDArray[np.int32]  # of the weights, per token
    reason: Reason
    topk: tuple[Ints, Reals] | None = None  # ids and logp, (tokens, k) each, at the temperature, before truncation
    allowed: list[Ints] | None = None  # ids with positive probability at each token, if some have none
    forced: NDArray[np.bool_] | None = None  # tokens that were not drawn, if there are any; logp is the policy's
    forks: "tuple[Completion, ...]" = ()  # copies that a steer made; each has its own tokens from `start` on
    start: int = 0  # of a fork: how many tokens it shares with the completion that it is a fork of

    def __repr__(self) -> str:
        return f"Completion({len(self.ids)} tokens, {self.reason}, ids={self.ids[:8].tolist()}…)"


# What an engine may promise. A method that needs more than its engine promises is refused (stages/check.py).
PROMISES = {
    "keyed": "a draw depends on its random key and position alone",
    "truncation": "top_k and top_p",
    "logp": "log-probabilities of the distribution sampled from",
    "topk": "the most probable ids at each token",
    "score": "log-probabilities of given tokens",
    "lockstep": "the same bits in every run, for several callers",
    "stop_text": "texts that end an answer",
    "steer": "functions that steer a draw",
    "fork": "rows that fork while they are sampled",
    "weights": "it samples from the weights that are being trained",
    "shared": "its weights are the trainer's own tensors, so the two cannot differ",
}

# The most that an engine can promise, by its name: what is more is refused before one is made. Engines take what they
# promise from here.
CAN_PROMISE = {
    "native": frozenset(PROMISES),
    "vllm": frozenset({"logp", "topk", "weights"}),
    "remote": frozenset({"logp"}),
}


@runtime_checkable
class Engine(Protocol):
    version: int  # of the weights
    sampled: int  # tokens of all completions so far

    @property
    def promises(self) -> frozenset[str]:
        """Names of PROMISES."""
        ...

    async def ask(self, request: Request) -> Completion:
        """One completion. Many callers may ask at the same time."""
        ...

    def generate(self, requests: Seq[Request]) -> AsyncIterator[tuple[int, Completion]]:
        """A stream of (index of the request, completion), in the order in which they finish."""
        ...

    def forget(self) -> None:
        """Drop what is kept between requests, so that what follows depends on nothing before."""
        ...

    def sync(self, version: int, weights: Mapping[str, Any]) -> None:
        """Sample from these weights (role → policy) from now on. No request may be in flight."""
        ...

    def logprobs(
        self, prefixes: Seq[Ints], continuations: Seq[Ints], temperature: float = 1.0, role: str = "policy"
    ) -> list[Reals]:
        """Log-probabilities of the ids of given continuations, at a temperature, without truncation."""
        ...


@runtime_checkable
class RunEngine(Engine, Protocol):
    """What a run asks of its engine besides."""

    @property
    def models(self) -> Mapping[str, Any]:
        """role → policy, as far as their weights are here."""
        ...

    def context(self, role: str = "policy") -> int:
        """The positions that a sequence of this role can have."""
        ...

    def generate(self, requests: Seq[Request], remember: bool = False) -> AsyncGenerator[tuple[int, Completion], None]:
        """`remember`: these requests may go on from what earlier ones have computed."""
        ...

    def without_memory(self) -> AbstractContextManager[None]:
        """Around an update that samples while weights change."""
        ...

    async def together(self, coroutines: Seq[Coroutine[Any, Any, T]]) -> list[T]:
        """The results of coroutines that ask, run at the same time."""
        ...

    def close(self) -> None:
        """Ends what the engine has started, such as processes."""
        ...


async def complete(engine: Engine, requests: Seq[Request]) -> list[Completion]:
    """All completions, in the order of the requests."""
    found = {i: c async for i, c in engine.generate(requests)}
    return [found[i] for i in range(len(requests))]


def check(requests: Seq[Request], vocab: int, context: int) -> None:
    """Refuse requests that a model cannot serve."""
    for r in requests:
        total = len(r.prefix) + r.max_tokens
        if total > context:
            raise ValueError(
                f"prefix of {len(r.prefix)} + max_tokens={r.max_tokens} = {total} tokens, the context is {context}: "
                f"there are no more positions. Use {fewer_tokens(context - len(r.prefix))}."
            )
    check_ids([r.prefix for r in requests], vocab)
    most = max((r.topk_logprobs for r in requests), default=0)
    if most > vocab:
        raise ValueError(f"topk_logprobs={most} exceeds the vocabulary. Use at most {vocab}.")


def fewer_tokens(room: int) -> str:
    """What a request can do about its length: answer in `room` tokens or, where none is left, begin shorter."""
    if room > 0:
        return f"max_tokens of at most {room}"
    return "a shorter prefix (the prompt, and what an answer begins with, such as a hint), or a model with more context"


def check_ids(arrays: Seq[Ints], vocab: int) -> None:
    """Refuse ids without an embedding: on a GPU the lookup itself would abort the process."""
    ids = np.concatenate([*arrays, np.zeros(1, np.int64)])
    for i in (int(ids.min()), int(ids.max())):
        if not 0 <= i < vocab:
            raise ValueError(
                f"id {i} is outside the vocabulary 0..{vocab - 1}, so it has no embedding. Encode with the policy's "
                "own tokenizer."
            )
