"""The memory of one GPU that engine and learner share, planned before the first step and said in one line."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gruppo.engines.paged import ROWS, can_page, page_bytes, pool_pages
from gruppo.engines.pages import pages_for
from gruppo.policies.shape import TinyConfig
from gruppo.train.ranks import local

GIB = 1 << 30


@dataclass(frozen=True)
class Plan:
    """Bytes. None: not known beforehand; it grows as needed."""

    weights: int  # of all models; they are there already
    optimiser: int  # two moments of every trained weight and, below float32, a float32 copy of it
    gradients: int
    kv: int | None  # at most: the pool of the engine's policy
    activations: int | None  # about: what a micro-batch keeps for its backward pass
    scratch: int  # the gradients in float32 at a step of the optimiser, when there are no activations
    free: int  # before any of this but the weights
    total: int  # of the GPU

    @property
    def left(self) -> int:
        """What stays free at the fullest moment; negative: so much is missing."""
        return self.free - self.optimiser - self.gradients - (self.kv or 0) - max(self.activations or 0, self.scratch)

    def line(self) -> str:
        kv = "as needed" if self.kv is None else f"at most {_gib(self.kv)}"
        kept = "as needed" if self.activations is None else f"about {_gib(self.activations)}"
        if self.left >= 0:
            end = f"{_gib(self.left)} of {_gib(self.total)} stay free"
        else:
            end = (
                f"that is {_gib(-self.left)} more than the {_gib(self.total)} have room for, so rows and micro-batches "
                "are halved when it runs out. Lower optim.micro_tokens or engine.rows, or use model.checkpointing=true "
                "or model.lora.rank=16"
            )
        return (
            f"memory of the GPU in GiB: weights {_gib(self.weights)}, optimiser {_gib(self.optimiser)}, gradients "
            f"{_gib(self.gradients)}, keys and values {kv}, activations {kept}; {end}"
        )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


def kept_bytes(shape: TinyConfig, tokens: int, size: int, checkpointing: bool) -> int:
    """About what a forward of our transformer keeps for the backward pass, with numbers of `size` bytes.

    Of each block: the inputs of both norms and what comes out of them; q, k, v, and what attention gives; gate, up and
    their product; with norms of q and k, what goes into those. Logits are never kept.
    """
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    block = 4 * shape.dim + 2 * wide + 2 * narrow + 3 * shape.ffn + (wide + narrow if shape.qk_norm else 0)
    blocks = shape.layers * shape.dim + block if checkpointing else shape.layers * block
    return tokens * size * (blocks + 2 * shape.dim)


def optimiser_bytes(numbers: int, size: int) -> int:
    """Of AdamW for so many trained numbers of `size` bytes."""
    return numbers * (12 if size < 4 else 2 * size)


def plan(
    weights: int,
    trained: Iterable[tuple[int, int]],
    kv: tuple[int, int] | None,
    activations: int | None,
    free: int,
    total: int,
) -> Plan:
    """The plan for given sizes.

    trained  (numbers, bytes of each) of the trained weights
    kv       pages that the engine would like, and the bytes of one
    """
    trained = list(trained)
    return Plan(
        weights=weights,
        optimiser=sum(optimiser_bytes(n, size) for n, size in trained),
        gradients=sum(n * size for n, size in trained),
        kv=None if kv is None else pool_pages(kv[0], kv[1], free) * kv[1],
        activations=activations,
        scratch=sum(4 * n for n, size in trained if size < 4),
        free=free,
        total=total,
    )


def stored(tensors: Iterable[Tensor]) -> int:
    """The bytes of all tensors; what several share counts once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def plan_of(run: Any) -> Plan:
    """The plan of a run whose models are on a GPU."""
    config, policy = run.config, run.models["policy"]
    known = can_page(policy)
    trained = [p for o in run.learner.optimisers.values() for group in o.param_groups for p in group["params"]]
    kv = activations = None
    if known:
        longest, rows = pages_for(policy.context), min(config.engine.rows, ROWS)
        if config.engine.name == "native":  # another one has a plan of its own
            kv = rows * longest * len(run.learner.writers), page_bytes(policy)  # a pool for each role that writes
        tokens = min(config.optim.micro_tokens, config.prompts * config.samples * policy.context)
        size = policy.output.weight.element_size()
        activations = kept_bytes(policy.config, tokens, size, policy.checkpointing)
    free, total = torch.cuda.mem_get_info(run.device)
    free += torch.cuda.memory_reserved(run.device) - torch.cuda.memory_allocated(run.device)
    all_models = (*run.models.values(), *getattr(run.learner, "held", ()))
    models = [m for m in all_models if isinstance(m, nn.Module)]  # the others are views
    weights = stored(local(t) for m in models for t in (*m.parameters(), *m.buffers()) if t.is_cuda)
    return plan(weights, [(local(p).numel(), p.element_size()) for p in trained], kv, activations, free, total)


def planned(run: Any) -> str:
    """The line for a run; empty without a GPU."""
    return plan_of(run).line() if run.device.type == "cuda" else ""
