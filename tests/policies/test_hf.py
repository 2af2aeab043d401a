"""Hugging Face architectures behind the packed protocol: equal to the model's own forward, gradients included."""

import asyncio
import json

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from hf_models import FAMILIES

from gruppo.data import Inputs
from gruppo.data.prefix import prefix_nodes
from gruppo.engines import NativeEngine, Request, complete, stream
from gruppo.policies import Critic, Incremental, TinyTransformer, clone, load_policy, packed
from gruppo.policies.hf import HFPolicy, load_hf

CLOSE = {"rtol": 0, "atol": 1e-5}  # norms and angles are float32 inside transformers, whatever the weights
LENGTHS = [9, 1, 30, 2, 9, 17]


def draws(lengths, vocab=40, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, n) for n in lengths]


def own_logits(model, sequences):
    return torch.cat([model(torch.from_numpy(s)[None]).logits[0] for s in sequences])


def alike(a, b):
    """Two gradients, in the norm."""
    return float((a - b).norm() / a.norm()) < 1e-5


def gradients(module, loss):
    module.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def forest():
    """Three prompts with several continuations each, some alike for a while: (sequences, inputs with nodes)."""
    rng, sequences = np.random.default_rng(3), []
    for prompt in draws([11, 9, 14], seed=5):
        stem = np.concatenate([prompt, rng.integers(0, 40, 9)])
        tails = [rng.integers(0, 40, n) for n in (4, 1, 7)]
        sequences += [*(np.concatenate([prompt, t]) for t in tails), *(np.concatenate([stem, t]) for t in tails[:2])]
    sequences += draws([5, 20], seed=9)
    inputs = packed(sequences)
    nodes = prefix_nodes(inputs.ids_M.numpy(), np.array([len(s) for s in sequences]))
    return sequences, Inputs(**{**vars(inputs), "node_M": torch.from_numpy(nodes)})


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_and_head_are_the_models_own(hf_model, family):
    model, sequences = hf_model(family), draws(LENGTHS)
    own = own_logits(model, sequences)
    loss = gradients(model, torch.log_softmax(own, -1).square().sum())
    policy = HFPolicy(model, family)
    assert isinstance(policy, Incremental)
    logits = policy.head(policy(packed(sequences))[0])
    torch.testing.assert_close(logits, own, **CLOSE)
    here = gradients(policy, torch.log_softmax(logits, -1).square().sum())
    assert alike(here, loss)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shared_prefix_is_the_copied_one(hf_model, family):
    policy = HFPolicy(hf_model(family), family)
    _, inputs = forest()
    tree, row_M = inputs.tree()
    assert len(tree.ids_M) < 0.8 * len(inputs.ids_M)
    copied, shared = policy(packed(forest()[0]))[0], policy(tree)[0][row_M]
    torch.testing.assert_close(shared, copied, **CLOSE)
    one, other = (gradients(policy, policy.head(h).square().sum()) for h in (copied, shared))
    assert alike(one, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_token_by_token_is_the_whole(hf_model, family):
    policy, sequences = HFPolicy(hf_model(family), family), draws([20, 8, 13, 31])
    whole = [policy(packed([s]))[0] for s in sequences]
    start = [5, 1, 12, 20]
    with torch.no_grad():
        cache = policy.cache_of(packed(sequences), start)
        for t in range(7):
            pos = torch.tensor(start) + t
            ids = torch.tensor([s[p] for s, p in zip(sequences, pos, strict=True) if p < len(s)])
            rows = len(ids)
            if rows < 4:
                break
            hidden = policy.decode(ids, pos[:rows], cache)
            for b in range(rows):
                torch.testing.assert_close(hidden[b], whole[b][pos[b]], **CLOSE)
        assert t == 1  # the third sequence has one token to go


def test_prefill_gives_the_hidden_states_too(hf_model):
    policy = HFPolicy(hf_model("qwen3"))
    inputs = packed(draws(LENGTHS))
    hidden, kv = policy.prefill(inputs)
    torch.testing.assert_close(hidden, policy(inputs)[0], **CLOSE)
    assert kv.shape == (3, 2, len(inputs.ids_M), 16)
    empty, none = policy.prefill(packed([]))
    assert empty.shape == (0, 16) and none.shape == (3, 2, 0, 16)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "gpt_neox"])
