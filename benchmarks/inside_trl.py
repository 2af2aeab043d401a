"""The same task with TRL's GRPOTrainer and with ours inside TRL: held-out accuracy after training, by seed.

    python benchmarks/inside_trl.py [--methods trl grpo] [--seeds 0 1 2] [--steps 60]

`trl` is TRL's own trainer with loss_type="grpo", the others are methods of ours in GruppoGRPOTrainer. Same start (the
small policy of the package), same sums, rewards, sampling and optimiser; one optimiser step a batch of 32 prompts x 8
answers, no reference. A row of JSON for each run.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
PROMPTS, SAMPLES, TOKENS = 32, 8, 6


def folder_of(path: Path) -> Path:
    """The small policy as a folder of transformers, whose tokenizer puts <bos> before a prompt, as ours does."""
    from gruppo.policies import load_policy

    load_policy("tiny").save(path)
    told = json.loads((path / "tokenizer.json").read_text())
    bos, text = {"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    told["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]}},
    }
    (path / "tokenizer.json").write_text(json.dumps(told))
    return path


def right(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    return [float(text.strip() == said) for text, said in zip(completions, answer, strict=True)]


@torch.no_grad()
def accuracy(model: Any, tokenizer: Any, tasks: list[Any]) -> float:
    """The share of right answers to held-out sums, drawn at temperature 1 with the same luck for all."""
    model.eval()
    torch.manual_seed(0)
    ids = tokenizer([t.prompt for t in tasks], return_tensors="pt", padding=True)
    said = model.generate(**ids, max_new_tokens=TOKENS, do_sample=True, top_k=0, top_p=1.0)[
        :, ids["input_ids"].shape[1] :
    ]
    texts = tokenizer.batch_decode(said, skip_special_tokens=True)
    return sum(right(texts, [t.answer for t in tasks])) / len(tasks)


def trained(name: str, seed: int, steps: int, folder: Path, out: Path) -> dict[str, Any]:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from gruppo.inside.trl import GruppoGRPOTrainer
    from gruppo.methods import method
    from gruppo.stages.update import Passes
    from gruppo.tasks import load_task

    tasks = load_task("addition", level=2)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    held = [tasks.held_out[i % len(tasks.held_out)] for i in range(1024)]
    before = accuracy(model, tokenizer, held)
    own = {"loss_type": "grpo", "scale_rewards": "group", "beta": 0.0} if name == "trl" else {}
    config = GRPOConfig(
        output_dir=str(out), per_device_train_batch_size=PROMPTS * SAMPLES, num_generations=SAMPLES,
        max_completion_length=TOKENS, max_steps=steps, learning_rate=1e-4, lr_scheduler_type="constant",
        adam_beta2=0.95, max_grad_norm=1.0, seed=seed, use_cpu=True, bf16=False, gradient_checkpointing=False,
        report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        **own,
    )  # fmt: skip
    rows = [tasks.train[i] for i in range(min(len(tasks.train), PROMPTS * steps))]
    given: dict[str, Any] = {
        "model": model,
        "reward_funcs": right,
        "args": config,
        "train_dataset": Dataset.from_dict({"prompt": [t.prompt for t in rows], "answer": [t.answer for t in rows]}),
        "processing_class": tokenizer,
    }
    if name == "trl":
        trainer: Any = GRPOTrainer(**given)
    else:
        trainer = GruppoGRPOTrainer(method=method(name).but(penalties=(), update=Passes()), **given)
    start = time.process_time()
    trainer.train()
    seconds = (time.process_time() - start) / steps
    after = accuracy(trainer.model, tokenizer, held)
    return {"trainer": name, "seed": seed, "before": before, "after": after, "cpu_seconds_a_step": round(seconds, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--methods", nargs="+", default=["trl", "grpo"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = folder_of(Path(made) / "model")
        for seed in args.seeds:
            for name in args.methods:
                print(json.dumps(trained(name, seed, args.steps, folder, Path(made) / "out")), flush=True)


if __name__ == "__main__":
    main()
