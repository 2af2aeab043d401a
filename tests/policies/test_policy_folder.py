"""Folders: ours, and those of transformers where it is installed."""

import json

import numpy as np
import pytest
import torch

from gruppo.policies import CharTokenizer, TinyTransformer, load_policy, load_tokenizer, names, packed


def logits(policy, ids):
    return policy.head(policy(packed(list(ids)))[0]).view(*ids.shape, -1)


def test_save_and_load_are_equal(make, tmp_path):
    policy = make(torch.float32, vocab=99)
    policy.save(tmp_path)
    again = load_policy(tmp_path)
    assert again.config == policy.config
    for (name, x), (other, y) in zip(policy.named_parameters(), again.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(x, y)
    assert load_tokenizer(tmp_path).vocab == 99
    assert {p.name for p in tmp_path.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_half_precision_is_stored_and_cast(make, tmp_path, stored):
    policy = make(torch.float32)
    policy.save(tmp_path, dtype=stored)
    again = TinyTransformer.load(tmp_path, torch.float64)
    for x, y in zip(policy.parameters(), again.parameters(), strict=True):
        assert y.dtype == torch.float64
        assert torch.equal(x.to(stored).double(), y)
    assert not (tmp_path / "tokenizer.json").exists()  # 23 ids are not the tokenizer of characters


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "gemma"),
        ("hidden_act", "gelu"),
        ("rope_scaling", {"factor": 2}),
        ("rope_parameters", {"rope_type": "yarn"}),
    ],
)
def test_other_architectures_are_refused(make, tmp_path, key, value):
    make().save(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(ValueError, match="logits would differ"):
        TinyTransformer.load(tmp_path)


def test_a_config_that_does_not_speak_of_tied_embeddings_means_untied(make, tmp_path):
    make().save(tmp_path)
    path = tmp_path / "config.json"
    given = json.loads(path.read_text())
    del given["tie_word_embeddings"]
    path.write_text(json.dumps(given))
    with pytest.raises(ValueError, match=r"1 weights are missing .* such as lm_head.weight"):
        TinyTransformer.load(tmp_path)


def test_names():
    assert "tiny-random" in names()
    policy = load_policy("tiny-random", seed=3)
    assert torch.equal(next(policy.parameters()), next(TinyTransformer(seed=3).parameters()))
    assert load_policy("tiny-random", torch.float64).model.norm.weight.dtype == torch.float64
    assert load_tokenizer("tiny-random").eos == 2
    with pytest.raises(ValueError, match="Did you mean 'tiny-random'"):
        load_policy("tiny-ramdon")


@pytest.mark.skipif("tiny" not in names(), reason="trained weights are not in the package yet")
def test_shipped_weights():
    policy, tokenizer = load_policy("tiny"), load_tokenizer("tiny")
    assert policy.vocab == tokenizer.vocab
    assert logits(policy, tokenizer.encode("1+2=")[None]).isfinite().all()


def test_transformers_reads_what_we_write_and_we_read_what_it_writes(make, tmp_path):
    transformers = pytest.importorskip("transformers")
    ids = np.random.default_rng(0).integers(0, 99, (3, 60))
    for kv_heads in (2, 4):
        policy = make(torch.float32, vocab=99, kv_heads=kv_heads)
        policy.save(tmp_path / "ours")
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
        assert model.dtype == torch.float32
        theirs = model(torch.from_numpy(ids)).logits
        torch.testing.assert_close(logits(policy, ids), theirs, rtol=1e-5, atol=2e-4)  # logits reach 20
        model.save_pretrained(tmp_path / "theirs")
        assert torch.equal(logits(TinyTransformer.load(tmp_path / "theirs"), ids), logits(policy, ids))


def test_transformers_reads_the_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers")
    own = CharTokenizer()
    own.save(tmp_path)
    other = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (other.pad_token_id, other.bos_token_id, other.eos_token_id) == (0, 1, 2)
    for text in ("12+3=15", " a  b\n\n~", "<eos> and <pad>", ""):
        assert other(text).input_ids == [own.bos, *own.encode(text)]
        assert other(text, add_special_tokens=False).input_ids == own.encode(text).tolist()
        assert other.decode([1, *own.encode(text), 2], skip_special_tokens=True) == text
