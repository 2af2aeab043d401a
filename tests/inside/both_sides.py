"""The same answers through TRL with our trainer, and through our own learner: losses and gradients step by step."""

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from hf_models import chat_tokenizer, hf_model
from torch import Tensor
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig

from gruppo.data import Episode, Status, pack, single_turn
from gruppo.inside.trl import GruppoGRPOTrainer
from gruppo.policies.hf import HFPolicy
from gruppo.stages import Context, Method, Sampling
from gruppo.stages.goal import Goal
from gruppo.stages.readouts import Stats
from gruppo.stages.reward import add_components
from gruppo.stages.select import through_first_door
from gruppo.stages.walk import Walk
from gruppo.train.cast import build_cast
from gruppo.train.learner import Learner, OptimConfig

PROMPTS, SAMPLES, LONGEST, EOS = 8, 4, 6, 2
WORDS = ["12+3=", "4+5=", "7*8=", "9-1=", "66=", "1+1=", "20-7=", "3*3*3="]


class Scripted(torch.optim.Optimizer):
    """Moves the weights by noise, whatever the gradient: both sides have the same weights at every step.

    The noise is large enough that ratios leave 1 and clips act from the second step on.
    """

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1.0})
        self.draw = torch.Generator().manual_seed(5)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(0.02 * torch.randn(p.shape, generator=self.draw))


def folder_of(path: Path) -> Path:
    """A small random model with its tokenizer, as transformers saves them."""
    tokenizer = chat_tokenizer()
    torch.manual_seed(0)
    model = hf_model("llama_untied", len(tokenizer), torch.float32)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5 if p.dim() > 1 else 1.0)  # log-probabilities near those of a uniform draw: they round least
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def tokenizer_of(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, padding_side="left")


class Script:
    """Answers and rewards that are written down: a function of the place in the batch."""

    def __init__(self, tokenizer: Any, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.prompts = [tokenizer(w)["input_ids"] for w in WORDS]
        self.answers, self.logp = list[list[int]](), list[list[float]]()
        for i in range(PROMPTS * SAMPLES):
            ids = draw.integers(20, 39, int(draw.integers(1, LONGEST))).tolist()
            self.answers.append(ids + ([EOS] if i % 5 else []))
            self.logp.append((-3 * draw.random(len(self.answers[-1]))).tolist())
        self.task = (draw.random(PROMPTS * SAMPLES) < 0.5).astype(float)
        self.task[:SAMPLES], self.task[-SAMPLES:] = 0.0, 1.0  # equal groups, which selection may drop
        self.style = np.round(draw.random(PROMPTS * SAMPLES), 2)
        self.words = [f"w{i}" for i in draw.integers(0, 3, PROMPTS * SAMPLES)]  # what each answer says


# ours


def episodes(script: Script, names: Sequence[str], temperature: float) -> list[Episode]:
    out: list[Episode] = []
    for i, ids in enumerate(script.answers):
        reward = {n: float(getattr(script, n)[i]) for n in names}
        e = single_turn(
            i, f"task {i // SAMPLES}", f"0:{i // SAMPLES}", np.array(script.prompts[i // SAMPLES]), np.array(ids),
            np.array(script.logp[i], np.float32), 0, temperature=temperature, reward=reward,
        )  # fmt: skip
        e.status, e.step, e.answer = Status.OK if ids[-1] == EOS else Status.TRUNCATED, 0, script.words[i]
        out.append(e)
    return out


def native(
    m: Method, folder: Path, script: Script, names: Sequence[str], temperature: float = 0.8, nudge: float = 0.0
) -> tuple[list[float], list[Tensor]]:
    """The loss and the gradient of every optimiser step of a batch, by our learner.

    nudge  a relative change of every weight: 2⁻²⁴ is the rounding of a float32
    """
    policy = HFPolicy(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for p in policy.model.parameters():
            p.mul_(1 + nudge * torch.randn(p.shape, generator=draw))
    ctx = Context(
        samples=SAMPLES, prompts=PROMPTS, seed=42, sampling=Sampling(LONGEST, temperature), fresh=lambda n: []
    )
    models = build_cast(m, policy, ctx)
    learner = Learner(m, models, OptimConfig(lr=1.0, clip_norm=math.inf))
    learner.optimisers["policy"] = Scripted(policy.model.parameters())
    drawn = episodes(script, names, temperature)
    walk = Walk(m, learner.read, packed=pack)
    fresh = ctx.fresh
    walk.opened(ctx)
    ctx.fresh = fresh
    add_components(ctx, m.reward, drawn)
    kept, _ = through_first_door(ctx, m.select, drawn)
    add_components(ctx, m.reward, kept, of_groups=True)
    batch = walk.batch_of(ctx, drawn, kept)
    assert batch is not None
    batch = walk.credited(ctx, batch)
    learner.begin(ctx)
    losses, grads = list[float](), list[Tensor]()

    def step(role: str, part: Any) -> None:
        goal = Goal(m, ctx)
        stats = learner.read("policy", part, [n for n in goal.needs()])
        old = part if "logp_old_N" in part.columns else part.with_columns(logp_old_N=stats["logp_N"])
        losses.append(-float(goal.whole(old, Stats(stats)).value))
        learner.grad(role, part)
        grads.append(torch.cat([p.grad.flatten() for p in policy.model.parameters()]))
        learner.apply(role)

    learner.step = step  # type: ignore[method-assign]
    m.update(ctx, learner, batch)
    return losses, grads


# TRL


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
    temperature: float = 0.8,
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
        temperature=temperature,
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
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimiser = Scripted(model.parameters())
    spy, first = Gradients(), [0]

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        first[0] = trainer.accelerator.process_index * len(prompts)
        here = range(first[0], first[0] + len(prompts))
        assert [WORDS[i // SAMPLES] for i in here] == prompts
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
        train_dataset=Dataset.from_dict({"prompt": WORDS}),
        processing_class=tokenizer,
        callbacks=[spy],
        optimizers=(optimiser, torch.optim.lr_scheduler.ConstantLR(optimiser, 1.0)),
        rollout_func=rollout,
        **options,
    )
    trainer.losses = []
    trainer.train()
    return trainer.losses, spy.seen
