"""Every group that can be drawn, with its probability, and an engine that returns the answers of one of them."""

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppo.engines.base import Completion, Request, complete
from gruppo.lab.exact.world import ExactWorld

MOST = 20_000


class Unlike(ValueError):
    """A method that cannot be enumerated; the message is shown in its row."""


@dataclass(frozen=True)
class Draws:
    """All draws of one step: `prompts` different prompts, each with `samples` answers.

    Answers are independent, so a group is a set with repetitions and its probability is multinomial:

        P(group) = n! / Π_o n_o! · Π_o π(o)^{n_o}
    """

    places: Tensor  # [C, prompts · samples]: the answers of a draw, numbered prompt by prompt
    counts: Tensor  # [C, Q · A]: how often each answer is in the draw
    log_ways: Tensor  # [C]: log n!/Π n_o!, summed over the prompts of the draw
    subset: Tensor  # [C]: which prompts were asked
    subsets: int
    samples: int

    def chances(self, log_mass: Tensor) -> Tensor:
        """P(draw) under a policy, from the log-probability of every answer to every prompt; sums to 1."""
        return torch.exp(self.log_ways + self.counts @ log_mass.flatten()) / self.subsets


def groups_of(answers: int, samples: int) -> tuple[list[tuple[int, ...]], list[float]]:
    """Every set with repetitions, and log n!/Π n_o! of each."""
    sets = list(combinations_with_replacement(range(answers), samples))
    ways = [math.lgamma(samples + 1) - sum(math.lgamma(s.count(o) + 1) for o in set(s)) for s in sets]
    return sets, ways


def all_draws(world: ExactWorld, prompts: int, samples: int) -> Draws:
    many, width = len(world.rates), len(world.answers)
    if not 1 <= prompts <= many:
        raise ValueError(
            f"prompts={prompts}: the laboratory has {many} different prompts, and a step asks each at most once. "
            f"Use 1 to {many}, or give more --rates."
        )
    if samples < 1:
        raise ValueError(f"samples={samples}: no answer would be drawn. Use 1 or more.")
    size = math.comb(many, prompts) * math.comb(width + samples - 1, samples) ** prompts
    if size > MOST:
        raise ValueError(
            f"prompts={prompts}, samples={samples}: {size} different draws, each a step of its own; more than {MOST} "
            "take too long. Use fewer samples, prompts or rates."
        )
    sets, ways = groups_of(width, samples)
    asked = list(combinations(range(many), prompts))
    rows = [(i, qs, gs) for i, qs in enumerate(asked) for gs in product(range(len(sets)), repeat=prompts)]
    places = torch.tensor([[q * width + o for q, g in zip(qs, gs, strict=True) for o in sets[g]] for _, qs, gs in rows])
    counts = torch.zeros(len(rows), many * width, dtype=torch.float64)
    counts.scatter_add_(1, places, torch.ones_like(places, dtype=torch.float64))
    return Draws(
        places=places,
        counts=counts,
        log_ways=torch.tensor([sum(ways[g] for g in gs) for _, _, gs in rows], dtype=torch.float64),
        subset=torch.tensor([i for i, _, _ in rows]),
        subsets=len(asked),
        samples=samples,
    )


class Masses:
    """The probability of every answer and the log-probabilities of its tokens, at a temperature."""

    def __init__(self, mass_QA: Tensor, logp: Sequence[Tensor]) -> None:
        self.mass, self.logp = mass_QA.tolist(), logp


class Script:
    """An engine that returns the answers of one draw instead of sampling, so that any rollout can be enumerated.

    Only plain requests are answered from the draw: a prompt of the laboratory, no part of an answer, temperature 1. A
    greedy request gets the policy's most probable answer. Any other request, and any plain one beyond the draw, is
    sampled from the policy with `noise`, given the part of the answer that is there.
    """

    promises: frozenset[str] = frozenset({"keyed", "logp"})
    version = 0

    def __init__(self, world: ExactWorld, noise: Callable[..., Any], masses: Callable[[float], Masses]) -> None:
        self.world, self.noise, self.masses = world, noise, masses
        self.left: dict[int, list[int]] = {}
        self.asked = self.sampled = 0

    def begin(self, draw: Sequence[int]) -> None:
        """Set the answers of a draw, in the order in which they are returned."""
        self.left, self.asked = {}, 0
        for number in draw:
            q, a = divmod(number, len(self.world.answers))
            self.left.setdefault(q, []).append(a)

    def taken(self, samples: int) -> int:
        """How many answers to a prompt the rollout has taken from the draw."""
        return samples - min(map(len, self.left.values()), default=0)

    async def ask(self, request: Request) -> Completion:
        [completion] = await complete(self, [request])
        return completion

    def forget(self) -> None:
        """Nothing is kept."""

    def sync(self, version: int, weights: Mapping[str, Any]) -> None:
        """The policy is that of the laboratory."""

    def logprobs(
        self, prefixes: Sequence[Any], continuations: Sequence[Any], temperature: float = 1.0, role: str = "policy"
    ) -> list[Any]:
        raise Unlike("its rollout asks the engine for log-probabilities of given tokens")

    async def generate(
        self, requests: Sequence[Request], remember: bool = False
    ) -> AsyncIterator[tuple[int, Completion]]:
        for i, request in enumerate(requests):
            q, plain, start = self._read(request)
            a = self._answer(request, q, plain, start)
            ids = self.world.ids(a)[len(start) :]
            masses = self.masses(request.temperature or 1.0)
            logp = masses.logp[q * len(self.world.answers) + a][len(start) :].numpy().astype(np.float64)
            allowed = [np.array([t]) for t in ids] if request.temperature == 0 else None
            logp = np.zeros(len(ids)) if allowed else logp
            cut = len(ids) > request.max_tokens
            ids, logp = ids[: request.max_tokens], logp[: request.max_tokens]
            yield i, Completion(ids, logp, np.zeros(len(ids), np.int32), "length" if cut else "stop", allowed=allowed)

    def _read(self, request: Request) -> tuple[int, bool, list[int]]:
        """The prompt of a request, whether it is plain, and the letters of the answer that are there already."""
        prefix, prompts = [int(i) for i in request.prefix], self.world.tokenizer.encode(self.world.tokenizer.prompts)
        at = max((i for i, token in enumerate(prefix) if token in prompts), default=-1)
        if at < 0:
            raise Unlike("its rollout samples after texts without a prompt of the laboratory")
        q = prompts.tolist().index(prefix[at])
        letters = [token for token in prefix[at + 1 :] if token < self.world.tokenizer.choices]
        return q, prefix == self.world.prompt(q).tolist(), letters

    def _answer(self, request: Request, q: int, plain: bool, start: list[int]) -> int:
        if request.steer is not None:
            raise Unlike("its rollout steers the engine, so its answers are not the policy's draws")
        if request.role != "policy":
            raise Unlike(f"its rollout samples from the role {request.role!r}, and only the policy is enumerated")
        masses = self.masses(request.temperature or 1.0)
        if request.temperature == 0:
            return int(np.argmax(masses.mass[q]))
        if request.truncates:
            raise Unlike("its rollout samples from a truncated distribution")
        if plain and request.temperature == 1 and self.left.get(q):
            self.asked += 1
            return self.left[q].pop(0)
        mass = np.cumsum(np.where(self.world.going_on(tuple(start)), masses.mass[q], 0.0))
        if not mass[-1] > 0:
            raise Unlike("its rollout goes on from texts that begin no answer of the laboratory")
        return int(np.searchsorted(mass, float(self.noise("more", request.key)) * mass[-1], side="right"))
