"""The equivalences of `graph_weighing.py` and `graph_guidance.py` can fail: without its condition none of these holds,
and a method as it is is not what it becomes with a field at its neutral value."""

import pytest
from graph_guidance import GRAPH as GUIDANCE
from graph_weighing import GRAPH as WEIGHING
from test_equivalences import result

from gruppo.lab.laws.same import far
from gruppo.methods import method

EDGES = {e.name: e for e in (*WEIGHING, *GUIDANCE)}
NOT_EQUAL = {
    "adora_of_even_lengths": "a group with a long right answer counts in full",
    "bnpo_of_one_group_is_centred": "with several groups a density is fitted",
    "llds_of_one_update_is_grpo": "off-policy tokens have fallen",
    "kdrl_is_a_token_advantage": "off-policy the ratio and the pull of now matter",
    "chord_of_experts_is_sft": "the policy's own tokens are not imitated",
    "rl_plus_alone_is_dr_grpo_unclipped": "an expert is learned from",
    "rl_plus_alone_on_policy_is_dr_grpo": "off-policy a clip binds",
}
AS_IT_IS = {
    "ngrpo_without_the_virtual_one": "ngrpo",
    "adora_with_factor_1": "adora",
    "forking_tokens_of_all_is_dapo": "forking_tokens",
    "d3s_of_all_is_grpo": "d3s",
    "llds_without_its_coefficient": "llds",
    "kdrl_without_its_coefficient": "kdrl",
    "chord_without_experts_is_grpo": "chord",
}


@pytest.mark.parametrize("name", NOT_EQUAL)
def test_the_condition_is_needed(name: str) -> None:
    bare = EDGES[name]._replace(on_policy=False, episodes=list, batch=lambda b: b)
    left, right = (result(bare, m, 2, "policy") for m in (bare.left, bare.right))
    assert far(left, right) > 1e-3, NOT_EQUAL[name]


@pytest.mark.parametrize("edge", AS_IT_IS)
def test_the_method_as_it_is_is_another(edge: str) -> None:
    """On one of a few batches: a weight of groups, for example, may be 1 for all of a batch."""
    sides = (method(AS_IT_IS[edge]), EDGES[edge].right)
    assert any(far(*(result(EDGES[edge], m, seed, "policy") for m in sides)) > 1e-4 for seed in range(4))
