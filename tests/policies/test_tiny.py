"""The tiny transformer: packing, causality, the incremental path, initialisation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gruppo.policies import Incremental, Policy, TinyConfig, TinyTransformer, clone, packed

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=9)


def draws(lengths, vocab=23, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, n) for n in lengths]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=LENGTHS)
def test_packed_is_one_sequence_at_a_time(make, kv_heads, lengths):
    policy, sequences = make(kv_heads=kv_heads), draws(lengths)
    together, layers = policy(packed(sequences), collect=(1,))
    alone = [policy(packed([s]), collect=(1,)) for s in sequences]
    torch.testing.assert_close(together, torch.cat([h for h, _ in alone]), rtol=0, atol=1e-12)
    torch.testing.assert_close(layers[1], torch.cat([c[1] for _, c in alone]), rtol=0, atol=1e-12)


def gradients(policy, loss):
    policy.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters()])


def test_packed_gradient_is_the_sum_over_sequences(make):
    policy, sequences = make(), draws([1, 30, 2, 3, 17, 30])

    def loss(part):
        inputs = packed(part)
        logits = policy.head(policy(inputs)[0])
        return torch.log_softmax(logits, -1).gather(1, inputs.ids_M[:, None]).sum()

    together = gradients(policy, loss(sequences))
    alone = sum(gradients(policy, loss([s])) for s in sequences)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("lengths", [[6, 6, 6], [5, 30, 2, 9]])
def test_an_output_depends_on_its_own_past_only(make, lengths):
    policy, inputs = make(), packed(draws(lengths))
    seen = []
    policy.model.embed_tokens.register_forward_hook(lambda m, a, y: seen.append(y.requires_grad_()))
    hidden_MD, _ = policy(inputs)
    for i in range(len(inputs.ids_M)):
        grad_M = torch.autograd.grad(hidden_MD[i].sum(), seen[0], retain_graph=True)[0].abs().sum(1)
        past = (inputs.seq_M == inputs.seq_M[i]) & (inputs.pos_M <= inputs.pos_M[i])
        assert (grad_M[past] > 0).all()
        assert (grad_M[~past] == 0).all()


def test_a_changed_token_changes_nothing_before_it_nor_elsewhere(make):
    policy, inputs = make(), packed(draws([5, 30, 2, 9]))
    before = policy(inputs)[0]
    ids = inputs.ids_M.clone()
    ids[12] = (ids[12] + 1) % 23
    changed = (policy(replace(inputs, ids_M=ids))[0] - before).abs().amax(1) > 0
    assert changed.tolist() == [12 <= m < 35 for m in range(len(ids))]


def test_only_distances_between_positions_matter(make):
    policy, inputs = make(), packed(draws([20]))
    before = policy(inputs)[0]
    moved = policy(replace(inputs, pos_M=inputs.pos_M + 30))[0]
    apart = policy(replace(inputs, pos_M=inputs.pos_M * 3))[0]
    torch.testing.assert_close(moved, before, rtol=0, atol=1e-5)  # the tables of cos and sin are float32
    assert (apart - before).abs().max() > 1e-2


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_prefill_and_decode_are_the_packed_forward(make, kv_heads):
    policy, sequences = make(kv_heads=kv_heads), draws([12, 20, 15])
    start = [3, 1, 9]
    expected = [policy(packed([s]))[0] for s in sequences]
    with torch.inference_mode():
        hidden_MD, kv_M = policy.prefill(packed([s[:n] for s, n in zip(sequences, start, strict=True)]))
        assert kv_M.shape == (2, 2, 13, kv_heads * 8)
        cache = policy.cache(rows=3, span=4)
        length = torch.tensor(start)
        cache.put(0, kv_M, torch.cumsum(length, 0) - length, length, max(start))
        for i in range(6):
            pos = length + i
            ids = torch.tensor([s[p] for s, p in zip(sequences, pos.tolist(), strict=True)])
            step = policy.decode(ids, pos, cache)
            for row, full in enumerate(expected):
                torch.testing.assert_close(step[row], full[pos[row]], rtol=0, atol=1e-12)
    torch.testing.assert_close(hidden_MD[:3], expected[0][:3], rtol=0, atol=1e-12)


def test_collected_layers(make):
    policy, inputs = make(), packed(draws([4, 9]))
    hidden_MD, layers = policy(inputs, collect=(0, 2))
    assert list(layers) == [0, 2]
    assert torch.equal(layers[0], policy.model.embed_tokens(inputs.ids_M))
    assert torch.equal(policy.model.norm(layers[2]), hidden_MD)
    with pytest.raises(ValueError, match="layer 3 does not exist"):
        policy(inputs, collect=(3,))


def test_no_rows(make):
    assert make()(packed([]))[0].shape == (0, 32)


@pytest.mark.parametrize(
    ("dtype", "logits"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2],
)
def test_logits_are_at_least_float32(make, dtype, logits):
    assert make(dtype).head(torch.zeros(3, 32, dtype=dtype)).dtype == logits


def test_trees_and_long_sequences_are_refused(make):
    policy, inputs = make(), packed(draws([4, 9]))
    parent = inputs.parent_M.clone()
    parent[6] = 2
    with pytest.raises(ValueError, match="parent_M"):
        policy(replace(inputs, parent_M=parent))
    with pytest.raises(ValueError, match="the policy's context is 64"):
        policy(packed(draws([65])))


def test_weights_are_a_function_of_the_seed_and_leave_the_global_generator_alone():
    state = torch.get_rng_state()
    a, b, c = TinyTransformer(seed=1), TinyTransformer(seed=1), TinyTransformer(seed=2)
    assert torch.equal(state, torch.get_rng_state())
    for (name, x), y, z in zip(a.named_parameters(), b.parameters(), c.parameters(), strict=True):
        assert torch.equal(x, y)
        assert torch.equal(x, z) == name.endswith("norm.weight")
    w = a.model.layers[0].mlp.up_proj.weight
    assert abs(float(w.detach().std()) - 0.02) < 5e-4
    assert abs(float(w.detach().mean())) < 5e-4


def test_default_size_and_protocols():
    policy = TinyTransformer()
    assert sum(p.numel() for p in policy.parameters()) == 865_792
    assert (policy.dim, policy.vocab, policy.layers, policy.context) == (128, 99, 4, 256)
    assert isinstance(policy, Policy)
    assert isinstance(policy, Incremental)
    assert policy.device == torch.device("cpu")


def test_shapes_that_cannot_be():
    with pytest.raises(ValueError, match="multiple of 2·heads"):
        TinyConfig(dim=36, heads=8)
    with pytest.raises(ValueError, match="kv_heads=3 does not divide heads=4"):
        TinyConfig(kv_heads=3)


def test_a_clone_is_independent_and_frozen(make):
    policy, inputs = make(), packed(draws([8]))
    policy.head(policy(inputs)[0]).sum().backward()
    ref = clone(policy)
    before = ref(inputs)[0]
    assert all(not p.requires_grad and p.grad is None for p in ref.parameters())
    assert not ref.training
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.1)
    assert torch.equal(ref(inputs)[0], before)
    assert not torch.equal(policy(inputs)[0], before)
    assert all(p.requires_grad for p in clone(policy, train=True).parameters())
