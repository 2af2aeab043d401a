"""What a user of TRL meets: refusals in time, tools, failures, evaluation, checkpoints."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed: `make test-trl` has it")

from datasets import Dataset
from native_side import SAMPLES, WORDS, folder_of, tokenizer_of
from transformers import AutoModelForCausalLM
from trl import GRPOConfig

from gruppo.data import Source, Status
from gruppo.inside.trl import MEMORY, GruppoGRPOTrainer
from gruppo.methods import method
from gruppo.stages.update import Passes

SMALL = {
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "num_generations": SAMPLES,
    "max_completion_length": 5,
    "max_steps": 2,
    "gradient_checkpointing": False,
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "save_strategy": "no",
    "logging_steps": 1,
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "learning_rate": 1e-3,
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("model"))


def even(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [float(ids[0] % 2 == 0) for ids in completion_ids]


def trainer_of(folder: Path, out: Path, m: Any = "grpo", rewards: Any = even, more: Any = None, **options: Any) -> Any:
    return GruppoGRPOTrainer(
        method=m,
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=rewards,
        args=GRPOConfig(output_dir=str(out), **{**SMALL, **(more or {})}),
        train_dataset=Dataset.from_dict({"prompt": WORDS}),
        processing_class=tokenizer_of(folder),
        **options,
    )


# refused before anything is loaded


@pytest.mark.parametrize(
    ("m", "said"),
    [
        ("ppo", r"gae in credit needs value@critic .* can be read\. Choose another credit"),
        ("dpo", r"recorded in rollout would never be called inside TRL"),
        ("spear", r"good_ones in replay .*but\(replay=Forget\(\)\)"),
        ("gigpo", r"anchor_groups in credit needs the states that turns begin in"),
        ("empo", r"compares the answers of a group.*answers=lambda text"),
    ],
)
def test_a_method_that_does_not_fit_is_refused(m: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GruppoGRPOTrainer(method=m, model="no such model", reward_funcs=even)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"beta": 0.04}, r"beta=0.04\) would be ignored: grpo decides it in its room penalties"),
        ({"loss_type": "grpo"}, r"loss_type='grpo'\) would be ignored.*but\(objective=…\)"),
        ({"mask_truncated_completions": True}, r"its room select"),
        ({"num_iterations": 3}, r"contradicts grpo, which learns from a batch in 1 passes of 1 optimiser steps"),
        ({"steps_per_generation": 4}, r"steps_per_generation=4\) contradicts grpo"),
    ],
)
def test_a_setting_that_the_method_decides_is_refused(
    setting: dict[str, Any], said: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        trainer_of(folder, tmp_path, more=setting)


def test_draw_again_is_said_to_be_lost(folder: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="redraw_equal_groups in select asks to draw again, which is lost"):
        trainer_of(folder, tmp_path, "dapo")


def test_passes_are_those_of_the_method(folder: Path, tmp_path: Path) -> None:
    m = method("grpo").but(update=Passes(epochs=3, minibatches=2))
    trainer = trainer_of(folder, tmp_path, m, more={"gradient_accumulation_steps": 4})
    assert (trainer.num_iterations, trainer.args.steps_per_generation) == (3, 8)
    assert trainer.args.generation_batch_size == 64


def test_a_reference_is_loaded_only_if_a_room_reads_it(folder: Path, tmp_path: Path) -> None:
    assert trainer_of(folder, tmp_path, "grpo").ref_model is not None
    assert trainer_of(folder, tmp_path, method("grpo").but(penalties=())).ref_model is None


# what TRL hands over


def test_tokens_of_tools_are_no_decisions(folder: Path, tmp_path: Path) -> None:
    """Every run of sampled tokens is a turn; what stands between is the environment's."""
    ids, mask = [20, 21, 30, 31, 22, 2], [1, 1, 0, 0, 1, 1]

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        n = len(prompts)
        prompt_ids = [trainer.processing_class(p)["input_ids"] for p in prompts]
        logps = [[-1.0] * len(ids)] * n
        return {"prompt_ids": prompt_ids, "completion_ids": [ids] * n, "logprobs": logps, "env_mask": [mask] * n}

    trainer = trainer_of(folder, tmp_path, rewards=lambda prompts, **_: [float(i % 2) for i in range(len(prompts))],
                         rollout_func=rollout, more={"max_completion_length": 6})  # fmt: skip
    trainer.train()
    batch = trainer.drawn.batch
    assert batch.token_N[:4].tolist() == [20, 21, 22, 2] and bool((batch.source_N == Source.POLICY).all())
    assert (batch.size("K"), batch.size("E"), batch.size("N")) == (16, 8, 32)
    assert [(t.start, t.stop) for t in trainer.drawn.episodes[0].turns] == [(5, 7), (9, 11)]


