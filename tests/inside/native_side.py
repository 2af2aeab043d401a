"""Scripted answers, and our own learner on them: losses and gradients that other trainers are compared to."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hf_models import chat_tokenizer, hf_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from gruppo.data import Episode, Status, pack, single_turn
from gruppo.policies.hf import HFPolicy
from gruppo.stages import Context, Method, Sampling
from gruppo.stages.goal import Goal
from gruppo.stages.readouts import Stats
from gruppo.stages.reward import add_components
from gruppo.stages.select import through_first_door
from gruppo.stages.update import Passes
from gruppo.stages.walk import Walk
from gruppo.train.cast import build_cast
from gruppo.train.learner import Learner, OptimConfig

PROMPTS, SAMPLES, LONGEST, EOS = 8, 4, 6, 2
TEMPERATURE = 0.75  # a float32 has it exactly
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
WORDS = ["12+3=", "4+5=", "7*8=", "9-1=", "66=", "1+1=", "20-7=", "3*3*3="]
LEVEL = ["12+3=", "40+5=", "7*18=", "9-13=", "1666=", "1+11=", "20-7=", "3*33="]  # of one length
Steps = tuple[list[float], list[Tensor]]


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


def folder_of(path: Path, family: str = "llama_untied", dtype: torch.dtype = torch.float32) -> Path:
    """A small random model with its tokenizer, as transformers saves them.

    In float64 take gpt2, with prompts of one length: it counts padding on the left as positions, and a Llama of
    transformers norms and rotates in float32.
    """
    tokenizer = chat_tokenizer()
    torch.manual_seed(0)
    model = hf_model(family, len(tokenizer), dtype, **(NO_DROPOUT if family == "gpt2" else {}))
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

    def __init__(self, tokenizer: Any, tasks: Sequence[str] = WORDS) -> None:
        draw = np.random.default_rng(0)
        self.tasks = list(tasks)
        self.prompts = [tokenizer(w)["input_ids"] for w in tasks]
        self.answers, self.logp = list[list[int]](), list[list[float]]()
        for i in range(PROMPTS * SAMPLES):
            size = int(draw.integers(1, LONGEST)) if i % 5 else LONGEST  # one in five is cut off
            self.answers.append(draw.integers(20, 39, size).tolist() + ([EOS] if i % 5 else []))
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
    m: Method,
    folder: Path,
    script: Script,
    names: Sequence[str],
    dtype: torch.dtype = torch.float32,
) -> Steps:
    """The loss and the gradient of every optimiser step of a batch, by our learner."""
    policy = HFPolicy(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype))
    ctx = Context(
        samples=SAMPLES, prompts=PROMPTS, seed=42, sampling=Sampling(LONGEST, TEMPERATURE), fresh=lambda n: []
    )
    models = build_cast(m, policy, ctx)
    learner = Learner(m, models, OptimConfig(lr=1.0, clip_norm=math.inf))
    learner.optimisers["policy"] = Scripted(policy.model.parameters())
    drawn = episodes(script, names, TEMPERATURE)
    walk = Walk(m, learner.read, packed=partial(pack, dtype=dtype))
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


def twice(m: Method) -> Method:
    """With at least two optimiser steps on a batch, so that ratios leave 1 and the reference lags behind."""
    return m if m.update.steps > 1 else m.but(update=Passes(epochs=2))


def differ(a: Steps, b: Steps) -> tuple[float, float]:
    """The largest difference of losses, those above 1 relatively, and of gradients, relatively."""
    assert len(a[0]) == len(b[0]) == len(a[1]) == len(b[1])
    loss = max(abs(x - y) / max(abs(y), 1.0) for x, y in zip(a[0], b[0], strict=True))
    return loss, max(float((x - y).norm() / y.norm().clamp(min=1e-9)) for x, y in zip(a[1], b[1], strict=True))
