"""What a role maximises: terms before statistics, and values by their names."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gruppo.data import Batch, pack, single_turn
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.methods import all_methods, method
from gruppo.pieces.aggregate import MEANS, weights
from gruppo.stages import Context, Need, Occupant, Sampling, Stats, Term, Values, need
from gruppo.stages.goal import Goal
from gruppo.stages.objective import NOW, ClippedSurrogate
from gruppo.stages.penalties import EntropyBonus, ReferenceKL

GRPO = method("grpo")
EVERY = (*MEANS, "sequence_sum/64", "episode_sum/max_tokens", "drawn_group_sum/2.5", 64.0)


def world_of(furniture: Any, seed: int = 3) -> tuple[World, Batch]:
    world = World(furniture, seed)
    return world, world.prepared(world.packed(random_episodes(seed)))


# terms before statistics


def test_terms_are_declared_without_statistics() -> None:
    """For every method: `Stats()` refuses whoever looks into it, and a batch without old is no obstacle."""
    for name, m in all_methods().items():
        world = World(m, 2)
        batch = world.prepared(world.packed(random_episodes(2)))
        bare = replace(batch, columns={k: v for k, v in batch.columns.items() if k != "logp_old_N"}, _cache={})
        for role in m.objectives:
            goal = world.goal(role)
            first, second = goal.terms(batch), goal.terms(bare)
            assert [t.name for t in first] == [t.name for t in second] and first, name
            assert all(torch.equal(a.over, b.over) and a.mean == b.mean for a, b in zip(first, second, strict=True))


def test_declared_terms_are_those_of_the_values() -> None:
    world, batch = world_of(GRPO.but(penalties=(ReferenceKL(), EntropyBonus())))
    goal, stats = world.goal(), world.statistics(batch)
    terms = goal.terms(batch)
    assert [t.name for t in terms] == ["policy", "clip_fraction", "kl_ref", "entropy_bonus"]
    values = goal.values(batch, Stats(stats), terms)
    assert len(values) == 4 and torch.equal(values[3][batch.policy_N], stats["entropy_N"][batch.policy_N])
    by_hand = sum(
        float((t.coef * v * t.weights(batch))[t.weights(batch) > 0].sum()) for t, v in zip(terms, values, strict=True)
    )
    assert float(goal.whole(batch, Stats(stats)).value) == pytest.approx(by_hand, abs=1e-12)


def test_needs_are_those_of_every_optimiser_step_each_once() -> None:
    entropy = need("entropy", when="step")
    assert Goal(GRPO.but(penalties=(ReferenceKL(), EntropyBonus())), Context()).needs() == [NOW, entropy]
    assert Goal(GRPO.but(penalties=EntropyBonus()), Context(), penalties=False).needs() == [NOW]
    ppo = method("ppo").but(penalties=EntropyBonus())
    assert Goal(ppo, Context(), "critic").needs() == [
        need("value", "critic", when="step")
    ]  # penalties are the policy's


def test_without_penalties_a_goal_is_that_of_the_objective() -> None:
    world, batch = world_of(GRPO)
    stats = Stats(world.statistics(batch))
    alone = replace(world.goal(), penalties=False)
    assert [t.name for t in alone.terms(batch)] == ["policy", "clip_fraction"]
    other = World(GRPO.but(penalties=()), 3)
    assert float(alone.whole(batch, stats).value) == float(other.goal().whole(batch, stats).value)
    assert float(alone.whole(batch, stats).value) != float(world.goal().whole(batch, stats).value)


# values under their names


@dataclass(frozen=True)
class Says(Occupant):
    """An objective that declares some names and gives values for others."""

    declared: tuple[str, ...] = ("policy",)
    given: tuple[str, ...] = ("policy",)
    coef: float = 1.0

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term(name, batch.learn_N, coef=self.coef) for name in self.declared]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {name: (i + 1) * stats.logp_N for i, name in enumerate(self.given)}


@pytest.mark.parametrize(
    ("declared", "given", "says"),
    [
        (("policy",), ("polciy",), r"says declares the terms policy and gives values for polciy \(nearest: policy\)"),
        (("policy", "bonus"), ("policy",), r"says declares the terms policy, bonus and gives values for policy"),
        (("policy",), ("policy", "bonus"), r"gives values for policy, bonus.*Use the same names\."),
    ],
)
def test_values_under_another_name_than_declared_are_refused(
    declared: tuple[str, ...], given: tuple[str, ...], says: str
) -> None:
    world, batch = world_of(GRPO.but(objective=Says(declared, given), penalties=()))
    with pytest.raises(ValueError, match=says):
        world.grad(batch)
    with pytest.raises(ValueError, match=says):
        world.goal().whole(batch, Stats(world.statistics(batch)))


def test_the_order_of_values_does_not_matter_their_names_do() -> None:
    world, batch = world_of(GRPO.but(objective=Says(("a", "b"), ("a", "b")), penalties=()))
    other = World(GRPO.but(objective=Says(("b", "a"), ("a", "b")), penalties=()), 3)
    stats = Stats(world.statistics(batch))
    for w, order in ((world, ["a", "b"]), (other, ["b", "a"])):
        made = w.goal().whole(batch, stats)
        assert list(made.totals) == order and float(made.totals["b"]) == pytest.approx(2 * float(made.totals["a"]))


def test_two_terms_of_one_name_are_refused() -> None:
    """From two objectives, from an objective and a penalty, or from one occupant."""
    twice: list[Any] = [
        GRPO.but(objective=(ClippedSurrogate(), Says())),
        GRPO.but(penalties=Says()),
        GRPO.but(objective=Says(("policy", "policy"))),
    ]
    for furniture in twice:
        world, batch = world_of(furniture)
        with pytest.raises(ValueError, match=r"grpo: two terms of policy are called 'policy', so one would hide"):
            world.goal().terms(batch)
        with pytest.raises(ValueError, match="Rename one of them"):
            world.grad(batch)


def test_a_chain_of_objectives_is_their_sum() -> None:
    chain = (ClippedSurrogate(coef=0.75), Says(("more",), ("more",), coef=0.25))
    world, batch = world_of(GRPO.but(objective=chain, penalties=()))
    stats = Stats(world.statistics(batch))
    parts = [
        float(World(GRPO.but(objective=o, penalties=()), 3).goal().whole(batch, stats).value)
        for o in (ClippedSurrogate(), Says(("more",), ("more",)))
    ]
    made = world.goal().whole(batch, stats)
    assert float(made.value) == pytest.approx(0.75 * parts[0] + 0.25 * parts[1], abs=1e-12)
    assert float(made.totals["more"]) == pytest.approx(parts[1])  # in the log without its coefficient


# the longest answer there may be


def test_a_sum_over_the_longest_answer_of_the_run() -> None:
    """Each episode's sum, divided by max_tokens, and by the number of episodes with tokens to learn."""
    episodes = [
        single_turn(i, "t", "g", np.array([1, 3]), np.arange(4, 4 + n), np.full(n, -1.0), 0, reward={"task": i % 2})
        for i, n in enumerate((2, 5, 3))
    ]
    batch = pack(episodes, dtype=torch.float64).with_columns(adv_N=torch.ones(10, dtype=torch.float64))
    m = GRPO.but(objective=ClippedSurrogate(mean="episode_sum/max_tokens"), penalties=())
    for longest in (5, 20):
        goal = Goal(m, Context(sampling=Sampling(max_tokens=longest)))
        [term, _] = goal.terms(batch)
        assert term.mean == f"episode_sum/{longest}"
        assert term.weights(batch).tolist() == pytest.approx([1 / 3 / longest] * 10)
        assert torch.equal(term.weights(batch), weights(batch, "N", batch.learn_N, f"episode_sum/{longest}"))
    with pytest.raises(ValueError, match="mean='tokens/16' divides by no constant"):
        Goal(m.but(objective=ClippedSurrogate(mean="tokens/max_tokens")), Context()).terms(batch)[0].weights(batch)