def test_layers_are_the_residual_stream(hf_model, family):
    model, sequence = hf_model(family), draws([12])[0]
    theirs = model(torch.from_numpy(sequence)[None], output_hidden_states=True).hidden_states
    policy = HFPolicy(model, family)
    last, layers = policy(packed([sequence]), collect=(0, 1, 2, 3))
    for layer in (0, 1, 2):
        torch.testing.assert_close(layers[layer], theirs[layer][0], **CLOSE)
    assert not torch.allclose(layers[3], last)  # before the final norm
    with pytest.raises(ValueError, match="layer 4 does not exist"):
        policy(packed([sequence]), collect=(4,))


@pytest.mark.parametrize("family", ["llama_untied", "qwen3", "gpt2", "gemma2"])
def test_the_engine_draws_what_generate_draws(hf_model, family):
    model, prompts = hf_model(family), draws([4, 9, 6], seed=2)
    greedy = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None, "pad_token_id": 0}
    theirs = [model.generate(torch.from_numpy(p)[None], **greedy)[0, len(p) :].numpy() for p in prompts]
    engine = NativeEngine({"policy": HFPolicy(model, family)}, eos=None, max_rows=2)
    ours = asyncio.run(complete(engine, [Request(p, 12, key=i, temperature=0.0) for i, p in enumerate(prompts)]))
    for a, b in zip(ours, theirs, strict=True):
        assert np.array_equal(a.ids, b)


@pytest.mark.parametrize("family", ["llama_untied", "qwen3", "gpt2", "gemma2"])
def test_the_engine_computes_what_forks_share_once(hf_model, family, monkeypatch):
    """Prefixes of one answer: the same draws as from copies of it."""
    [path] = draws([24], seed=3)
    prefixes = [path[:9], path[:15], np.append(path[:15], [3, 4]), path]
    requests = [Request(p, 5, key=10 * i + n) for i, p in enumerate(prefixes) for n in range(2)]
    policy = HFPolicy(hf_model(family), family)
    seen = []
    for share in (stream.FORKED, 2.0):
        monkeypatch.setattr(stream, "FORKED", share)
        engine = NativeEngine({"policy": policy}, eos=None)
        seen.append((asyncio.run(complete(engine, requests)), engine.prefilled))
    assert [n for _, n in seen] == [26, 65]
    for a, b in zip(seen[0][0], seen[1][0], strict=True):
        assert np.array_equal(a.ids, b.ids) and np.allclose(a.logp, b.logp, atol=1e-9)


@pytest.mark.parametrize("family", ["llama_untied", "qwen3", "gpt2", "gemma2"])
def test_a_dialogue_goes_on_from_parked_rows(hf_model, family):
    """Tokens after a past, of several lengths in one pass: the same draws as from the whole."""
    policy, starts = HFPolicy(hf_model(family), family), draws([4, 9, 6], seed=2)
    engine, plain = (NativeEngine({"policy": policy}, eos=None) for _ in range(2))

    async def asked(requests):
        return await asyncio.gather(*(engine.ask(r) for r in requests))

    ids = starts
    for turn in range(3):
        requests = [Request(p, 5, key=10 * turn + i) for i, p in enumerate(ids)]
        found = asyncio.run(asked(requests))
        for a, b in zip(found, asyncio.run(complete(plain, requests)), strict=True):
            assert np.array_equal(a.ids, b.ids) and np.allclose(a.logp, b.logp, atol=1e-9)
        ids = [np.concatenate([p, c.ids, [3 + turn, 4]]) for p, c in zip(ids, found, strict=True)]
    assert engine.prefilled + engine.decoded == sum(map(len, ids)) - 3 * 3


def test_dropout_is_off_also_in_training(hf_model):
    policy = HFPolicy(hf_model("gpt2", resid_pdrop=0.5, attn_pdrop=0.5, embd_pdrop=0.5)).train()
    inputs = packed(draws([8]))
    torch.testing.assert_close(policy(inputs)[0], policy(inputs)[0], rtol=0, atol=0)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_checkpointing_changes_no_gradient(hf_model, family):
    _, inputs = forest()
    tree, _ = inputs.tree()
    plain, frugal = HFPolicy(hf_model(family)), HFPolicy(hf_model(family), checkpointing=True)
    saved = []
    for policy in (plain, frugal):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved[-1].append(x.numel()) or x, lambda x: x):
            saved.append([])
            loss = policy.head(policy(tree)[0]).square().sum()
        saved[-1] = sum(saved[-1])
        policy.grads = gradients(policy, loss)
    assert alike(plain.grads, frugal.grads)
    assert saved[1] < 0.5 * saved[0]  # the blocks are computed again instead


