"""Who wrote an answer: methods of given answers learn an expert's tokens as their own, all others leave them out."""

from copy import deepcopy

import pytest
import torch

from gruppo.data import Episode, Source
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.same import far
from gruppo.lab.laws.world import World, random_cut
from gruppo.methods import all_methods, method

GIVEN = ("dpo", "ipo", "kto", "orpo", "simpo", "sft", "rft")
BESIDE = ("chord", "rl_plus")  # an expert's answer has a rule of its own beside the sampled ones


def by_experts(episodes: list[Episode], every: int = 1) -> list[Episode]:
    """The same episodes, every so manieth of them written by an expert."""
    out = deepcopy(episodes)
    for e in out[::every]:
        e.source = Source.EXPERT if e.source == Source.POLICY else e.source
        for s in e.sequences:
            s.source[s.source == Source.POLICY] = Source.EXPERT
    return out


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("seed", range(2))
def test_it_does_not_matter_who_wrote_an_answer(name: str, seed: int) -> None:
    """A preference file and sampled groups are learned alike, also when a pair has one of each, and in any cut."""
    episodes, world = random_episodes(seed), World(method(name), seed)
    plain = world.gradient(episodes)
    for every in (1, 2):
        batch = world.prepared(world.packed(by_experts(episodes, every)))
        assert far(plain, world.grad(batch, cut=random_cut(batch, seed))) < 1e-9
    assert float(plain.norm()) > 0


@pytest.mark.parametrize("name", sorted({*all_methods()} - {*GIVEN, *BESIDE}))
def test_others_learn_nothing_from_experts(name: str) -> None:
    world = World(method(name), 0)
    batch = world.prepared(world.packed(by_experts(random_episodes(0))))
    assert float(world.grad(batch).norm()) == 0 and not bool(batch.policy_N.any())


@pytest.mark.parametrize("name", BESIDE)
def test_experts_beside_the_samples_have_their_own_rule(name: str) -> None:
    """They are learned from, and not as if the policy had written the same."""
    m = method(name).but(select=(), penalties=())
    world, plain = World(m, 0), random_episodes(0)
    own, theirs = world.gradient(plain), world.gradient(by_experts(plain))
    assert float(theirs.norm()) > 0 and far(own, theirs) > 1e-3


def test_the_rule_is_declared() -> None:
    for name, m in all_methods().items():
        assert ("expert" in {s for _, o in m.occupants() for s in o.reads}) == (name in (*GIVEN, *BESIDE)), name
    batch = World(method("sft"), 0).packed(by_experts(random_episodes(0)))
    assert torch.equal(batch.learn_N, torch.zeros_like(batch.learn_N))