# one pass or two


@dataclass(frozen=True)
class Coupled(Says):
    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_N, additive=False)]


@dataclass(frozen=True)
class NowKept(Occupant):
    """A selection by statistics of the model being trained."""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        return stats.logp_N < -1.0, torch.ones_like(batch.weight_N)


def test_micro_batches_add_up_where_no_row_looks_at_another() -> None:
    wanted: Sequence[tuple[Any, bool]] = [
        (GRPO, True),
        (GRPO.but(objective=Coupled()), False),
        (GRPO.but(select=NowKept()), False),
        (method("dpo"), False),
    ]
    for furniture, fused in wanted:
        world, batch = world_of(furniture)
        goal = world.goal()
        assert goal.fused(goal.terms(batch)) == fused
        one, two = world.grad(batch), world.grad(batch, two_pass=True)
        assert float((one - two).norm()) <= 1e-9 * float(one.norm()) and float(one.norm()) > 0


def test_slopes_are_those_of_the_whole_step() -> None:
    world, batch = world_of(GRPO)
    leaves = {k: v.requires_grad_() for k, v in world.statistics(batch).items()}
    slopes, total = world.goal().slopes(batch, leaves, -2.0)
    by_autograd = torch.autograd.grad(world.goal().whole(batch, Stats(leaves)).value, leaves["logp_N"])[0]
    assert torch.equal(slopes["logp_N"], -2.0 * by_autograd)
    assert list(total.totals) == ["policy", "clip_fraction", "kl_ref"]
    unread = {**leaves, "entropy_N": torch.ones(batch.size("N"), requires_grad=True)}
    flat = world.goal().slopes(batch, unread)[0].get("entropy_N", torch.zeros(1))
    assert float(flat.abs().sum()) == 0.0  # J does not depend on it
