"""The protocol of a policy, and what the package's transformers have in common."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from gruppo.data import Inputs
from gruppo.policies.cache import Cache, Kept, Step
from gruppo.policies.layout import Past
from gruppo.policies.scores import Head


@runtime_checkable
class Policy(Protocol):
    """A model over packed sequences: M positions of many sequences, without padding.

    `policy(inputs)` and `policy.head(hidden)` are calls of modules, so the hooks of a wrapper such as FSDP fire.
    """

    dim: int
    vocab: int
    layers: int
    context: int  # the longest sequence

    @property
    def device(self) -> torch.device: ...

    @property
    def head(self) -> Callable[[Tensor], Tensor]:
        """Hidden states (X, dim) to logits (X, vocab), in float32 or float64, so that log-softmax is safe."""
        ...

    def __call__(self, inputs: Inputs, collect: tuple[int, ...] = ()) -> tuple[Tensor, dict[int, Tensor]]:
        """Final normalised hidden states (M, dim), and those of the layers in `collect`.

        Layer 0 is the embedding, layer l the residual stream after block l, before the final norm.
        """
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


@runtime_checkable
class Incremental(Policy, Protocol):
    """A policy that the native engine can sample from: prefixes in one pass, then one token per row."""

    def cache(self, rows: int, span: int) -> Cache: ...

    def prefill(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Hidden states (M, dim), and the keys and values (layers, 2, M, width) for a cache."""
        ...

    def extend(self, inputs: Inputs, past: Past) -> tuple[Tensor, Tensor]:
        """Like `prefill`, for sequences after cached prefixes: hidden states, keys and values of the new tokens."""
        ...

    def decode(self, ids_B: Tensor, pos_B: Tensor, cache: Cache, span: int | None = None) -> Tensor:
        """Hidden states (B, dim) of one new token for each of the first B rows of the cache, which grows by it.

        `span` is the largest position + 1; a caller that knows it on the host saves a synchronisation.
        """
        ...


class Transformer(nn.Module):
    """A transformer whose `forward` serves training, prefill and decoding alike."""

    dim: int
    vocab: int
    layers: int
    context: int
    lm_head: Head
    origin: str = ""  # what it was loaded from: a folder, or a name of the hub
    fallback: str = ""  # a sentence if it runs on the modules of transformers: why

    @property
    def root(self) -> nn.Module:
        """The module whose parameters have the names of the saved file."""
        return self

    @property
    def output(self) -> Any:
        """The module with the weights of the head."""
        raise NotImplementedError

    @property
    def described(self) -> dict[str, Any]:
        """The config.json of its Hugging Face folder."""
        raise NotImplementedError

    @property
    def head(self) -> Head:
        self.lm_head.owner = (self.output,)  # at every call: a copy of the model may have copied either
        return self.lm_head

    def prefill(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        kept = Kept()
        hidden_MD, _ = self(inputs, keep=kept)
        return hidden_MD, torch.stack(kept.kv).unflatten(0, (-1, 2))

    def extend(self, inputs: Inputs, past: Past) -> tuple[Tensor, Tensor]:
        kept = Kept()
        hidden_MD, _ = self(inputs, keep=kept, past=past)
        return hidden_MD, torch.stack(kept.kv).unflatten(0, (-1, 2))

    def decode(self, ids_B: Tensor, pos_B: Tensor, cache: Cache, span: int | None = None) -> Tensor:
        return self(Step.of(ids_B, pos_B, cache, span))[0]

    def _check_layers(self, collect: tuple[int, ...]) -> None:
        for layer in collect:
            if not 0 <= layer <= self.layers:
                raise ValueError(
                    f"collect={collect}: layer {layer} does not exist. Use 0 (the embedding) to {self.layers}."
                )


P = TypeVar("P", bound=nn.Module)


def clone(policy: P, train: bool = False) -> P:
    """An independent copy without gradients, frozen or trainable. Copies share the frozen weights under an adapter."""
    fixed = {id(p): p for p in policy.parameters() if _fixed(p)}
    other = copy.deepcopy(policy, {**fixed})
    other.zero_grad(set_to_none=True)
    for p in other.parameters():
        if not _fixed(p):
            p.requires_grad_(train)
    return other.train(train)


def _fixed(p: nn.Parameter) -> bool:
    return getattr(p, "under_adapter", False)


def weights_of(model: Any) -> list[nn.Parameter]:
    """`parameters()` in a tenth of its time, which goes into names; in no order, shared ones more than once."""
    if type(model).parameters is not nn.Module.parameters:
        return list(model.parameters())
    found, left = list[nn.Parameter](), [model]
    while left:
        module = left.pop()
        found += [p for p in module._parameters.values() if p is not None]
        left += [m for m in module._modules.values() if m is not None]
    return found


def learned_state(model: nn.Module) -> dict[str, Tensor]:
    """The trainable weights by name: all of them (tied ones once), or the adapter alone."""
    return {name: p for name, p in model.named_parameters() if not _fixed(p)}


def load_learned(
    model: nn.Module, state: Mapping[str, Tensor], put: Callable[[Tensor, Tensor], Any] = Tensor.copy_
) -> None:
    """Restore what `learned_state` returned; `put` writes a value into a weight."""
    mine = learned_state(model)
    if mine.keys() != state.keys():
        odd = sorted(mine.keys() ^ state.keys())
        raise ValueError(
            f"the saved weights belong to another model ({len(odd)} names differ, the first is {odd[0]!r}) and cannot "
            "be restored. Load the model that they were saved from, with the same model.lora."
        )
    with torch.no_grad():
        for name, p in mine.items():
            put(p, state[name])
