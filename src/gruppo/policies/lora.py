"""LoRA (Hu et al. 2021, arXiv:2106.09685) by peft: W x + alpha/rank · B A x, with A and B trained and W frozen.

B starts at 0, so the adapted policy starts as the model itself.
"""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gruppo.data import Inputs
from gruppo.fields import Checked, setting
from gruppo.policies.cache import Cache
from gruppo.policies.layout import Past


@dataclass(frozen=True)
class Lora(Checked):
    """A low-rank adapter on linear layers, without dropout: with it every forward would be another policy."""

    rank: int = setting(0, low=0)  # 0: no adapter, all weights are trained
    alpha: float = setting(32.0, above=0)  # the output of the adapter is multiplied by alpha / rank
    targets: tuple[str, ...] = ()  # names of linear layers, such as q_proj; empty: all but the head


def add_lora(policy: Any, lora: Lora, seed: int = 0) -> None:
    """Add an adapter to the trunk of a policy, in place. The weights under it are frozen and may be shared."""
    import peft
    from transformers.pytorch_utils import Conv1D

    linear = [n for n, m in policy.trunk.named_modules() if isinstance(m, nn.Linear | Conv1D)]
    _refuse_unknown(lora.targets, linear)
    _refuse_needless(lora.rank, [dict(policy.trunk.named_modules())[n].weight for n in linear])
    turned = any(isinstance(m, Conv1D) for m in policy.trunk.modules())  # GPT-2 stores its matrices transposed
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        target_modules=list(lora.targets) or sorted({n.rpartition(".")[2] for n in linear}),
        fan_in_fan_out=turned,
    )
    for p in policy.parameters():
        p.requires_grad_(False)
        p.under_adapter = True
    devices = [policy.device] if policy.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(config, policy.trunk)
    for p in policy.parameters():
        if p.requires_grad:  # the adapter: its steps are too small for bfloat16
            p.data = p.data.to(torch.promote_types(p.dtype, torch.float32))


def _refuse_unknown(targets: tuple[str, ...], linear: list[str]) -> None:
    known = sorted({n.rpartition(".")[2] for n in linear})
    for target in targets:
        if not any(n == target or n.endswith(f".{target}") for n in linear):
            near = difflib.get_close_matches(target, known, 2, cutoff=0.4)
            raise ValueError(
                f"model.lora.targets={target}: the model has no such linear layer"
                + (f" (nearest: {', '.join(near)})" if near else "")
                + f", so nothing would be adapted. It has: {', '.join(known)}. The head cannot have an adapter."
            )


def _refuse_needless(rank: int, weights: Sequence[Tensor]) -> None:
    """An adapter of more than the full rank has more weights than the layer, and no more freedom."""
    full = max((min(w.shape) for w in weights), default=rank)
    if rank > full:
        raise ValueError(
            f"model.lora.rank={rank}: no layer of the model has a rank above {full}, so the adapter would only be "
            "larger than what it adapts. Use a smaller one, or model.lora.rank=0, which trains all weights."
        )


def _adapters(module: nn.Module) -> list[tuple[str, Any]]:
    """(name, layer) of every adapted layer. Without an adapter peft is not imported."""
    if not has_adapter(module):
        return []
    from peft.tuners.lora import LoraLayer

    return [(n, m) for n, m in module.named_modules() if isinstance(m, LoraLayer)]


def has_adapter(module: nn.Module) -> bool:
    return any(getattr(p, "under_adapter", False) for p in module.parameters())


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict with adapters merged: W + alpha/rank · B A under the original names."""
    state = {k: v for k, v in module.state_dict().items() if ".lora_" not in k}
    for name, layer in _adapters(module):
        state[f"{name}.base_layer.weight"] = merged_weight(layer)
    return {k.replace(".base_layer.", "."): v for k, v in state.items()}


def merged_weight(layer: Any) -> Tensor:
    """The weight of a linear layer, with its adapter if it has one."""
    if not hasattr(layer, "base_layer"):
        return layer.weight
    weight, delta = layer.base_layer.weight, layer.get_delta_weight(layer.active_adapters[0])
    return (weight + delta).to(weight.dtype)  # added in the wider dtype


class Unadapted:
    """The model under a policy's adapter: the reference of a LoRA run, at no memory.

    A view, not a module: it shares every module with the policy and calls it with the adapter switched off.
    """

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.dim, self.vocab, self.layers, self.context = policy.dim, policy.vocab, policy.layers, policy.context
        self._layers = [m for _, m in _adapters(policy)]

    @property
    def device(self) -> torch.device:
        return self.policy.device

    @property
    def head(self) -> nn.Module:
        return self.policy.head

    @contextmanager
    def _plain(self) -> Iterator[Any]:
        for m in self._layers:
            m._disable_adapters = True  # peft's enable_adapters() would also set requires_grad
        try:
            yield self.policy
        finally:
            for m in self._layers:
                m._disable_adapters = False

    def __call__(self, inputs: Inputs, collect: tuple[int, ...] = ()) -> tuple[Tensor, dict[int, Tensor]]:
        with self._plain() as policy:
            return policy(inputs, collect)

    def cache(self, rows: int, span: int) -> Cache:
        return self.policy.cache(rows, span)

    def prefill(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        with self._plain() as policy:
            return policy.prefill(inputs)

    def extend(self, inputs: Inputs, past: Past) -> tuple[Tensor, Tensor]:
        with self._plain() as policy:
            return policy.extend(inputs, past)

    def decode(self, ids_B: Tensor, pos_B: Tensor, cache: Cache, span: int | None = None) -> Tensor:
        with self._plain() as policy:
            return policy.decode(ids_B, pos_B, cache, span)

    def parameters(self) -> Iterator[nn.Parameter]:
        return (p for p in self.policy.parameters() if not p.requires_grad)
