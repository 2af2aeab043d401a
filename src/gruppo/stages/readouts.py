"""Needs and readouts: what a room reads from a model.

A `Need` names a readout, a role, a view and a level. A readout maps a chunk of positions to one number each, or a few.
All readouts of one (role, view) share one forward pass, and the logits of all tokens never exist at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gruppo.data import Ragged
from gruppo.pieces.divergence import full
from gruppo.stages.names import nearest

When = Literal["batch", "step"]  # rooms before the batch use ctx.read instead
Side = Literal["before", "after"]


@dataclass(frozen=True)
class Need:
    """`Need("logp", role="ref")` prints as `logp@ref` and becomes the column `logp_ref_N`.

    role     "policy" with when="step" is the model being trained; "old" is the policy at the start of the step
    when     "batch": once, when the batch is packed; "step": at every optimiser step, with gradient from the role in
             training; from another role without, as it is then, under its full name: `value_target_N`
    against  a second role, for readouts that compare two distributions: `Need("kl", against="ref", when="step")`
             becomes `kl_ref_N`. Both heads run on the same chunk; the second role has no gradient
    side     of values at N and K: of the state "before" a token or a turn (its first token), or "after" it (its last
             one), which becomes `value_critic_after_K`. A turn without tokens has a value of 0
    """

    readout: str
    role: str = "policy"
    view: str = "as_trained"
    at: Literal["N", "K", "S", "M"] = "N"
    when: When = "batch"
    params: tuple[tuple[str, float], ...] = ()
    against: str = ""
    side: Side = "before"

    def __post_init__(self) -> None:
        if self.readout not in READOUTS:
            raise ValueError(
                f"need {self.readout!r}: no such readout{nearest(self.readout, READOUTS)}. Known: "
                f"{', '.join(READOUTS)}."
            )
        if READOUTS[self.readout].pair != bool(self.against):
            raise ValueError(
                f"need {self.readout!r} with against={self.against!r}: it reads "
                + ("one role. Leave against out." if self.against else "two, so name the second: against='ref'.")
            )
        if self.side not in get_args(Side):
            raise ValueError(
                f"need {self.readout!r} with side={self.side!r}: no such side{nearest(self.side, get_args(Side))}, so "
                "it is unknown which state is meant. Use 'before' or 'after'."
            )
        if self.side == "after" and not (READOUTS[self.readout].head == "value" and self.at in "NK"):
            raise ValueError(
                f"need {self.readout!r} at {self.at!r} with side='after': only values are read after a token or a "
                "turn; what is said of a token comes from the state before it. Leave side out, or read a value at N "
                "or K."
            )

    @property
    def column(self) -> str:
        tail = "".join(f"_{k}{v:g}" for k, v in self.params) + ("_after" if self.side == "after" else "")
        view = "" if self.view == "as_trained" else f"_{self.view}"
        role = "" if self.when == "step" else f"_{self.role}"
        other = f"_{self.against}" if self.against else ""
        return f"{self.readout}{role}{other}{view}{tail}_{self.at}"

    def __str__(self) -> str:
        params = ", ".join(f"{k}={v:g}" for k, v in self.params)
        view = "" if self.view == "as_trained" else f"[{self.view}]"
        roles = f"{self.role}‖{self.against}" if self.against else self.role
        after = " after" if self.side == "after" else ""
        return f"{self.readout}@{roles}{view}" + (f"({params})" if params else "") + after


def need(
    readout: str,
    role: str = "policy",
    *,
    at: Any = "N",
    when: When = "batch",
    view: str = "as_trained",
    against: str = "",
    side: Side = "before",
    **params: float,
) -> Need:
    """A `Need` with its parameters as keywords: `need("logp", "old", T=1.2)`."""
    return Need(readout, role, view, at, when, tuple(sorted(params.items())), against, side)


@dataclass(frozen=True)
class Chunk:
    """A slice of positions: hidden states, outputs of the head (logits, or values), and the tokens that follow.

    `other_CV` are the logits of a second role at the same positions, for readouts that compare two.
    """

    hidden_CD: Tensor
    scores_CV: Tensor
    token_C: Tensor
    temperature_C: Tensor
    allowed: Ragged | None
    other_CV: Tensor | None = None
    _made: dict[float | None, Tensor] = field(default_factory=dict[float | None, Tensor], init=False, repr=False)

    def log_p(self, T: float | None = None) -> Tensor:
        """log π(· | s) as it was sampled: at its temperature and, if it was truncated, in its truncation set.

        Computed once for all readouts of the chunk.
        """
        if T not in self._made:
            self._made[T] = _log_probabilities(self.scores_CV, self, T)
        return self._made[T]


@dataclass(frozen=True)
class Readout:
    name: str
    read: Callable[..., Tensor]
    synthetic: Callable[[torch.Generator, int, torch.dtype], Tensor]  # random values, for laws without a model
    head: Literal["policy", "value"]
    pair: bool  # whether it compares two roles


READOUTS: dict[str, Readout] = {}


def readout(
    name: str,
    synthetic: Callable[[torch.Generator, int, torch.dtype], Tensor],
    head: Literal["policy", "value"] = "policy",
    pair: bool = False,
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    def register(read: Callable[..., Tensor]) -> Callable[..., Tensor]:
        READOUTS[name] = Readout(name, read, synthetic, head, pair)
        return read

    return register


def _log_probabilities(logits_CV: Tensor, chunk: Chunk, T: float | None) -> Tensor:
    """Log-softmax of these logits, at the temperature and in the truncation set of the chunk."""
    heat = chunk.temperature_C if T is None else torch.full_like(chunk.temperature_C, T)
    heat = torch.where(heat > 0, heat, torch.ones_like(heat))
    logits = logits_CV / heat[:, None]
    if chunk.allowed is not None:
        rows = torch.repeat_interleave(torch.arange(len(logits), device=logits.device), chunk.allowed.length)
        inside = torch.zeros_like(logits, dtype=torch.bool)
        inside[rows, chunk.allowed.values] = True
        inside |= (chunk.allowed.length == 0)[:, None]
        logits = logits.masked_fill(~inside, float("-inf"))
    return torch.log_softmax(logits, -1)


@readout("logp", synthetic=lambda g, n, dtype: -2.0 * torch.rand(n, generator=g, dtype=dtype) - 0.05)
def logp(chunk: Chunk, T: float | None = None) -> Tensor:
    """log π(token), at the temperature and truncation of the sampler; with T=…, at that temperature instead."""
    return chunk.log_p(T).gather(1, chunk.token_C[:, None])[:, 0]


@readout("entropy", synthetic=lambda g, n, dtype: 2.0 * torch.rand(n, generator=g, dtype=dtype) + 0.05)
def entropy(chunk: Chunk, T: float | None = None) -> Tensor:
    """H(π(· | s)) = −Σ p log p, in nats."""
    log_p = chunk.log_p(T)
    return -(log_p.exp() * torch.where(torch.isfinite(log_p), log_p, torch.zeros_like(log_p))).sum(-1)


@readout("kl", synthetic=lambda g, n, dtype: torch.rand(n, generator=g, dtype=dtype) + 0.01, pair=True)
def kl(chunk: Chunk, T: float | None = None) -> Tensor:
    """KL(π(· | s) ‖ π_other(· | s)): the exact sum over the vocabulary, at the sampler's temperature and truncation."""
    assert chunk.other_CV is not None
    return full(chunk.log_p(T), _log_probabilities(chunk.other_CV, chunk, T))


