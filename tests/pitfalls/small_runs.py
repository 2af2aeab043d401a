"""Small real runs for the pitfall tests: a peaked random policy, a `Run` over it, and ways to look inside."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, single_turn
from gruppo.methods import method
from gruppo.policies import TinyConfig, TinyTransformer
from gruppo.stages import Method, Sampling
from gruppo.train import loop
from gruppo.train.config import EvalConfig, ModelConfig, RunConfig, SaveConfig, TaskConfig
from gruppo.train.learner import OptimConfig, sampler_gap
from gruppo.train.run import Run

SCORERS = Path(__file__).with_name("scorers.py")
WORLDS = Path(__file__).parents[1] / "envs" / "lucky.py"
BOS, EOS = 1, 2


def save_policy(folder: Path, seed: int = 0) -> Path:
    """Distributions far from uniform; <bos> and <eos> are likely: answers differ in length and hold specials."""
    policy = TinyTransformer(TinyConfig(dim=16, layers=2, heads=2, ffn=24, context=64), seed)
    with torch.no_grad():
        for w in policy.parameters():
            if w.dim() > 1:
                w.mul_(15)
        policy.model.embed_tokens.weight[[BOS, EOS]] *= 2.5
    policy.save(folder)
    return folder


def config(folder: Path, furniture: Method | str = "grpo", scorer: str = "luck", **changes: Any) -> RunConfig:
    """Eight groups of four short answers, judged by a function of scorers.py."""
    chosen = method(furniture) if isinstance(furniture, str) else furniture
    plain = RunConfig(
        method=chosen,
        task=TaskConfig(reward=f"{SCORERS}:{scorer}", seconds=1.0),
        model=ModelConfig(str(folder), device="cpu"),
        sampling=Sampling(max_tokens=8),
        optim=OptimConfig(lr=0.01),
        eval=EvalConfig(every=0, prompts=4),
        save=SaveConfig(tensorboard="no", checkpoint_every=1, episodes_every=0),
        steps=4,
        prompts=8,
        samples=4,
    )
    return replace(plain, **changes)


def in_world(folder: Path, world: str = "Lucky", tasks: int = 40, **task: Any) -> TaskConfig:
    """Tasks that are played in three turns, in a world of tests/envs/lucky.py."""
    path = folder / "levels.jsonl"
    rows = ({"env": f"{WORLDS}:{world}", "prompt": str(i)} for i in range(tasks))
    path.write_text("\n".join(map(json.dumps, rows)))
    return TaskConfig(str(path), **task)


@contextmanager
def running(*arguments: Any, **changes: Any) -> Iterator[Run]:
    run = Run(config(*arguments, **changes), say=lambda _: None)
    try:
        yield run
    finally:
        run.close()


def drawn(run: Run, step: int = 0) -> list[Episode]:
    """The scored episodes of a step, as the loop draws them."""
    ctx = run.context(step)
    run.learner.begin(ctx)
    return asyncio.run(run.walk.drawn(ctx, run.method.curriculum(ctx, run.tasks.train), run.method.rollout))


def batch_of(run: Run, episodes: Sequence[Episode], step: int = 0) -> Batch:
    """What the loop hands to the update: packed, with needs and credit, through the second door.

    Of these episodes alone: nothing that the replay would recall joins them.
    """
    ctx = run.context(step)
    ctx.replay = ()
    run.learner.begin(ctx)
    batch = run.walk.batch_of(ctx, episodes, episodes)
    assert batch is not None
    if "logp_old_N" in batch.columns:
        sampler_gap(run.learner.tally, batch, batch.logp_old_N)
    return run.walk.credited(ctx, batch)


def take_step(run: Run, step: int = 0) -> Any:
    return asyncio.run(loop.train_step(run, step))


def flat(model: Any) -> Tensor:
    """All parameters in one vector."""
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def grad_of(run: Run, batch: Batch, cut: Sequence[Tensor] | None = None) -> Tensor:
    """The gradient that the learner leaves in the policy."""
    return run.learner.gradient("policy", batch, cut=cut)


def far(a: Tensor, b: Tensor) -> float:
    """Relative distance."""
    return float((a - b).norm()) / max(float(a.norm()), float(b.norm()), 1e-300)


def answer(uid: int, reward: float | dict[str, float], group: str = "g", tokens: int = 3, **fields: Any) -> Episode:
    """A judged episode in the small world of `gruppo.lab.laws.world` (12 ids)."""
    rng = np.random.default_rng(abs(uid))
    logp = -rng.random(tokens) - 0.1
    parts = reward if isinstance(reward, dict) else {"task": reward}
    ids = rng.integers(3, 12, tokens)
    return single_turn(uid, f"t-{group}", group, np.array([1, 3, 4]), ids, logp, 0, reward=parts, **fields)


def advantages(batch: Batch) -> dict[int, float]:
    """{uid: advantage of the episode's first token}."""
    adv_E = batch.gather(batch.adv_N, "N", "E", "max")
    return dict(zip(batch.uid_E.tolist(), adv_E.tolist(), strict=True))
