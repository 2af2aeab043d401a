"""What a sampler is asked for and what it answers (design 3.9)."""

from collections.abc import AsyncIterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Reals = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Request:
    """Continue `prefix`. A fork is a request with a longer prefix.

    The token at absolute position p is drawn with the uniform number of (key, p): requests that share a key
    share their luck, and a continuation under the same key goes on with the same stream.
    """

    prefix: Ints
    max_tokens: int
    key: int
    temperature: float = 1.0  # 0 is greedy: a point mass, whose log-probability is 0
    top_k: int = 0  # 0: no limit; ids that tie with the k-th are kept
    top_p: float = 1.0  # the fewest ids, most probable first, that hold this mass (after top_k)
    stop: tuple[int, ...] = ()  # ids that end the completion, besides the engine's eos; they belong to it
    topk_logprobs: int = 0  # how many of the most probable ids to report at each token
    role: str = "policy"

    def __post_init__(self) -> None:
        wrong = self._wrong()
        if wrong:
            raise ValueError(wrong)

    def _wrong(self) -> str:
        if len(self.prefix) == 0:
            return "prefix is empty: there is nothing to continue. Give at least one id, such as bos."
        if self.max_tokens < 1:
            return f"max_tokens={self.max_tokens}: nothing would be sampled. Use 1 or more."
        if not 0 <= self.temperature < float("inf"):
            return f"temperature={self.temperature}: logits are divided by it. Use a positive one, or 0: greedy."
        if not 0 < self.top_p <= 1:
            return f"top_p={self.top_p}: it is a share of probability. Use one in (0, 1]; 1 keeps everything."
        if self.top_k < 0:
            return f"top_k={self.top_k}: it counts ids. Use 1 or more, or 0 to keep everything."
        if self.topk_logprobs < 0:
            return f"topk_logprobs={self.topk_logprobs}: it counts ids. Use 0 or more."
        return ""

    @property
    def truncates(self) -> bool:
        """Whether some ids cannot be drawn."""
        return self.top_k > 0 or self.top_p < 1 or self.temperature == 0


@dataclass(frozen=True, eq=False)
class Completion:
    """What was sampled. The id that stopped it is its last id: to stop is a decision, and is trained."""

    ids: Ints
    logp: Reals  # of the distribution really drawn from; float32, or float64 if the weights are
    version: NDArray[np.int32]  # of the weights, for each token
    reason: Literal["stop", "length"]
    topk: tuple[Ints, Reals] | None = None  # (tokens, k) each, at the temperature, before truncation
    allowed: list[Ints] | None = None  # the ids that could be drawn at each token, if the request truncates

    def __repr__(self) -> str:
        return f"Completion({len(self.ids)} tokens, {self.reason}, ids={self.ids[:8].tolist()}…)"


@runtime_checkable
class Engine(Protocol):
    can: frozenset[str]
    version: int
    sampled: int  # tokens of all completions so far: what a method has cost

    def generate(self, requests: Seq[Request]) -> AsyncIterator[tuple[int, Completion]]:
        """A stream of (index of the request, completion) in the order in which they end."""
        ...

    def score(
        self, prefixes: Seq[Ints], continuations: Seq[Ints], temperature: float = 1.0, role: str = "policy"
    ) -> list[Reals]:
        """Log-probabilities of given continuations, one for each id, at a temperature, untruncated."""
        ...


async def complete(engine: Engine, requests: Seq[Request]) -> list[Completion]:
    """All completions, in the order of the requests."""
    found = {i: c async for i, c in engine.generate(requests)}
    return [found[i] for i in range(len(requests))]


def check(requests: Seq[Request], vocab: int, context: int) -> None:
    """Refuse what a model cannot continue."""
    if not requests:
        return
    for r in requests:
        total = len(r.prefix) + r.max_tokens
        if total > context:
            raise ValueError(
                f"prefix of {len(r.prefix)} + max_tokens={r.max_tokens} = {total} tokens, the context is "
                f"{context}: positions end there. Ask for at most {max(context - len(r.prefix), 0)} tokens."
            )
    check_ids([r.prefix for r in requests], vocab)
    most = max(r.topk_logprobs for r in requests)
    if most > vocab:
        raise ValueError(f"topk_logprobs={most}, but there are {vocab} ids to report. Ask for at most {vocab}.")


def check_ids(arrays: Seq[Ints], vocab: int) -> None:
    """Refuse ids that have no embedding (on a GPU the look-up itself would end the process)."""
    ids = np.concatenate([*arrays, np.zeros(1, np.int64)])
    for i in (int(ids.min()), int(ids.max())):
        if not 0 <= i < vocab:
            raise ValueError(
                f"id {i} is outside the vocabulary 0..{vocab - 1}: it has no embedding. "
                "Encode with this policy's tokenizer."
            )