def test_rewards_are_components_and_what_nobody_judged_has_failed(folder: Path, tmp_path: Path) -> None:
    def style(completions: list[str], **_: Any) -> list[float | None]:
        return [None if i in (0, 1) else 0.5 for i in range(len(completions))]

    def task(completions: list[str], **_: Any) -> list[float | None]:
        return [None if i == 0 else float(i % 2) for i in range(len(completions))]

    trainer = trainer_of(folder, tmp_path, rewards=[style, task], more={"reward_weights": [2.0, 1.0], "max_steps": 1})
    trainer.train()
    first, second, third = trainer.drawn.episodes[:3]
    assert first.status is Status.ENV_ERROR and first.reward == {}
    assert second.reward == {"task": 1.0} and third.reward == {"task": 0.0, "style": 1.0} and third.total == 1.0
    batch = trainer.drawn.batch
    assert batch.judged_E.tolist() == [False] + [True] * 7 and not bool(batch.learn_N[batch.episode_N == 0].any())


def test_a_single_function_is_the_task(folder: Path, tmp_path: Path) -> None:
    trainer = trainer_of(folder, tmp_path, more={"max_steps": 1})
    trainer.train()
    assert {*trainer.drawn.batch.components} == {"task"}


# runs


def test_a_step_of_which_nothing_is_left_has_no_gradient(folder: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m = method("dapo").but(reward=())
        trainer = trainer_of(folder, tmp_path, m, rewards=lambda prompts, **_: [1.0] * len(prompts))
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train()
    assert trainer.drawn.batch is None and trainer.state.global_step == 2
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


def test_evaluation_leaves_the_step_and_the_memory_alone(folder: Path, tmp_path: Path) -> None:
    trainer = trainer_of(folder, tmp_path, "reinforce", eval_dataset=Dataset.from_dict({"prompt": WORDS}))
    trainer.train()
    drawn, memory = trainer.drawn, trainer.memory.plain
    facts = trainer.evaluate()
    assert trainer.drawn is drawn and trainer.memory.plain == memory and "baseline" in memory
    assert "eval_loss" in facts and "eval_gruppo/policy" in facts


def test_terms_are_logged(folder: Path, tmp_path: Path) -> None:
    trainer = trainer_of(folder, tmp_path)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "gruppo/policy" in row]
    assert len(rows) == 2 and {"gruppo/clip_fraction", "gruppo/kl_ref", "entropy", "reward"} <= set(rows[0])


def test_a_run_that_goes_on_has_its_memory(folder: Path, tmp_path: Path) -> None:
    """2 steps, then 1 from the checkpoint: the running baseline and the weights of 3 steps."""
    more = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    whole = trainer_of(folder, tmp_path, "reinforce", more=more)
    whole.train()
    at_two = torch.load(tmp_path / "checkpoint-2" / MEMORY, weights_only=True)
    again = trainer_of(folder, tmp_path, "reinforce", more=more)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.memory.plain == whole.memory.plain != at_two and again.drawn.ctx.step == 2
    for a, b in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_lines_of_the_page_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand in docs/scale.md, with a small model and one step."""
    page = Path(__file__).parents[2] / "docs" / "scale.md"
    [code] = re.findall(r"^```python\n(from datasets .*?)^```$", page.read_text(), re.M | re.S)
    small = 'GRPOConfig(use_cpu=True, bf16=False, max_steps=4, max_completion_length=4, report_to="none", '
    code = code.replace("Qwen/Qwen2.5-0.5B-Instruct", str(folder)).replace("GRPOConfig(output", f"{small}output")
    rows = [{"prompt": w, "answer": "7"} for w in WORDS]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    said: dict[str, Any] = {}
    exec(compile(code, "scale.md", "exec"), said)
    trainer = said["trainer"]
    assert trainer.method.name == "gspo" and trainer.state.global_step == 4 and (tmp_path / "out").is_dir()


def test_an_adapter_is_trained_and_the_policy_without_it_is_the_reference(folder: Path, tmp_path: Path) -> None:
    from peft import LoraConfig

    trainer = trainer_of(folder, tmp_path, peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    trained = [n for n, p in trainer.model.named_parameters() if p.requires_grad]
    trainer.train()
    assert trained and all("lora" in n for n in trained) and trainer.ref_model is None
    batch = trainer.drawn.batch
    assert bool(torch.isfinite(batch.logp_ref_N).all())
    moved = [row["gruppo/kl_ref"] for row in trainer.state.log_history if "gruppo/kl_ref" in row]
    assert moved[0] == pytest.approx(0.0, abs=1e-9) and moved[1] < -1e-9  # the second step has left the reference
