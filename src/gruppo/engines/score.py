"""Log-probabilities of given tokens, and the modes in which a model is called for sampling."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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


_MODES: WeakKeyDictionary[nn.Module, list[bool]] = WeakKeyDictionary()  # the training mode that each stream found


def _module(model: Any) -> nn.Module:
    return model.policy if isinstance(model, Unadapted) else model


@contextmanager
def evaluating(model: Policy) -> Iterator[None]:
    """Evaluation mode, then the mode from before. Streams of one model interleave: the last to leave restores it."""
    module = _module(model)
    if getattr(module, "modeless", False):
        yield
        return
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


def without_gradients(model: Policy) -> AbstractContextManager[object]:
    """Not inference mode for FSDP: what it gathers there could not be used in training."""
    return torch.no_grad() if hasattr(_module(model), "unshard") else torch.inference_mode()
