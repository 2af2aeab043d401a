"""Models whose weights are spread over the ranks (FSDP2): every decoder layer by itself, then the rest.

A layer is gathered when it computes, forward and backward; the rest (embedding, last norm, head) from the forward pass
to the end of the backward pass, because the head is called after it. Of a small model everything stays gathered until
all micro-batches of a step are computed. Gradients are summed, not averaged: the learner counts denominators over the
whole step on every rank.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from gruppo.policies import Unadapted, clone

# Bytes of weights that a rank keeps gathered for a step. At 0.5 B on an H200, five micro-batches and a busy host, a
# gradient took 0.77 s instead of 0.85 s. The same number on all ranks: they gather together.
SMALL = 4 << 30


def mesh_of(device: torch.device, size: int) -> DeviceMesh:
    """All ranks, in one line."""
    return init_device_mesh(device.type, (size,))


def shard_cast(models: Mapping[str, Any], mesh: DeviceMesh, keep: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The models of a cast, sharded: in place or, of the roles in `keep`, which stay whole, a copy."""
    out: dict[str, Any] = {}
    done: dict[int, Any] = {}  # the sharded one of each model
    for role, model in models.items():
        if isinstance(model, Unadapted):
            continue
        mine = clone(model, train=model.training) if role in keep else model
        out[role] = done[id(model)] = shard(mine, mesh)
    for role, model in models.items():
        if isinstance(model, Unadapted):  # a view of a policy
            out[role] = Unadapted(done[id(model.policy)])
    return {role: out[role] for role in models}


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard a policy or a critic in place."""
    fixed = {name for name, p in model.named_parameters() if getattr(p, "under_adapter", False)}
    small = sum(p.numel() * p.element_size() for p in model.parameters()) <= SMALL
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, reshard_after_forward=not small)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    for unit in units_of(model):
        # FSDP divides by the number of ranks; and in float32 it would scale while it adds, which gloo cannot.
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
        unit.set_reshard_after_backward(not small)
    for name, p in model.named_parameters():  # they are other objects now
        if name in fixed:
            cast(Any, p).under_adapter = True
    return model


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """The decoder layers: the first list of modules that is as long as the model is deep."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == cast(Any, model).layers]
    if not lists:
        raise ValueError(
            f"{type(model).__name__} has no list of {cast(Any, model).layers} decoder layers, so its weights cannot be "
            "spread over several ranks layer by layer. Use scale.ranks=1, or a causal language model of transformers."
        )
    return lists[0]


def units_of(model: nn.Module) -> list[FSDPModule]:
    """The modules that are gathered at a time."""
    return [m for m in model.modules() if isinstance(m, FSDPModule)]


def at_rest(models: Mapping[str, Any]) -> None:
    """Every rank holds its own part alone.

    After a forward pass without a backward pass the rest of a model is still gathered, and all of a small one after any
    pass: a change of the weights would not be seen by the next one.
    """
    for model in models.values():
        if isinstance(model, nn.Module):
            for unit in units_of(model):
                unit.reshard()