@readout("value", synthetic=lambda g, n, dtype: torch.randn(n, generator=g, dtype=dtype) * 0.5, head="value")
def value(chunk: Chunk) -> Tensor:
    """V(s), from a role with a value head; if it has several outputs, all of them."""
    return chunk.scores_CV[:, 0] if chunk.scores_CV.shape[1] == 1 else chunk.scores_CV


@readout("score_norm", synthetic=lambda g, n, dtype: torch.rand(n, generator=g, dtype=dtype) + 0.1)
def score_norm(chunk: Chunk) -> Tensor:
    """|∂ log π(token) / ∂ logits|² = 1 − 2 p + Σ p²."""
    p = chunk.log_p().exp()
    return 1.0 - 2.0 * p.gather(1, chunk.token_C[:, None])[:, 0] + (p * p).sum(-1)


@readout("pool", synthetic=lambda g, n, dtype: torch.randn(n, 4, generator=g, dtype=dtype))
def pool(chunk: Chunk, layer: float = -1, depth: float = -1, last: float = 10, prompt: float = 0) -> Tensor:
    """Hidden states of a layer, averaged over the last decisions of each sequence, or of its prompt (at="S").

    depth=0.5 is the middle layer, however many there are; without layer or depth, the final hidden states are read.
    """
    return chunk.hidden_CD


class Stats(dict[str, Tensor]):
    """The current statistics of the model being trained: `stats.logp_N`, `stats.entropy_N`, `stats.value_N`."""

    def __getattr__(self, name: str) -> Tensor:
        if name in self:
            return self[name]
        raise AttributeError(f"{name} was not asked for{nearest(name, self)}: declare it in the occupant's needs().")
