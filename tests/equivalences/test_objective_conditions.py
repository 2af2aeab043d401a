"""The equivalences of `graph_objective.py` can fail: without its condition, each of these does not hold."""

import pytest
from graph_objective import GRAPH, VAPO
from test_equivalences import result

from gruppo.lab.laws.same import far

EDGES = {e.name: e for e in GRAPH}
NOT_EQUAL = {
    "gspo_of_one_token_is_grpo": "with several tokens an answer has one ratio, its tokens have many",
    "gspo_on_policy_is_grpo": "off-policy GSPO clips whole answers",
    "cispo_on_policy_is_reinforce": "off-policy tokens are weighed",
    "gmpo_of_one_token_is_grpo": "with several tokens the geometric mean is not the arithmetic one",
    "sapo_on_policy_is_grpo": "off-policy the gate fades where the clip cuts",
    "tis_with_an_exact_sampler": "a sampler that differs is corrected",
}


@pytest.mark.parametrize("name", NOT_EQUAL)
def test_the_condition_is_needed(name: str) -> None:
    bare = EDGES[name]._replace(on_policy=False, episodes=list, batch=lambda b: b)
    left, right = (result(bare, m, 1, "policy") for m in (bare.left, bare.right))
    assert far(left, right) > 1e-3, NOT_EQUAL[name]


def test_vapo_as_it_is_is_not_ppo() -> None:
    edge = EDGES["vapo_is_ppo"]
    assert far(result(edge, VAPO, 1, "policy"), result(edge, edge.right, 1, "policy")) > 1e-3
