"""Noise of methods that are trained by the loop: draws of steps that are not taken."""

from dataclasses import dataclass, replace
from math import inf

import pytest
import torch

from gruppo.lab.exact.figures import lab
from gruppo.lab.exact.world import ExactWorld
from gruppo.lab.tabular import Setup, World, train_exact
from gruppo.lab.tabular.measure import measured
from gruppo.lab.tabular.probe import EveryGroup, Probe
from gruppo.lab.tabular.tables import Tables
from gruppo.lab.tabular.train import changed
from gruppo.methods import method
from gruppo.stages.curriculum import Uniform


@dataclass(frozen=True)
class Mine(Uniform):
    """A curriculum of one's own, which asks as usual: trained by the loop."""


def test_draws_of_the_loop_estimate_what_all_groups_give() -> None:
    m = method("grpo").but(curriculum=Mine(), penalties=())
    setup = Setup(World(prompts=1, answers=3, right=1, low=0.3, high=0.3), steps=1, prompts=1, samples=3, noise=400)
    done = train_exact(m, setup, seeds=[4], lr=0.0)
    assert done.how == "loop" and "falls" not in done.columns
    world = setup.world.of(4)
    tables = Tables(world)
    start = tables.start([world])[0]
    every = EveryGroup(Probe(method("grpo").but(penalties=()), setup, tables, together=True), 1)
    exact = every.found(start, start, 0)
    assert done.of("noise")[:, 0] == pytest.approx([exact.noise(1)] * 2, rel=0.2)
    assert done.of("cosine")[:, 0] == pytest.approx([exact.cosine(tables, start)] * 2, abs=0.06)
    assert done.of("noise")[0, 0] != done.of("noise")[1, 0]  # one policy, and other draws


@pytest.mark.parametrize("name", ["spo_segment", "oprl", "rloo"])
def test_measuring_moves_nothing(name: str) -> None:
    """Neither the policy, nor what later steps draw, nor which of their rewards are turned."""
    m = method(name).but(curriculum=Mine())
    setup = Setup(World(prompts=3, answers=9, depth=2, right=2), steps=3, prompts=2, samples=4, flip=0.3, every=1)
    plain, watched = (train_exact(m, changed(setup, {"noise": n}), seeds=2, lr=0.1, clip_norm=inf) for n in (0, 3))
    assert plain.how == watched.how == "loop"
    assert torch.equal(plain.theta, watched.theta)
    assert "noise" not in plain.columns and (watched.of("noise")[1:] > 0).all()


def test_the_cosine_is_that_of_the_laboratory() -> None:
    """Also along −g, where its sign turns, and along 0, where it is 0."""
    world = ExactWorld(rates=(0.2, 0.7), answers=("", "a", "ab", "b"), right=("a", "b"))
    tables, setup = Tables(world), Setup(world=World(prompts=2), prompts=1, samples=3)
    start = tables.start([world])[0]
    for name in ("reinforce", "grpo"):
        found = EveryGroup(Probe(method(name), setup, tables, together=True), 1).found(start, start, 0)
        [row] = lab([name], world, prompts=1, samples=3, warm=0, steps=0).rows
        assert row.figures is not None and row.figures.cosine == pytest.approx(found.cosine(tables, start), abs=1e-9)
        back = replace(found, grad_DXJ=-found.grad_DXJ)
        assert back.cosine(tables, start) == pytest.approx(-found.cosine(tables, start))
        none = replace(found, grad_DXJ=0 * found.grad_DXJ)
        assert none.cosine(tables, start) == 0


def test_a_collapsed_start() -> None:
    """steep=0.1: one right answer of six has nine tenths of the right mass, whatever the rate; 0.36 nats of 1.79."""
    world = World(prompts=4, answers=16, right=6, steep=0.1, low=0.05, high=0.5).of(2)
    mass_QA = world.mass_QA[:, world.right_A]
    assert mass_QA.amax(1) / mass_QA.sum(1) == pytest.approx([0.9] * 4, rel=1e-4)
    assert mass_QA.sum(1)[[0, -1]].tolist() == pytest.approx([0.05, 0.5])
    start = Tables(world).start([world])
    assert float(measured(Tables(world), start, start)["right_entropy"]) == pytest.approx(0.361, abs=2e-3)
