"""Equivalences between methods, compared by gradients through the real learner on random batches.

Each edge is tried in the file of the method that it begins at, tests/methods/test_NAME.py.
"""

import pytest
import torch
from graph import GRAPH
from sides import Equivalence
from torch import Tensor

from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.same import far
from gruppo.lab.laws.world import World, random_cut
from gruppo.stages import Method, difference

EDGES = {e.name: e for e in GRAPH}


def result(edge: Equivalence, method: Method, seed: int, role: str) -> Tensor:
    """The gradient of a role in random micro-batches, or its weights after the update."""
    world = World(method, seed, on_policy=edge.on_policy)
    edge.before(world)
    batch = world.prepared(edge.batch(world.packed(edge.episodes(random_episodes(seed)))))
    if not edge.update:
        return world.grad(batch, role, random_cut(batch, seed))
    before = torch.cat([p.detach().flatten().clone() for p in world.models[role].parameters()])
    method.update(world.ctx, world.learner, batch)
    return torch.cat([p.detach().flatten() for p in world.models[role].parameters()]) - before


def check(edge: Equivalence, seed: int) -> None:
    for role in edge.roles:
        left, right = (result(edge, m, seed, role) for m in (edge.left, edge.right))
        assert float(left.norm()) > 1e-9, "nothing was compared"
        assert far(left, right) <= edge.limit, f"{role}: {edge.note}"


def test_the_graph_can_be_drawn() -> None:
    """Names are unique, labels tell the two sides apart, every edge has a reason, and no edge is trivial."""
    assert len(EDGES) == len(GRAPH)
    for name, left, right, note, *_ in GRAPH:
        assert left.name != right.name and note.endswith("."), name
        assert difference(left, right), f"{name}: both sides are the same record"


NOT_EQUAL = {
    "dapo_is_grpo": "without the conditions DAPO is not GRPO",
    "grpo_is_policy_gradient": "off-policy the ratio matters",
    "ppo_is_whitened_return": "with values the advantage is not the return",
    "token_mean_of_even_lengths": "with ragged lengths the means differ",
    "reinforce_is_centred": "with several groups the mean of the batch is not the mean of the group",
    "exact_sampler": "a sampler that differs is corrected",
    "one_group_needs_no_baseline": "with several groups their means differ from the batch's",
    "dr_grpo_is_rloo": "off-policy, and with groups of other sizes, the factor is another",
    "dr_grpo_of_full_answers": "an answer's own length is not the constant",
    "remax_is_reinforce": "greedy answers differ from prompt to prompt",
    "gpg_is_centred": "dead groups make the others count for more",
    "opo_is_centred": "a long answer weighs more in the baseline",
}


@pytest.mark.parametrize("name", NOT_EQUAL)
def test_the_conditions_are_needed(name: str) -> None:
    """The comparison can fail: without its condition the equivalence does not hold."""
    from gruppo.methods import method

    edge = EDGES[name]
    bare = edge._replace(on_policy=False, episodes=list, batch=lambda b: b)
    if name == "dapo_is_grpo":
        bare = bare._replace(left=method("dapo"))
    left, right = (result(bare, m, 1, "policy") for m in (bare.left, bare.right))
    assert far(left, right) > 1e-3, NOT_EQUAL[name]
