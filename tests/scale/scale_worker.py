"""What each process of the tests does. One of several ranks, or alone.

scale_worker.py FILE DTYPE METHOD…          gradients, readings and a step of every method in the laws' world, sharded
                                            against one process; of those in FEW also on a batch of one sequence
scale_worker.py FILE models METHOD…         the same in both dtypes, and models and roles that this world has not
"""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.same import far
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.policies import Lora, Unadapted, clone, learned_state
from gruppo.policies.lora import add_lora
from gruppo.scale import shard
from gruppo.scale.ranks import Member
from gruppo.scale.shard import at_rest, mesh_of, shard_cast, units_of
from gruppo.stages import need
from gruppo.train.learner import Learner, OptimConfig
from gruppo.train.ranks import Ranks, ranks

sys.path.insert(0, str(Path(__file__).parents[1]))  # hf_models
FEW = ("grpo", "disco", "ppo")
SMALL = shard.SMALL


def mock_small(dtype: torch.dtype) -> None:
    shard.SMALL = SMALL if dtype == torch.float64 else 0


def learners(world: World, dtype: torch.dtype) -> tuple[Learner, Learner]:
    """One process alone, and all ranks with sharded copies of the same models; in float32 they are taken for large."""
    mock_small(dtype)
    together, mesh = ranks(), mesh_of(torch.device("cpu"), ranks().size)
    plain = {role: clone(model, train=True).to(dtype) for role, model in world.models.items()}
    shards = shard_cast(plain, mesh, keep=frozenset(plain))
    out = (
        Learner(world.method, plain, OptimConfig(), ranks=Ranks()),
        Member(world.method, shards, OptimConfig(), ranks=together),
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
    gradients, steps, norms = [0.0], [0.0], [0.0]
    for role in alone.trained:
        for two_pass in (False, True):
            found = [x.gradient(role, batch, two_pass=two_pass) for x in (alone, together)]
            gradients.append(far(*found))
            norms.append(float(found[0].norm()))
        for learner in (alone, together):
            learner.step(role, batch)
        steps.append(far(*(weights(x, role) for x in (alone, together))))
    return {"read": read, "gradient": max(gradients), "step": max(steps), "norm": max(norms)}


def weights(learner: Learner, role: str) -> Tensor:
    """All of them as one vector, on every rank."""
    at_rest(learner.models)
    found: list[Any] = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in learner.models[role].parameters()]
    return torch.cat([p.detach().flatten() for p in found])


# ---- models and roles


def pair(name: str, models: dict[str, Any], config: OptimConfig | None = None) -> tuple[World, Batch, Learner, Member]:
    """A learner with these models alone, and one on all ranks with sharded copies of them."""
    world = World(method(name), 0)
    batch = world.prepared(world.packed(random_episodes(0)))
    shards = shard_cast(models, mesh_of(torch.device("cpu"), ranks().size), keep=frozenset(models))
    config = config or OptimConfig()
    alone = Learner(world.method, models, config, ranks=Ranks())
    together = Member(world.method, shards, config, ranks=ranks())
    for learner in (alone, together):
        learner.begin(world.ctx)
    return world, batch, alone, together


def hf(family: str) -> float:
    """A policy of transformers: gradients."""
    from hf_models import hf_model

    from gruppo.policies.hf import HFPolicy

    policy = HFPolicy(hf_model(family, vocab=12), family)
    _, batch, *both = pair("grpo", {"policy": policy, "ref": clone(policy)})
    rows, size = torch.arange(batch.size("S")), ranks().size
    cut = [rows[i::size] for i in range(size)]  # transformers norms in float32: another cut rounds otherwise
    return far(*(x.gradient("policy", batch, cut=cut) for x in both))


def lora() -> dict[str, Any]:
    """An adapter, with the policy without it as the reference."""
    policy = clone(World(method("grpo"), 0).models["policy"], train=True)
    add_lora(policy, Lora(rank=2), seed=1)
    with torch.no_grad():
        for p in learned_state(policy).values():
            p.add_(torch.linspace(-0.3, 0.3, p.numel(), dtype=p.dtype).view(p.shape))
    _, batch, alone, together = pair("grpo", {"policy": policy, "ref": Unadapted(policy)})
    read = [x.read("ref", batch, [need("logp", "ref")])["logp_ref_N"] for x in (alone, together)]
    at_rest(together.models)
    names = [list(learned_state(x.models["policy"])) for x in (alone, together)]
    found = [x.gradient("policy", batch) for x in (alone, together)]
    return {"ref": far(*read), "gradient": far(*found), "names": names[0] == names[1]}


