"""What each process of the tests does. One of several ranks, or alone.

rank_worker.py gradients FILE METHOD…    the gradient of every method in the laws' world, against one process;
                                         of those in FEW also on a batch of one sequence: the other rank has none
rank_worker.py steps FILE METHOD STEPS   weights after some steps of a run
"""

import asyncio
import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from gruppo.data import Batch
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.same import far
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.scale.ranks import follow, leading
from gruppo.stages import need
from gruppo.train.config import EvalConfig, ModelConfig, RunConfig
from gruppo.train.loop import train_step
from gruppo.train.ranks import Ranks, ranks
from gruppo.train.run import Run

FEW = ("grpo", "disco")


def distances(names: list[str], few: bool) -> dict[str, float]:
    """The largest relative distance over roles, one and two passes: the ranks together against one process alone."""
    out: dict[str, float] = {}
    for name in names:
        world = World(method(name), 0)
        batch = world.packed(random_episodes(0))
        batch = world.prepared(batch)
        if few:
            batch = batch.minibatch(torch.nonzero(batch.learn_E)[:1, 0])
            batch = batch.micro(torch.arange(1)) if batch.size("S") > 1 and "win_P" not in batch.columns else batch
            batch = replace(batch, columns={k: v for k, v in batch.columns.items() if not k.startswith("row_")})
        found: list[float] = [_read(world, batch)]
        for role in world.learner.trained:
            for two_pass in (False, True):
                world.learner.ranks = Ranks()
                alone = world.grad(batch, role, two_pass=two_pass)
                world.learner.ranks = ranks()
                found.append(far(alone, world.grad(batch, role, two_pass=two_pass)))
        out[name] = max(found)
    return out


def _read(world: World, batch: Batch) -> float:
    """How far what is read together is from what one process reads; every row has its own writer."""
    both: list[torch.Tensor] = []
    for together in (Ranks(), ranks()):
        world.learner.ranks = together
        both.append(world.learner.read("old", batch, [need("logp", "old")])["logp_old_N"])
    return far(*both)


def trained(name: str, steps: int) -> dict[str, torch.Tensor]:
    if ranks().rank > 0:
        follow()
        return {}
    config = RunConfig(
        method=method(name),
        steps=steps,
        prompts=8,
        samples=4,
        eval=EvalConfig(prompts=8),
        threads=1,
        model=ModelConfig(dtype="float64"),
    )
    with leading() if ranks().size > 1 else nullcontext():
        run = Run(config, say=lambda words: None)
        try:
            for step in range(steps):
                asyncio.run(train_step(run, step))
        finally:
            run.close()
        return {k: v.clone() for k, v in run.models["policy"].state_dict().items()}


def main(what: str, file: str, *words: str) -> None:
    torch.set_num_threads(1)
    first = ranks().rank == 0
    if what == "steps":
        weights = trained(words[0], int(words[1]))
        if first:
            save_file({k: v.contiguous() for k, v in weights.items()}, file)
    else:
        few = [name for name in words if name in FEW]
        found = {"gradients": distances(list(words), False), "few": distances(few, True)}
        if first:
            Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
