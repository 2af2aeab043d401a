"""Odd model folders: a sentence, or the model that transformers computes; never a traceback, never another model."""

import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import hf_models
from safetensors.torch import load_file, save_file
from test_hf import draws, own_logits
from test_shapes import far, logits_of
from transformers import AutoModelForCausalLM

from gruppo.cli import main
from gruppo.policies import load_policy, load_tokenizer

WRONG: dict[str, Any] = {
    "null": None,
    "truth": True,
    "empty": "",
    "text": "odd",
    "negative": -3,
    "zero": 0,
    "0.0": 0.0,
    "fraction": 2.5,
    "nan": math.nan,
    "infinite": math.inf,
    "list": [1, "a"],
    "empty list": [],
    "table": {"a": [1]},
    "empty table": {},
    "huge": 10**30,
    "other": 6,
    "left out": ...,
}
# Keys that transformers does not write by itself, with values that are right.
MORE: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": ..., "rope_theta": 10000.0, "rope_scaling": None, "torch_dtype": "float32"},
    "qwen2": {"use_sliding_window": True, "sliding_window": 48, "is_causal": True, "layer_types": None},
    "qwen3": {"original_max_position_embeddings": None, "quantization_config": None, "num_labels": 2},
    "mistral": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "partial_rotary_factor": None},
}
SEQUENCES = draws([6, 4])


@pytest.fixture(scope="module", params=MORE)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    hf_models.random_model(request.param, vocab_size=128).save_pretrained(path)
    hf_models.chat_tokenizer().save_pretrained(path)
    given = json.loads((path / "config.json").read_text()) | MORE[request.param]
    (path / "config.json").write_text(json.dumps({k: v for k, v in given.items() if v is not ...}))
    return path


def cases(folder: Path) -> Iterator[tuple[str, str, str]]:
    """(key, kind of wrong value, the file) for every key of a config.json."""
    given = json.loads((folder / "config.json").read_text())
    for key in given:
        for kind, value in WRONG.items():
            if (key, kind) != ("num_labels", "huge"):  # transformers makes a list of so many names
                yield key, kind, json.dumps({k: v for k, v in (given | {key: value}).items() if v is not ...})


def outcome(folder: Path, key: str, text: str) -> tuple[str, Any]:
    """Refused with a sentence, or loaded, and the policy."""
    path = folder / "config.json"
    before = path.read_text()
    path.write_text(text)
    try:
        try:
            policy = load_policy(folder)
        except ValueError as error:
            said, value = str(error), json.loads(text).get(key, "left out")
            assert str(folder) in said and said.endswith("."), said
            told = f"{path}: {key}={value!r}, and it must be " in said or key in said or "weights are missing" in said
            assert told or key in ("model_type", "hidden_act"), (key, value, said)
            return "refused", None
        try:
            load_tokenizer(folder)
        except ValueError as error:
            assert str(folder) in str(error) and "config.json" in str(error), error
            return "refused by transformers", policy
        given: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        theirs, info = given
        assert not info["missing_keys"] and not info["mismatched_keys"]
        assert far(logits_of(policy, SEQUENCES), own_logits(theirs.eval(), SEQUENCES)) < 1e-4
        return "equal", policy
    finally:
        path.write_text(before)


def test_a_sixth_of_all_keys_and_wrong_values(folder: Path) -> None:
    every = list(cases(folder))
    counts = Counter[str]()
    for key, _, text in random.Random(0).sample(every, len(every) // 6):
        counts[outcome(folder, key, text)[0]] += 1
    assert counts["refused"] > 20 and counts["equal"] > 5


@pytest.mark.slow
def test_all_keys_and_wrong_values(folder: Path) -> None:
    found = list[str]()
    for key, kind, text in cases(folder):
        try:
            outcome(folder, key, text)
        except Exception as error:
            found.append(f"{key}, {kind}: {type(error).__name__}: {error}")
    assert not found, "\n".join(found)


# files and weights


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", "{", r"config.json cannot be read as JSON \(Expecting property name"),
        ("config.json", "", r"config.json cannot be read as JSON \(Expecting value"),
        ("config.json", "\xff", r"config.json cannot be read as JSON \('utf-8' codec"),
        ("config.json", "[" * 10**5, r"config.json cannot be read as JSON \(maximum recursion"),
        ("config.json", "[1]", "config.json holds a list, and it must be an object"),
        ("config.json", '{"model_type": ["llama"]}', r"config.json: model_type=\['llama'\], and it must be the name"),
        ("generation_config.json", "{", "generation_config.json cannot be read as JSON"),
        ("generation_config.json", '{"eos_token_id": ["a"]}', r"generation_config.json: eos_token_id=\['a'\], and"),
        ("tokenizer.json", "{", "tokenizer.json cannot be read as JSON"),
        ("tokenizer.json", '{"model": 5}', "the tokenizer in .* could not be loaded"),
        ("model.safetensors", "", r"model.safetensors \(0 bytes\) is no whole file of safetensors"),
        ("model.safetensors", "no weights at all", r"model.safetensors \(17 bytes\) is no whole file of safetensors"),
    ],
)
def test_a_file_that_cannot_be_read(hf_folder, file: str, content: str, said: str) -> None:
    folder = hf_folder("llama")
    (folder / file).write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=said):
        load_policy(folder)
        load_tokenizer(folder)


