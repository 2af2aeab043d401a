"""LoRA by peft: starts as the model itself, trains only itself, is merged when saved, and can be left out."""

import asyncio

import pytest
import torch

pytest.importorskip("peft")

from test_hf import draws, own_logits

from gruppo.engines import NativeEngine, Request, complete
from gruppo.policies import (
    Critic,
    Incremental,
    Lora,
    Unadapted,
    clone,
    has_adapter,
    learned_state,
    load_learned,
    load_policy,
    packed,
)

# Our own transformer, also with biases and a head of its own; that of transformers, and transposed weights.
FAMILY = pytest.mark.parametrize("family", ["llama", "qwen2", "granite", "gpt2"])
SEQUENCES = draws([9, 3, 14])


def logits(policy):
    return policy.head(policy(packed(SEQUENCES))[0])


def adapted(folder, **fields):
    return load_policy(folder, lora=Lora(rank=4, **fields), seed=3)


def trained(policy):
    """As if some steps had been taken."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in learned_state(policy).values():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return policy


@FAMILY
def test_it_starts_as_the_model_itself_and_only_it_is_trained(hf_folder, family):
    folder = hf_folder(family)
    plain, policy = load_policy(folder), adapted(folder)
    assert isinstance(policy, Incremental) and has_adapter(policy) and not has_adapter(plain)
    assert torch.equal(logits(plain), logits(policy))
    assert all("lora_" in name for name in learned_state(policy))
    logits(policy).square().sum().backward()
    assert {n for n, p in policy.named_parameters() if p.grad is not None} == set(learned_state(policy))
    assert len(learned_state(policy)) == 2 * 3 * (4 if family == "gpt2" else 7)  # A and B of every layer but the head
    other = adapted(folder)
    assert all(torch.equal(x, learned_state(other)[n]) for n, x in learned_state(policy).items())  # from the seed
    trained(policy)
    assert not torch.allclose(logits(plain), logits(policy))


@FAMILY
def test_without_the_adapter_it_is_the_model_again(hf_folder, family):
    folder = hf_folder(family)
    plain, policy = load_policy(folder), trained(adapted(folder))
    base = Unadapted(policy)
    assert isinstance(base, Incremental)
    before = logits(policy)
    assert torch.equal(logits(base), logits(plain))
    assert torch.equal(base.prefill(packed(SEQUENCES))[1], plain.prefill(packed(SEQUENCES))[1])
    assert torch.equal(logits(policy), before)  # and it is put back
    assert {n for n, p in policy.named_parameters() if p.requires_grad} == set(learned_state(policy))


@FAMILY
def test_the_model_under_an_adapter_can_be_sampled_while_it_is_trained(hf_folder, family):
    """With checkpointing transformers keeps no keys and values in training mode."""
    policy = trained(load_policy(hf_folder(family), lora=Lora(rank=4), seed=3, checkpointing=True)).train()
    engine = NativeEngine({"policy": policy, "ref": Unadapted(policy)}, eos=None)
    alone = NativeEngine({"policy": load_policy(hf_folder(family)).eval()}, eos=None)
    first, short = SEQUENCES[0], SEQUENCES[1]
    wanted = asyncio.run(complete(alone, [Request(first, 6, key=1)]))[0].ids.tolist()

    async def at_once():
        ref, mine = Request(first, 6, key=1, role="ref"), Request(short, 2, key=2)
        return await asyncio.gather(complete(engine, [mine]), complete(engine, [ref]))

    assert asyncio.run(at_once())[1][0].ids.tolist() == wanted
    assert policy.training


@FAMILY
def test_it_is_merged_when_saved(hf_folder, family, tmp_path):
    from transformers import AutoModelForCausalLM

    policy = trained(adapted(hf_folder(family)))
    policy.save(tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(own_logits(theirs, SEQUENCES), logits(policy), rtol=1e-4, atol=1e-4)
    assert not any("lora" in n for n, _ in theirs.named_parameters())


@FAMILY
def test_copies_share_what_never_changes(hf_folder, family):
    policy = trained(adapted(hf_folder(family)))
    frozen, twin, critic = clone(policy), clone(policy, train=True), clone(Critic(policy), train=True)
    for copy, module in ((frozen, frozen), (twin, twin), (critic, critic.trunk)):
        mine, theirs = dict(policy.named_parameters()), dict(module.named_parameters())
        assert all((mine[n] is theirs[n]) == ("lora_" not in n) for n in mine)
        wanted = set() if copy is frozen else set(learned_state(copy))
        assert {n for n, p in copy.named_parameters() if p.requires_grad} == wanted
    assert {"value.weight", "value.bias"} < set(learned_state(critic))
    before = logits(frozen)
    trained(policy)
    assert torch.equal(logits(frozen), before)


@FAMILY
def test_the_state_is_the_adapter_alone_and_comes_back(hf_folder, family):
    folder = hf_folder(family)
    policy = trained(adapted(folder))
    state = {n: p.detach().clone() for n, p in learned_state(policy).items()}
    fresh = adapted(folder)
    load_learned(fresh, state)
    assert torch.equal(logits(fresh), logits(policy))
    with pytest.raises(ValueError, match="another model"):
        load_learned(load_policy(folder), state)


def test_targets(hf_folder):
    folder = hf_folder("qwen2")
    some = adapted(folder, targets=("q_proj", "mlp.up_proj"))
    assert {n.split(".")[-4] for n in learned_state(some)} == {"q_proj", "up_proj"}
    for wrong, near in (("q_prj", "q_proj"), ("lm_head", "The head cannot have an adapter")):
        with pytest.raises(ValueError, match=f"model.lora.targets={wrong}: the model has no such linear layer.*{near}"):
            adapted(folder, targets=(wrong,))


def test_a_rank_beyond_the_full_one_is_refused_before_memory_is(hf_folder):
    folder = hf_folder("qwen2")
    full = max(min(m.weight.shape) for m in load_policy(folder).trunk.modules() if isinstance(m, torch.nn.Linear))
    load_policy(folder, lora=Lora(rank=full))
    for rank in (full + 1, 10**9):
        with pytest.raises(ValueError, match=f"model.lora.rank={rank}: no layer .* above {full}.*Use a smaller one"):
            load_policy(folder, lora=Lora(rank=rank))


def test_alpha_scales(hf_folder):
    folder = hf_folder("qwen2")
    one, two = (trained(adapted(folder, alpha=a)) for a in (8.0, 16.0))
    assert not torch.allclose(logits(one), logits(two))


def test_without_peft(hf_folder, monkeypatch):
    from gruppo.policies import load

    folder = hf_folder()
    monkeypatch.setattr(load, "find_spec", lambda name: None if name == "peft" else True)
    with pytest.raises(ValueError, match=r"rank=4 needs peft, which is not installed. pip install 'gruppo\[hf\]'"):
        adapted(folder)
