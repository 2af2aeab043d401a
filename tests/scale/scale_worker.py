"""What each process of the tests does. Started by torchrun, or alone.

scale_worker.py gradients FILE DTYPE METHOD…   of every method in the laws' world, sharded against one process; of those
                                               in FEW also on a batch of one sequence: the other ranks have none
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.same import far
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.policies import clone
from gruppo.scale.shard import at_rest, mesh_of, shard_cast
from gruppo.stages import need
from gruppo.train.learner import Learner, OptimConfig
from gruppo.train.ranks import Ranks, ranks

FEW = ("grpo", "disco", "ppo")


def learners(world: World, dtype: torch.dtype) -> tuple[Learner, Learner]:
    """One process alone, and all ranks with sharded copies of the same models."""
    together, mesh = ranks(), mesh_of(torch.device("cpu"), ranks().size)
    plain = {role: clone(model, train=True).to(dtype) for role, model in world.models.items()}
    shards = shard_cast(plain, mesh, keep=frozenset(plain))
    out = (
        Learner(world.method, plain, OptimConfig(), ranks=Ranks()),
        Learner(world.method, shards, OptimConfig(), ranks=together),
    )
    for learner in out:
        learner.begin(world.ctx)
    return out


def one_sequence(batch: Batch) -> Batch:
    batch = batch.minibatch(torch.nonzero(batch.learn_E)[:1, 0])
    batch = batch.micro(torch.arange(1)) if batch.size("S") > 1 and "win_P" not in batch.columns else batch
    return replace(batch, columns={k: v for k, v in batch.columns.items() if not k.startswith("row_")})


def distances(name: str, dtype: torch.dtype, few: bool) -> dict[str, float]:
    """The largest relative distance over roles, one and two passes, of gradients, of what is read, and of a step."""
    world = World(method(name), 0)
    batch = world.prepared(world.packed(random_episodes(0)))
    batch = one_sequence(batch) if few else batch
    batch = replace(batch, columns={k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.columns.items()})
    alone, together = learners(world, dtype)
    needs = [need("logp", "old")]
    read = far(*(x.read("old", batch, needs)["logp_old_N"] for x in (alone, together)))
    gradients, steps = [0.0], [0.0]
    for role in alone.trained:
        for two_pass in (False, True):
            found = [x.gradient(role, batch, two_pass=two_pass) for x in (alone, together)]
            gradients.append(far(*found))
        for learner in (alone, together):
            learner.step(role, batch)
        steps.append(far(*(weights(x, role) for x in (alone, together))))
    return {"read": read, "gradient": max(gradients), "step": max(steps)}


def weights(learner: Learner, role: str) -> Tensor:
    """All of them as one vector, on every rank."""
    at_rest(learner.models)
    found: list[Any] = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in learner.models[role].parameters()]
    return torch.cat([p.detach().flatten() for p in found])


def main(what: str, file: str, *words: str) -> None:
    torch.set_num_threads(1)
    first = ranks().rank == 0
    dtype, names = getattr(torch, words[0]), words[1:]
    found = {name: distances(name, dtype, False) for name in names}
    few = {name: distances(name, dtype, True) for name in names if name in FEW}
    if first:
        Path(file).write_text(json.dumps({"all": found, "few": few}))


if __name__ == "__main__":
    main(*sys.argv[1:])