def follower() -> dict[str, float]:
    """A slow copy that was read, so that part of it is gathered, and then moved: the next reading sees the move."""
    world = World(method("archer"), 0)
    _, batch, alone, together = pair("archer", {r: clone(m, train=True) for r, m in world.models.items()})
    needs = [need("value", "target", at="K", side="before")]
    seen: list[Tensor] = []
    for do in (partial(_do, alone), together.do):
        before = do("read", "target", batch, needs)[needs[0].column]
        do("copy", "critic", "target", tau=0.5)
        seen += [before, do("read", "target", batch, needs)[needs[0].column]]
    return {"before": far(seen[0], seen[2]), "after": far(seen[1], seen[3]), "moved": far(seen[0], seen[1])}


def _do(learner: Learner, verb: str, *given: Any, **named: Any) -> Any:
    return getattr(learner, verb)(*given, **named)


def clipped() -> dict[str, float]:
    """The norm of a gradient that is spread over ranks, and the step that it is clipped for."""
    world = World(method("grpo"), 0)
    models = {r: clone(m, train=True) for r, m in world.models.items()}
    _, batch, *both = pair("grpo", models, OptimConfig(clip_norm=1e-3, lr=1e-2))
    norms: list[float] = []
    for learner in both:
        learner.step("policy", batch)
        norms.append(learner.tally.means()["grad_norm"])
    return {"norm": abs(norms[0] / norms[1] - 1), "step": far(*(weights(x, "policy") for x in both))}


def masters() -> float:
    """Weights below float32, with float32 copies in the optimiser."""
    world = World(method("grpo"), 0)
    models = {r: clone(m, train=True).bfloat16() for r, m in world.models.items()}
    *_, alone, together = pair("grpo", models, OptimConfig(lr=1e-2))
    for learner in (alone, together):
        at_rest(learner.models)
        for _ in range(3):
            for i, p in enumerate(learner._params("policy")):
                p.grad = torch.full_like(p, 0.1 * (i + 1))
            learner.apply("policy")
    state = [x.state(["policy"]) for x in (alone, together)]
    if ranks().rank > 0:
        return 0.0
    pairs = [(state[0][0]["policy"], state[1][0]["policy"]), (state[0][1]["policy"], state[1][1]["policy"])]
    assert any(name.endswith("master") for name in pairs[1][0])
    return max(far(a[name].detach().float(), b[name].float()) for a, b in pairs for name in a)


def kept() -> dict[str, float]:
    """A snapshot brings weights and moments back: the same step again leads to the same weights."""
    world = World(method("ppo"), 0)
    _, batch, _, learner = pair("ppo", {r: clone(m, train=True) for r, m in world.models.items()})
    learner.step("critic", batch)
    before, snapshot = weights(learner, "critic"), learner.snapshot("critic")
    learner.step("critic", batch)
    moved = weights(learner, "critic")
    at_rest(learner.models)
    learner.restore("critic", snapshot)
    back = weights(learner, "critic")
    learner.step("critic", batch)
    again = weights(learner, "critic")
    return {"moved": far(before, moved), "back": far(before, back), "again": far(moved, again)}


def units() -> bool:
    """Every decoder layer is gathered by itself, and one part with the rest."""
    world = World(method("ppo"), 0)
    models = {r: clone(m, train=True) for r, m in world.models.items()}
    shards = shard_cast(models, mesh_of(torch.device("cpu"), ranks().size))
    return all(len(units_of(m)) == m.layers + 1 for m in shards.values()) and "critic" in shards


def of_models() -> dict[str, Any]:
    return {
        "hf": {family: hf(family) for family in ("llama", "llama_untied")},
        "lora": lora(),
        "follower": follower(),
        "clipped": clipped(),
        "masters": masters(),
        "kept": kept(),
        "units": units(),
    }


def of_methods(dtype: str, *names: str) -> dict[str, Any]:
    kind = getattr(torch, dtype)
    few = {name: distances(name, kind, True) for name in names if name in FEW}
    return {"all": {name: distances(name, kind, False) for name in names}, "few": few}


def main(file: str, what: str, *names: str) -> None:
    torch.set_num_threads(1)
    ranks()
    if what == "models":
        found = {**of_models(), **{dtype: of_methods(dtype, *names) for dtype in ("float64", "float32")}}
    else:
        found = of_methods(what, *names)
    if ranks().rank == 0:
        Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
