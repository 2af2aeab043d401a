"""Noise of methods that are trained by the loop: draws of steps that are not taken."""

from dataclasses import dataclass
from math import inf

import pytest
import torch

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
    setup = Setup(World(prompts=1, answers=3, right=1, low=0.3, high=0.3), steps=1, prompts=1, samples=3, noise=600)
    done = train_exact(m, setup, seeds=[4], lr=0.0)
    assert done.how == "loop" and "falls" not in done.columns
    world = setup.world.of(4)
    tables = Tables(world)
    start = tables.start([world])[0]
    every = EveryGroup(Probe(method("grpo").but(penalties=()), setup, tables, together=True), 1)
    exact = every.found(start, start, 0).noise(1)
    assert done.of("noise")[:, 0] == pytest.approx([exact] * 2, rel=0.2)
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


def test_more_answers_are_less_noise() -> None:
    """Four times the answers, a quarter of the variance: of RLOO, whose gradient is a mean over answers, nearly so."""
    m = method("rloo").but(curriculum=Mine())
    setup = Setup(World(prompts=2, answers=4, right=1, low=0.4, high=0.4), steps=1, prompts=2, noise=300)
    few, many = (train_exact(m, setup, seeds=[1], lr=0.0, samples=n).of("noise").mean() for n in (4, 16))
    assert few / many == pytest.approx(4.0, rel=0.35)


def test_a_collapsed_start() -> None:
    """steep=0.1: one right answer of six has nine tenths of the right mass, whatever the rate; 0.36 nats of 1.79."""
    world = World(prompts=4, answers=16, right=6, steep=0.1, low=0.05, high=0.5).of(2)
    mass_QA = world.mass_QA[:, world.right_A]
    assert mass_QA.amax(1) / mass_QA.sum(1) == pytest.approx([0.9] * 4, rel=1e-4)
    assert mass_QA.sum(1)[[0, -1]].tolist() == pytest.approx([0.05, 0.5])
    start = Tables(world).start([world])
    assert float(measured(Tables(world), start, start)["right_entropy"]) == pytest.approx(0.361, abs=2e-3)