def test_weights_that_are_cut_off(saved) -> None:
    _, folder = saved("llama")
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for size in (1, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"model.safetensors \({size:,} bytes\) is no whole file .* Download it"):
            load_policy(folder)


def test_parts_that_are_odd(saved) -> None:
    _, folder = saved("llama", options={"max_shard_size": "8KB"})
    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    for places in (5, [1], {"a": 3}):
        index.write_text(json.dumps(table | {"weight_map": places}))
        with pytest.raises(ValueError, match="weight_map is no table of weights and their files"):
            load_policy(folder)
    index.write_text(json.dumps(table))
    part = sorted(folder.glob("model-*.safetensors"))[1]
    part.write_bytes(part.read_bytes()[:-4])
    with pytest.raises(ValueError, match=rf"{part.name} \(.*\) is no whole file"):
        load_policy(folder)


def test_an_adapter_on_something_odd(tmp_path: Path) -> None:
    for base, said in ((5, "base_model_name_or_path=5, and it must be the folder"), (None, "names no base model")):
        (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        with pytest.raises(ValueError, match=said):
            load_policy(tmp_path)


def q(name: str) -> str:
    return f"model.layers.0.self_attn.{name}"


@pytest.mark.parametrize(
    ("shape", "changed", "said"),
    [
        ("llama", {"model.norm.weight": None}, "1 weights are missing .* such as model.norm.weight"),
        (
            "llama",
            {"model.norm.weight": torch.ones(31)},
            "1 weights .* have the wrong shape, such as model.norm.weight",
        ),
        ("llama", {"model.embed_tokens.weight": torch.ones(41, 32)}, "vocab_size=40, but .* has the shape 41 × 32"),
        ("llama", {"model.embed_tokens.weight": torch.ones(40, 30)}, "hidden_size=32, but .* has the shape 40 × 30"),
        ("llama", {q("q_proj.weight"): torch.ones(16, 32)}, "num_attention_heads × head_dim=32, but .* 16 × 32"),
        ("qwen3", {q("k_proj.weight"): torch.ones(16, 32)}, "num_key_value_heads × head_dim=24, but .* 16 × 32"),
        ("llama", {"model.layers.2.mlp.up_proj.weight": torch.ones(1)}, "num_hidden_layers=2, but .* of 3 layers"),
        ("llama", {q("q_proj.bias"): torch.ones(32)}, "q_proj.bias would be left out"),
        ("mistral", {q("q_norm.weight"): torch.ones(10)}, "q_norm.weight would be left out"),
        ("llama", {q("q_proj.weight"): torch.ones(32, 32, dtype=torch.int8)}, "q_proj.weight is int8, so it is quan"),
    ],
)
def test_weights_of_another_model(saved, shape: str, changed: dict[str, Any], said: str) -> None:
    _, folder = saved(shape)
    path = folder / "model.safetensors"
    weights = load_file(path) | changed
    save_file({k: w for k, w in weights.items() if w is not None}, path, {"format": "pt"})
    with pytest.raises(ValueError, match=said) as error:
        load_policy(folder)
    assert str(folder) in str(error.value)


def test_old_weights_that_nobody_uses_are_no_reason_to_refuse(saved) -> None:
    model, folder = saved("llama")
    path = folder / "model.safetensors"
    save_file(load_file(path) | {q("rotary_emb.inv_freq"): torch.ones(4)}, path, {"format": "pt"})
    assert far(logits_of(load_policy(folder), SEQUENCES), own_logits(model, SEQUENCES)) < 1e-4


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rope_theta": 0}, "rope_theta=0, and it must be a number above 0."),
        ({"rope_scaling": "linear"}, "rope_scaling='linear', and it must be an object"),
        ({"layer_types": 5}, "layer_types=5, and it must be a list with a name for each layer"),
        ({"max_window_layers": None}, "max_window_layers=None, and it must be a whole number from 0"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps='1e-6', and it must be a small number"),
        ({"dtype": "float99"}, "dtype='float99', and it must be the name of a kind of numbers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3, and it must be a divisor of num_attention_heads=4"),
        ({"vocab_size": 120}, "vocab_size=120, but of the weights"),
    ],
)
def test_the_command_line_says_it(hf_folder, capsys: pytest.CaptureFixture[str], changed: Any, said: str) -> None:
    folder = hf_folder("qwen2")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    assert main(["eval", str(folder), "task=addition"]) == 2
    told = capsys.readouterr().err
    assert f"{path}: {said}" in told and "Traceback" not in told


def test_the_command_line_says_what_is_slow(hf_folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder = hf_folder("gpt2")
    assert main(["eval", str(folder), "task=addition", "eval.prompts=2", "sampling.max_tokens=2"]) == 0
    assert f"model {folder} runs on the modules of transformers: model_type='gpt2'" in capsys.readouterr().err
