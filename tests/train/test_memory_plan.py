"""The plan of the memory of a GPU: its arithmetic, on the CPU."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gruppo.engines.paged import SHARE, decoder_of, page_bytes, pool_pages
from gruppo.policies import TinyConfig, TinyTransformer, clone, packed
from gruppo.train import memory_plan
from gruppo.train.memory_plan import GIB, Plan, kept_bytes, optimiser_bytes, plan, plan_of, planned, stored
from gruppo.train.optim import AdamW

SHAPE = TinyConfig(vocab=50, dim=64, layers=3, heads=4, kv_heads=2, ffn=160, context=256)


def test_a_plan_by_hand() -> None:
    """0.5 G numbers in bfloat16: 1 byte pair each, 12 bytes of the optimiser, 2 of the gradient."""
    n = GIB // 2
    found = plan(GIB, [(n, 2)], (10**9, 1 << 20), 20 * GIB, 100 * GIB, 140 * GIB)
    assert (found.weights, found.optimiser, found.gradients, found.scratch) == (GIB, 6 * GIB, GIB, 2 * GIB)
    assert found.kv == 30 * GIB and found.left == (100 - 6 - 1 - 30 - 20) * GIB
    assert found.line() == (
        "memory of the GPU in GiB: weights 1.0, optimiser 6.0, gradients 1.0, keys and values at most 30.0, "
        "activations about 20.0; 43.0 of 140.0 stay free"
    )


def test_what_is_short_is_said_with_a_remedy() -> None:
    found = plan(10 * GIB, [(5 * GIB, 4)], (1, GIB), 9 * GIB, 60 * GIB, 80 * GIB)
    assert (found.kv, found.left) == (GIB, (60 - 40 - 20 - 1 - 9) * GIB)
    assert "that is 10.0 more than the 80.0 have room for" in found.line() and "optim.micro_tokens" in found.line()


def test_what_is_not_known_is_not_counted() -> None:
    found = plan(GIB, [], None, None, GIB, 2 * GIB)
    assert found.left == GIB
    assert "keys and values as needed, activations as needed; 1.0 of 2.0 stay free" in found.line()


def test_the_gradients_in_float32_take_the_place_of_activations() -> None:
    base = Plan(0, 0, 0, 0, 5, 7, 100, 100)
    assert base.left == 93 and replace(base, activations=9).left == 91


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_optimiser_keeps_what_is_planned(dtype: torch.dtype) -> None:
    p = torch.nn.Parameter(torch.zeros(64, 32, dtype=dtype))
    p.grad = torch.ones_like(p)
    optimiser = AdamW([p], lr=1.0, betas=(0.9, 0.99), weight_decay=0.0, fused=False)
    optimiser.step()
    kept = sum(x.nbytes for x in optimiser.state[p].values() if x.numel() > 1)
    assert kept == optimiser_bytes(p.numel(), p.element_size())


@pytest.mark.parametrize("fields", [{}, {"qk_norm": True, "model_type": "qwen3"}, {"heads": 8, "ffn": 512}])
def test_activations_are_about_what_a_forward_keeps(fields: dict[str, Any]) -> None:
    """The plain twins of a CPU keep more than the kernels: silu of the gates, and parts of what positions turn."""
    policy, kept = TinyTransformer(replace(SHAPE, head_dim=0, **fields)), dict[int, int]()
    mine = {p.untyped_storage().data_ptr() for p in policy.parameters()}

    def pack(x: torch.Tensor) -> torch.Tensor:
        if (at := x.untyped_storage().data_ptr()) not in mine:
            kept[at] = x.untyped_storage().nbytes()
        return x

    inputs = packed([np.arange(200) % 50, np.arange(200) % 40])
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        hidden, _ = policy(inputs)
    told = kept_bytes(policy.config, 400, 4, checkpointing=False)
    assert 0.65 < told / sum(kept.values()) < 0.85 and hidden.requires_grad


def test_checkpointing_keeps_one_block_and_the_borders() -> None:
    whole, less = (kept_bytes(replace(SHAPE, layers=48), 10, 2, c) for c in (False, True))
    assert less < whole / 8
    assert kept_bytes(SHAPE, 20, 2, True) == 2 * kept_bytes(SHAPE, 10, 2, True) == kept_bytes(SHAPE, 10, 4, True)


def test_the_pool_is_as_large_as_planned() -> None:
    """`decoder_of` takes a CPU for a device with 1 GiB that is free."""
    policy = TinyTransformer(SHAPE)
    page = page_bytes(policy)
    for rows, longest in ((2, 3), (4, 10**6)):
        pool = decoder_of(policy, longest, rows, [None]).pool
        found = plan(0, [], (max(rows * longest, 4), page), 0, GIB, GIB)
        assert found.kv == (len(pool.users) - 1) * page == pool.kv[:, :, 1:].nbytes
    assert pool_pages(10**9, page, GIB) == int(SHARE * GIB) // page


def test_what_is_shared_counts_once() -> None:
    policy = TinyTransformer(SHAPE)
    size = sum(p.nbytes for p in policy.parameters())
    assert stored([*policy.parameters(), *policy.parameters()]) == size
    assert stored([*policy.parameters(), *clone(policy).parameters()]) == 2 * size


def test_the_plan_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU that is said to be there: 8 GiB free, of which PyTorch holds 1 unused."""
    policy = TinyTransformer(SHAPE)
    trained = [p for p in policy.parameters() if p.requires_grad]
    for name, value in (("mem_get_info", (7 * GIB, 9 * GIB)), ("memory_reserved", 2 * GIB), ("memory_allocated", GIB)):
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    monkeypatch.setattr(memory_plan, "can_page", lambda _: True)
    config = SimpleNamespace(
        engine=SimpleNamespace(name="native", rows=16), optim=SimpleNamespace(micro_tokens=2048), prompts=2, samples=4
    )
    learner = SimpleNamespace(optimisers={"policy": torch.optim.AdamW(trained)}, writers=("policy",))
    run = SimpleNamespace(config=config, models={"policy": policy}, learner=learner, device=torch.device("cuda"))
    found, numbers = plan_of(run), sum(p.numel() for p in trained)
    assert (found.optimiser, found.gradients, found.free) == (8 * numbers, 4 * numbers, 8 * GIB)
    assert found.kv == 16 * 4 * page_bytes(policy) and found.activations == kept_bytes(SHAPE, 2048, 4, False)
    assert planned(run).startswith("memory of the GPU in GiB: ")
    learner.writers = ("policy", "verifier")  # each has a pool of its own
    assert plan_of(run).kv == 2 * 16 * 4 * page_bytes(policy)
    run.device = torch.device("cpu")
    assert planned(run) == ""
