"""What the rest of the package asks of a policy: an `nn.Module` with these parts."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from gruppo.data import Inputs
from gruppo.policies.cache import Cache


@runtime_checkable
class Policy(Protocol):
    """Packed in, packed out: M input positions of many sequences, and no padding that a caller can see."""

    dim: int
    vocab: int
    layers: int
    context: int  # the longest sequence
    training: bool

    @property
    def device(self) -> torch.device: ...

    def hidden(self, inputs: Inputs, collect: tuple[int, ...] = ()) -> tuple[Tensor, dict[int, Tensor]]:
        """Final normalised hidden states (M, dim), and those of the layers in `collect`.

        Layer 0 is the embedding, layer l the residual stream after block l, before the final norm.
        """
        ...

    def head(self, hidden_XD: Tensor) -> Tensor:
        """Logits (X, vocab) in at least float32 (float64 if the weights are), so that log-softmax is safe."""
        ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def train(self, mode: bool = True) -> Any: ...


@runtime_checkable
class Incremental(Policy, Protocol):
    """A policy that the native engine can drive: whole prefixes once, then one token a row."""

    def cache(self, rows: int, span: int) -> Cache: ...

    def prefill(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Hidden states (M, dim), and keys and values (layers, 2, M, width) to be put into a cache."""
        ...

    def decode(self, ids_B: Tensor, pos_B: Tensor, cache: Cache, span: int | None = None) -> Tensor:
        """Hidden states (B, dim) of one token for each of the first B rows of the cache, which it extends."""
        ...


P = TypeVar("P", bound=nn.Module)


def clone(policy: P, train: bool = False) -> P:
    """An independent copy without gradients: frozen (a reference, a target), or to be trained on its own.

    Weights under an adapter never change, so copies share them.
    """
    fixed = {id(p): p for p in policy.parameters() if _fixed(p)}
    other = copy.deepcopy(policy, {**fixed})
    other.zero_grad(set_to_none=True)
    for p in other.parameters():
        if not _fixed(p):
            p.requires_grad_(train)
    return other.train(train)


def _fixed(p: nn.Parameter) -> bool:
    return getattr(p, "under_adapter", False)


def learned_state(model: nn.Module) -> dict[str, Tensor]:
    """What training can change, by name: all weights (tied ones once), or the adapter alone."""
    return {name: p for name, p in model.named_parameters() if not _fixed(p)}


def load_learned(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Put back what `learned_state` gave."""
    mine = learned_state(model)
    if mine.keys() != state.keys():
        odd = sorted(mine.keys() ^ state.keys())
        raise ValueError(
            f"the saved weights are of another model ({len(odd)} names differ, the first is {odd[0]!r}), so they "
            "cannot be put back. Load the model that they were saved from, with the same model.lora."
        )
    with torch.no_grad():
        for name, p in mine.items():
            p.copy_(state[name])
