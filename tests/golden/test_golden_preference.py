"""Pairs, whatever is learned from them: answers without tokens, identical ones, and those of a scored group."""

import math

import pytest
import torch
from hand import Use, answer, batch_of, objective
from pairs_by_hand import close

from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.stages.relations import PairUp

# Edges of all


PAIRED = ("dpo", "ipo", "orpo", "simpo")


@pytest.mark.parametrize("name", PAIRED)
def test_an_answer_without_a_token_is_in_no_pair(name: str) -> None:
    """B15, edge. A pair with an empty completion leaves the count; nothing is divided by 0."""
    made = [answer(0, "p", 2, 1.0), answer(1, "p", 0, 0.0)]
    value, slopes = objective(method(name), batch_of(made, logp_ref_N=[-1.0, -1.0]), logp_N=[-0.5, -0.5])
    assert value == 0.0 and slopes["logp_N"] == [0.0, 0.0]


@pytest.mark.parametrize("name", PAIRED)
def test_identical_answers(name: str) -> None:
    """B14, edge: two copies of one text, one of them preferred: the two pushes cancel in every weight."""
    made = [answer(0, "p", 3, 1.0), answer(1, "p", 3, 0.0)]
    world = World(method(name), 0)
    batch = world.prepared(world.packed(made))
    assert batch.size("P") == 1
    pushed = float(world.grad(batch).norm())
    if name == "orpo":  # the likelihood of the chosen one stays
        assert pushed > 0.1
        likely = world.grad(world.prepared(world.packed([answer(0, "p", 3, 1.0)])))
        assert float(likely.norm()) == 0.0  # alone it is no pair, so it is not chosen
    else:
        assert pushed < 1e-12
    if name == "dpo":
        same = torch.full((6,), -1.0, dtype=torch.float64)
        value = world.value(batch.with_columns(logp_ref_N=same), {"logp_N": same})
        close(-float(value), math.log(2))


@pytest.mark.parametrize("name", PAIRED)
def test_what_is_not_to_be_learned_is_in_no_pair(name: str) -> None:
    made = [answer(0, "p", 1, 1.0), answer(1, "p", 1, 0.0, use=Use.BASELINE), answer(2, "p", 1, -1.0, use=Use.APART)]
    world = World(method(name), 0)
    assert world.prepared(world.packed(made)).size("P") == 0


def test_pairs_of_a_scored_group() -> None:
    """Best against worst; with most=0 all that differ by more than min_gap."""
    made = [answer(i, "p", 1, r) for i, r in enumerate([0.2, 1.0, 0.0, 0.6])] + [answer(9, "q", 1, 0.5)]
    batch, ctx = batch_of(made), World(method("dpo"), 0).ctx
    one = PairUp()(ctx, batch)
    assert (one["win_P"].tolist(), one["lose_P"].tolist(), one["margin_P"].tolist()) == ([1], [2], [1.0])
    wide = PairUp(most=0, min_gap=0.5)(ctx, batch)
    assert sorted(zip(wide["win_P"].tolist(), wide["lose_P"].tolist(), strict=True)) == [(1, 0), (1, 2), (3, 2)]
    assert len(PairUp(most=0)(ctx, batch)["win_P"]) == 6
