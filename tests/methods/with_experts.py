"""Answers of experts among those of the policy, by hand and as a rollout makes them."""

import asyncio
from typing import Any

import torch
from hand import answer, batch_of, by_expert, group

from gruppo.data import Batch, Episode, Use
from gruppo.engines import NativeEngine
from gruppo.methods import method
from gruppo.policies import load_policy, load_tokenizer
from gruppo.stages import Ask, Context, Prompt, Sampling, Stats
from gruppo.stages.prompting import prompts_for
from gruppo.stages.walk import Walk
from gruppo.tasks import Task


def _leaf(logp: list[float]) -> Stats:
    return Stats(logp_N=torch.tensor(logp, dtype=torch.float64, requires_grad=True))


LOGP, OLD = [-0.5, -1.0, -0.7, -0.2, -1.5], [-0.9, -1.0, -0.6, -0.2, -0.4]


def mixed(use: Use) -> Batch:
    """Two sampled answers, and an expert's of two tokens."""
    return batch_of([*group([1.0, 0.0], [2, 1]), by_expert(answer(2, "g", 2, 1.0), use)], logp_old_N=OLD)


TASKS = [Task(f"t{i}", f"{i}+1=", str(i + 1), 1, "desk", "steps") for i in range(3)]


def rolled_out(rollout: Any, samples: int, seed: int = 0) -> list[Episode]:
    tokenizer, policy = load_tokenizer("tiny-random"), load_policy("tiny-random")
    engine = NativeEngine({"policy": policy}, eos=tokenizer.eos)
    ctx = Context(engine=engine, tokenizer=tokenizer, seed=seed, sampling=Sampling(max_tokens=4))
    ctx = Walk(method("grpo"), read=lambda role, batch, needs: {}).opened(ctx)  # without a judge
    prompts: list[Prompt] = [p for t in TASKS for p in prompts_for(ctx, (), Ask(t, samples))]
    return asyncio.run(rollout(ctx, prompts))
