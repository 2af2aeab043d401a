"""Curricula that are Uniform in a limit: they ask for the same tasks, and the step has the same gradient."""

import pytest
from torch import Tensor

from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.fields import observe_twice
from gruppo.lab.laws.same import far
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.methods.dump import DomainUcb
from gruppo.methods.mmr1_vas import VarianceAware
from gruppo.stages import Ask, Method
from gruppo.stages.curriculum import Uniform
from gruppo.tasks import Task

GRPO = method("grpo").but(name="grpo, kl of dump", penalties=method("dump").penalties)


def tasks(levels: int) -> list[Task]:
    """The four tasks of the random groups, of so many domains."""
    return [Task(f"t-g{i}", f"{i}+{i}=", str(2 * i), i % levels, "desk") for i in range(4)]


def steps(m: Method, seed: int, levels: int, prompts: int) -> list[tuple[list[Ask], Tensor]]:
    """Asks and gradient of three steps; the answers to a task are those of its random group."""
    world, episodes = World(m, seed), random_episodes(seed, groups=4, dead=False)
    observe_twice(world, episodes)
    out: list[tuple[list[Ask], Tensor]] = []
    for world.ctx.step in range(3):
        world.ctx.prompts = prompts
        asks = m.curriculum(world.ctx, tasks(levels))
        drawn = [e for uid in dict.fromkeys(a.task.uid for a in asks) for e in episodes if e.task == uid]
        out.append((asks, world.gradient(drawn)))
    return out


@pytest.mark.parametrize("seed", range(3))
def test_dump_on_one_domain_is_grpo_when_a_step_is_an_epoch(seed: int) -> None:
    left = steps(GRPO.but(name="dump", curriculum=DomainUcb()), seed, levels=1, prompts=4)
    right = steps(GRPO.but(curriculum=Uniform()), seed, levels=1, prompts=4)
    for (asks, mine), (others, plain) in zip(left, right, strict=True):
        assert {a.index for a in asks} == {a.index for a in others} == {0, 1, 2, 3}
        assert float(mine.norm()) > 1e-6 and far(mine, plain) <= 1e-9


def test_dump_on_two_domains_is_not() -> None:
    left = steps(GRPO.but(name="dump", curriculum=DomainUcb(domain_temperature=1e-3)), 0, levels=2, prompts=2)
    right = steps(GRPO.but(curriculum=Uniform()), 0, levels=2, prompts=2)
    assert any(far(mine, plain) > 1e-3 for (_, mine), (_, plain) in zip(left, right, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_vas_without_a_weighted_share_is_grpo(seed: int) -> None:
    left = steps(GRPO.but(name="vas, λ = 0", curriculum=VarianceAware(weighted_share=0.0)), seed, levels=2, prompts=2)
    right = steps(GRPO.but(curriculum=Uniform()), seed, levels=2, prompts=2)
    for (asks, mine), (others, plain) in zip(left, right, strict=True):
        assert [(a.task.uid, a.group) for a in asks] == [(a.task.uid, a.group) for a in others]
        assert far(mine, plain) == 0.0


def test_vas_with_one_is_not() -> None:
    left = steps(GRPO.but(name="vas, λ = 1", curriculum=VarianceAware(weighted_share=1.0)), 0, levels=2, prompts=2)
    right = steps(GRPO.but(curriculum=Uniform()), 0, levels=2, prompts=2)
    assert any(far(mine, plain) > 1e-3 for (_, mine), (_, plain) in zip(left, right, strict=True))
