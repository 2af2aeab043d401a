"""The equivalences of `graph_paths.py` can fail: without its condition, each of these does not hold."""

import pytest
from graph_paths import GRAPH
from test_equivalences import result

from gruppo.lab.laws.same import far

EDGES = {e.name: e for e in GRAPH}
NOT_EQUAL = {
    "oprl_at_the_old_policy_is_rloo": "a second model that differs pays steps",
    "s_grpo_of_one_right_answer": "later right answers are worth less",
    "t_ppo_of_finished_answers_is_ppo": "PPO does not learn from open answers",
    "spo_segment_unsure_of_all": "tokens that the policy was sure of are masked",
}


@pytest.mark.parametrize("name", NOT_EQUAL)
def test_the_condition_is_needed(name: str) -> None:
    bare = EDGES[name]._replace(on_policy=False, episodes=list, batch=lambda b: b)
    left, right = (result(bare, m, 1, "policy") for m in (bare.left, bare.right))
    assert far(left, right) > 1e-3, NOT_EQUAL[name]
