"""The same answers through TRL with our trainer: losses and gradients step by step, to be compared with our learner."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from native_side import LONGEST, PROMPTS, SAMPLES, TEMPERATURE, Script, Scripted, tokenizer_of
from torch import Tensor
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig

from gruppo.inside.trl import GruppoGRPOTrainer
from gruppo.stages import Method


class Recorded(GruppoGRPOTrainer):
    """Keeps the loss of every optimiser step."""

    losses: list[float]

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        loss = super()._compute_loss(model, inputs)
        if inputs["place"] % inputs["drawn"].each == 0:
            self.losses.append(0.0)
        self.losses[-1] += float(loss.detach())
        return loss


class Gradients(TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        module = getattr(model, "module", model)
        self.seen.append(torch.cat([p.grad.flatten().clone() for p in module.parameters()]))


def inside(
    m: Method,
    folder: Path,
    script: Script,
    names: Sequence[str],
    out: Path,
    accumulation: int = 1,
    processes: int = 1,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> tuple[list[float], list[Tensor]]:
    """The same by TRL, with our trainer: one generation, in slices."""
    tokenizer = tokenizer_of(folder)
    share = PROMPTS * SAMPLES // m.update.minibatches // accumulation // processes
    config = GRPOConfig(
        output_dir=str(out),
        per_device_train_batch_size=share,
        gradient_accumulation_steps=accumulation,
        num_generations=SAMPLES,
        max_completion_length=LONGEST,
        temperature=TEMPERATURE,
        max_steps=m.update.steps,
        max_grad_norm=0.0,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    optimiser = Scripted(model.parameters())
    spy, first = Gradients(), [0]

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        first[0] = trainer.accelerator.process_index * len(prompts)
        here = range(first[0], first[0] + len(prompts))
        assert [script.tasks[i // SAMPLES] for i in here] == prompts
        return {
            "prompt_ids": [script.prompts[i // SAMPLES] for i in here],
            "completion_ids": [script.answers[i] for i in here],
            "logprobs": [script.logp[i] for i in here],
        }

    def reward(name: str) -> Callable[..., list[float]]:
        def f(prompts: list[str], **_: Any) -> list[float]:
            return [float(getattr(script, name)[first[0] + i]) for i in range(len(prompts))]

        f.__name__ = name
        return f

    row = itertools.count()
    trainer = Recorded(
        method=m,
        answers=lambda text: script.words[first[0] + next(row)],
        model=model,
        reward_funcs=[reward(n) for n in names],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": script.tasks}),
        processing_class=tokenizer,
        callbacks=[spy],
        optimizers=(optimiser, torch.optim.lr_scheduler.ConstantLR(optimiser, 1.0)),
        rollout_func=rollout,
        **options,
    )
    trainer.losses = []
    trainer.train()
    return trainer.losses, spy.seen
