"""Runs on Hugging Face models: all methods' paths, LoRA, checkpoints, the saved folder, and memory that runs out."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("transformers")
pytest.importorskip("peft")

from hf_models import CHATML, hf_folder
from train_runs import SMALL, gruppo

from gruppo.cli import main
from gruppo.policies import Lora, Unadapted, load_policy, load_tokenizer, packed
from gruppo.train.config import EvalConfig, ModelConfig, RunConfig, SaveConfig
from gruppo.train.optim import AdamW
from gruppo.train.run import Run

LORA = ("model.lora.rank=4", "model.lora.alpha=8")
RUN = (*SMALL, "steps=2", "save.checkpoint_every=1", "sampling.max_tokens=5", "optim.lr=0.003")
RUN += ("task.reward=./reward.py:score",)


def folder(family: str = "llama", name: str = "model") -> Path:
    return hf_folder(Path(name), family, CHATML)


REWARD = "def score(task, text):\n    return float(sum(map(ord, text)) % 2)\n"  # a random model earns half of it


def train(name: str, *settings: str) -> Path:
    Path("reward.py").write_text(REWARD)
    assert gruppo("train", *RUN, f"save.name={name}", *settings) == 0
    return Path("runs") / name


def logits(policy):
    ids = load_tokenizer("model").encode("12+34=46")
    return policy.head(policy(packed([ids]))[0])


FRUGAL = ("model.checkpointing=true", *LORA)


# Our own transformer (llama_untied), and that of transformers.
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        pytest.param("llama_untied", (), id="llama_untied-full"),
        pytest.param("llama_untied", FRUGAL, id="llama_untied-frugal"),
        pytest.param("granite", LORA, id="granite-lora"),
        pytest.param("llama_untied", LORA, id="llama_untied-lora", marks=pytest.mark.slow),
        pytest.param("granite", (), id="granite-full", marks=pytest.mark.slow),
        pytest.param("granite", FRUGAL, id="granite-frugal", marks=pytest.mark.slow),
    ],
)
def test_the_result_is_a_folder_that_transformers_loads(family, settings):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = train("a", f"model={folder(family)}", *settings)
    policy = run / "policy"
    assert (policy / "chat_template.jinja").is_file() and (policy / "generation_config.json").is_file()
    before, after = load_policy("model"), load_policy(policy)
    assert not torch.equal(logits(before), logits(after))
    ids = torch.from_numpy(load_tokenizer(policy).encode("12+34=46"))[None]
    theirs = AutoModelForCausalLM.from_pretrained(policy)(ids).logits[0]
    torch.testing.assert_close(logits(after), theirs, rtol=1e-4, atol=1e-4)
    talk = [{"role": "user", "content": "hi"}]
    tok = AutoTokenizer.from_pretrained(policy)
    text = tok.apply_chat_template(talk, add_generation_prompt=True, return_dict=False)
    assert list(text) == load_tokenizer("model").chat(talk).tolist()
    assert gruppo("eval", str(policy), "eval.prompts=4", "sampling.max_tokens=3") == 0
    facts = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert facts[-1]["sampler_gap_max"] < 1e-3


@pytest.mark.parametrize(
    ("method", "family", "settings"),
    [
        pytest.param("grpo", "granite", LORA, id="grpo-granite-lora"),
        pytest.param("ppo", "llama_untied", (), id="ppo-llama_untied-full"),
        pytest.param("grpo", "granite", (), id="grpo-granite-full", marks=pytest.mark.slow),
        pytest.param("ppo", "llama_untied", LORA, id="ppo-llama_untied-lora", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_exactly(method, family, settings):
    model = folder(family)
    told = (f"model={model}", f"method={method}", *settings)
    whole = train("whole", *told)
    assert train("half", *told, "steps=1")
    assert gruppo("train", "--resume", "runs/half", "--allow-changes", "steps=2") == 0
    one, other = (load_file(run / "policy" / "model.safetensors") for run in (whole, Path("runs/half")))
    assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
    saved = load_file(whole / "checkpoints" / "step-000002" / "policy.safetensors")
    assert all("lora_" in name for name in saved) == bool(settings)
    assert (whole / "adapter" / "adapter_model.safetensors").is_file() == bool(settings)
    if settings:
        assert gruppo("eval", str(whole / "adapter"), "eval.prompts=4", "sampling.max_tokens=3") == 0
        assert "adapter/adapter_model.safetensors" in (whole / "manifest.json").read_text()


def running(**fields) -> Run:
    told = {"prompts": 4, "samples": 4, "eval": EvalConfig(prompts=4), "save": SaveConfig(tensorboard="no")}
    return Run(RunConfig(**{**told, **fields}), lambda _: None)


def test_the_reference_of_a_lora_run_is_the_model_under_it():
    run = running(model=ModelConfig(str(folder("llama_untied")), lora=Lora(rank=4)))
    try:
        ref, policy = run.models["ref"], run.models["policy"]
        assert isinstance(ref, Unadapted) and ref.policy is policy
        plain = logits(load_policy("model"))
        with torch.no_grad():
            for p in policy.parameters():
                p += 0.1 * p.requires_grad
        assert torch.equal(logits(ref), plain) and not torch.equal(logits(policy), plain)
    finally:
        run.close()


def test_a_run_says_once_when_it_uses_the_modules_of_transformers():
    for family, times in (("granite", 1), ("llama_untied", 0)):
        said: list[str] = []
        config = RunConfig(model=ModelConfig(str(folder(family, family))), save=SaveConfig(tensorboard="no"))
        Run(config, said.append).close()
        sentences = [s for s in said if "runs on the modules of transformers: model_type='granite' is none of" in s]
        assert len(sentences) == times


# memory


def out_of_memory_above(run, rows: int) -> list[int]:
    """The policy has memory for so many rows at once in training; the list holds what was asked for."""
    asked: list[int] = []

    def limit(policy, args):
        if policy.training:  # not while sampling
            asked.append(len(args[0].ids_M))
            if asked[-1] > rows:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")

    run.models["policy"].register_forward_pre_hook(limit)
    return asked


def one_gradient(run) -> tuple[torch.Tensor, dict[str, float]]:
    import asyncio

    ctx = run.context(0)
    run.learner.begin(ctx)
    asks = run.method.curriculum(ctx, run.tasks.train)
    episodes = asyncio.run(run.walk.drawn(ctx, asks, run.method.rollout))
    for i, e in enumerate(episodes):
        e.reward = {"task": float(i % 3 == 0)}
    batch = run.walk.credited(ctx, run.walk.batch_of(ctx, episodes, episodes))
    run.learner.grad("policy", batch)
    grads = [p.grad.flatten() for p in run.models["policy"].parameters() if p.grad is not None]
    return torch.cat(grads), run.learner.tally.means()


@pytest.mark.parametrize("method", ["grpo", "disco"])  # one pass, and two
def test_out_of_memory_in_training_is_answered_by_smaller_micro_batches(method):
    from gruppo.methods import method as named

    fields = {"model": ModelConfig("tiny", "float64"), "method": named(method)}
    run, small = running(**fields), running(**fields)
    said: list[str] = []
    try:
        grad, facts = one_gradient(run)
        small.learner.say = said.append
        asked = out_of_memory_above(small, 40)
        again, same = one_gradient(small)
    finally:
        run.close()
        small.close()
    assert max(asked) > 40 and small.learner.micro_tokens <= 40 * 2
    torch.testing.assert_close(again, grad, rtol=0, atol=1e-12)
    assert same == pytest.approx(facts, rel=1e-9)
    assert said and all("out of memory: micro-batches of" in s and "The gradient is the same" in s for s in said)
    assert f"optim.micro_tokens={small.learner.micro_tokens}" in said[-1]


def test_one_sequence_that_does_not_fit_is_an_error_with_the_remedy():
    run = running()
    try:
        out_of_memory_above(run, 2)
        with pytest.raises(ValueError, match=r"one sequence of \d+ tokens at a time.*model.checkpointing=true"):
            one_gradient(run)
    finally:
        run.close()


def test_other_errors_are_not_taken_for_it():
    run = running()

    def fail(policy, args):
        if policy.training:  # not while sampling
            raise RuntimeError("else")

    try:
        run.models["policy"].register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="else"):
            one_gradient(run)
    finally:
        run.close()


def test_a_run_survives_and_remembers_it(monkeypatch, capsys):
    from gruppo.policies import TinyTransformer

    whole = TinyTransformer.forward

    def limited(self, inputs, *args, **kept):
        if self.training and len(inputs.ids_M) > 30:  # not while sampling
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self, inputs, *args, **kept)

    monkeypatch.setattr(TinyTransformer, "forward", limited)
    run = train("a", "model=tiny")
    state = json.loads((run / "checkpoints" / "step-000002" / "state.json").read_text())
    assert state["facts"]["micro_tokens"] <= 60
    assert "out of memory: micro-batches of" in capsys.readouterr().out
    assert main(["train", "--resume", "runs/a", "--allow-changes", "steps=3"]) == 0
    assert "out of memory" not in capsys.readouterr().out


def test_the_optimiser_that_does_not_fit(monkeypatch):
    run = running()
    try:
        one_gradient(run)
        optimiser = run.learner.optimisers["policy"]
        monkeypatch.setattr(optimiser, "step", lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA")))
        with pytest.raises(ValueError, match=r"the two moments.*model.lora.rank=16"):
            run.learner.apply("policy")
    finally:
        run.close()


# less than float32


def test_small_steps_are_not_rounded_away():
    torch.manual_seed(0)
    told = {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.01}
    exact = torch.nn.Parameter(torch.ones(50))
    half, naive = (torch.nn.Parameter(exact.detach().half()) for _ in range(2))
    steppers = [torch.optim.AdamW([exact], fused=True, **told), AdamW([half], fused=True, **told)]
    steppers.append(torch.optim.AdamW([naive], **told))
    for _ in range(40):
        slope = torch.rand(50) + 0.1
        for p, stepper in zip((exact, half, naive), steppers, strict=True):
            p.grad = slope.to(p.dtype)
            stepper.step()
    torch.testing.assert_close(half, exact.half(), rtol=0, atol=5e-4)  # one rounding
    assert (naive == 1).all() and (half < 0.997).all()


def test_bfloat16_on_a_cpu_is_refused(capsys):
    Path("reward.py").write_text(REWARD)
    assert gruppo("train", *RUN, f"model={folder()}", "model.dtype=bfloat16", "model.device=cpu") == 2
    assert "model.dtype=bfloat16 on a CPU" in capsys.readouterr().err


# bad input


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("model.lora.targets=q_prj", "model.lora.rank=4"), "nearest: q_proj"),
        (("sampling.max_tokens=60",), "the context is 64: there are no more positions"),
        (("method.cast.ref=tiny",), "role 'ref' from 'tiny' has another tokenizer than the policy"),
        (("model.lora.rank=-1",), "model.lora.rank=-1 is out of range: use a whole number >= 0."),
        (("model.lora=8",), "it has fields of its own"),
    ],
)
def test_refused(settings, said, capsys):
    Path("reward.py").write_text(REWARD)
    assert gruppo("train", *RUN, f"model={folder('llama_untied')}", *settings) == 2
    assert said in capsys.readouterr().err
    assert not list(Path("runs").glob("*/config.toml"))


def test_a_role_of_another_folder():
    model, other = folder("llama"), folder("llama_untied", "other")
    own, theirs = train("a", f"model={model}"), train("b", f"model={model}", f"method.cast.ref={other}")
    kl = [json.loads((run / "metrics.jsonl").read_text().splitlines()[1])["kl_ref"] for run in (own, theirs)]
    assert abs(kl[0]) < 1e-6 < 0.1 < abs(kl[1])  # a copy of the policy, and another model
