"""Log-probabilities of given tokens, and the modes in which a model is called for sampling."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from gruppo.engines.base import Ints, Reals
from gruppo.policies.base import Policy
from gruppo.policies.layout import packed
from gruppo.policies.lora import Unadapted

HEAD_CELLS = 1 << 24  # logits that `score` holds at once


def score(model: Policy, sequences: list[Ints], tails: list[int], temperature: float) -> list[Reals]:
    """Log-probabilities of the last `tails` ids of each sequence."""
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


@dataclass
class _Mode:
    """Who samples from a module now, and the parts of it that were in training mode before."""

    users: int = 0
    training: list[nn.Module] = field(default_factory=list[nn.Module])


_MODES: WeakKeyDictionary[nn.Module, _Mode] = WeakKeyDictionary()


def _module(model: Any) -> nn.Module:
    return model.policy if isinstance(model, Unadapted) else model


def modules_of(model: Policy) -> tuple[nn.Module, ...]:
    return tuple(_module(model).modules())


@contextmanager
def evaluating(model: Policy, modules: Seq[nn.Module] = ()) -> Iterator[None]:
    """Evaluation mode, then the mode from before. Streams of one model interleave: the last to leave restores it.

    `modules` are those of the model, for callers that come often: to find them takes longer than to switch them.
    """
    mode = _MODES.setdefault(_module(model), _Mode())
    if mode.users == 0:
        mode.training = [m for m in modules or modules_of(model) if m.training]
        _switch(mode.training, False)
    mode.users += 1
    try:
        yield
    finally:
        mode.users -= 1
        if mode.users == 0:
            _switch(mode.training, True)


def _switch(modules: Seq[nn.Module], training: bool) -> None:
    for m in modules:
        m.__dict__["training"] = training  # setattr of a module looks for parameters first, and there are hundreds


def without_gradients(model: Policy) -> AbstractContextManager[object]:
    """Not inference mode for FSDP: what it gathers there could not be used in training."""
    return torch.no_grad() if hasattr(_module(model), "unshard") else torch.inference_mode()