def test_a_sliding_window_limits_the_context(hf_model):
    policy = HFPolicy(hf_model("mistral", sliding_window=16))
    assert policy.context == 16
    with pytest.raises(ValueError, match="pos_M reaches 19, the policy's context is 16"):
        policy(packed(draws([20])))
    assert HFPolicy(hf_model("qwen2", sliding_window=16, use_sliding_window=False)).context == 64
    assert HFPolicy(hf_model("gemma3", sliding_window=16)).context == 16


def test_clone_and_critic(hf_model):
    policy = HFPolicy(hf_model("qwen2"))
    ref, critic = clone(policy), Critic(policy)
    inputs = packed(draws(LENGTHS))
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(1.0)
    assert not any(p.requires_grad for p in ref.parameters())
    torch.testing.assert_close(ref(inputs)[0], critic(inputs)[0], **CLOSE)
    assert critic.head(critic(inputs)[0]).shape == (len(inputs.ids_M), 1)


@pytest.mark.parametrize("family", ["llama", "qwen2", "granite", "gpt2"])
def test_what_is_saved_transformers_loads(hf_folder, family, tmp_path):
    from transformers import AutoModelForCausalLM

    policy = load_policy(hf_folder(family))
    assert isinstance(policy, TinyTransformer if family in ("llama", "qwen2") else HFPolicy)
    with torch.no_grad():
        for p in policy.parameters():
            p.mul_(1.1)
    policy.save(tmp_path / "out")
    theirs, sequences = AutoModelForCausalLM.from_pretrained(tmp_path / "out"), draws(LENGTHS)
    logits = policy.head(policy(packed(sequences))[0])
    torch.testing.assert_close(logits, own_logits(theirs, sequences), rtol=1e-5, atol=1e-4)
    again = load_policy(tmp_path / "out")
    torch.testing.assert_close(again.head(again(packed(sequences))[0]), logits, rtol=0, atol=1e-6)


def test_both_ways_agree_on_a_llama(hf_folder):
    folder, sequences = hf_folder("llama", dtype=torch.float64), draws(LENGTHS)
    own = load_policy(folder, torch.float64)
    general = load_hf(folder, "llama", {}, torch.float64, "cpu", checkpointing=False)
    assert isinstance(own, TinyTransformer) and isinstance(general, HFPolicy)
    one, other = (p.head(p(packed(sequences))[0]) for p in (own, general))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)  # transformers keeps the angles in float32


# bad input


@pytest.mark.parametrize("family", ["BloomConfig", "MambaConfig"])
def test_other_kinds_of_memory_are_refused(family):
    import transformers

    config = getattr(transformers, family)(vocab_size=40, hidden_size=16, num_hidden_layers=2, n_head=4)
    with pytest.raises(ValueError, match="cannot be sampled and trained here"):
        HFPolicy(transformers.AutoModelForCausalLM.from_config(config), family)


def test_bad_folders(hf_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = hf_folder("qwen2")
    given = json.loads((folder / "config.json").read_text())
    for change, said in (
        ({"is_encoder_decoder": True, "model_type": "t5"}, "is an encoder-decoder"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised weights"),
        ({"model_type": "nobody_knows"}, "could not be loaded as a causal language model"),
    ):
        (folder / "config.json").write_text(json.dumps(given | change))
        with pytest.raises(ValueError, match=said):
            load_policy(folder)
    (folder / "config.json").write_text(json.dumps(given))
    weights = load_file(folder / "model.safetensors")
    gone = next(k for k in weights if "q_proj.weight" in k)
    save_file({k: v for k, v in weights.items() if k != gone}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="would start at random"):
        load_policy(folder)


def test_a_name_of_the_hub_without_a_network(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"could not be downloaded from the Hugging Face hub .* use a local folder"):
        load_policy("nobody/nothing-of-that-name")


def test_without_transformers(hf_folder, monkeypatch):
    from gruppo.policies import load

    folder = hf_folder("granite")
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    for load_it in (load.load_policy, load.load_tokenizer):
        with pytest.raises(ValueError, match=r"needs transformers, which is not installed. pip install 'gruppo\[hf\]'"):
            load_it(folder)
