"""The equivalences of `graph_clips.py` can fail: without its condition, or with another setting, each does not hold."""

import pytest
from graph_clips import BAPO, GPPO, GRAPH, KL_COV, SEARCH
from test_equivalences import result

from gruppo.lab.laws.same import far
from gruppo.methods.bapo import BalancedClip
from gruppo.stages import Method
from gruppo.stages.objective import ClippedSurrogate

EDGES = {e.name: e for e in GRAPH}
NOT_EQUAL = {
    "gppo_on_policy_is_dapo": "off-policy clipped tokens keep a gradient",
    "bapo_on_policy_is_reinforce": "off-policy tokens are clipped",
    "kl_cov_on_policy_is_reinforce": "off-policy the ratio weighs, and some tokens pay",
}


@pytest.mark.parametrize("name", NOT_EQUAL)
def test_the_condition_is_needed(name: str) -> None:
    bare = EDGES[name]._replace(on_policy=False)
    left, right = (result(bare, m, 1, "policy") for m in (bare.left, bare.right))
    assert far(left, right) > 1e-3, NOT_EQUAL[name]


PLAIN = ClippedSurrogate(0.2, 0.28, 10.0, "token")
OTHER = {
    "gppo keeps gradients": (GPPO, GPPO.but(objective=PLAIN)),
    "bapo searches": (BAPO.but(objective=SEARCH), BAPO.but(objective=BalancedClip(positive_share=0.0))),
    "the two ways to count differ": (EDGES["bapo_by_loops"].left, EDGES["bapo_by_value_by_loops"].left),
    "tokens are left out": (EDGES["clip_cov_by_loops"].left, EDGES["clip_cov_of_nothing"].left),
    "tokens pay": (EDGES["kl_cov_by_loops"].left, EDGES["kl_cov_without_price"].left),
    "one token pays": (KL_COV, EDGES["kl_cov_without_price"].left),
}


@pytest.mark.parametrize("what", OTHER)
def test_it_is_not_the_plain_method(what: str) -> None:
    """What the loops repeat really happens in the batches compared: in one of ten, at least."""
    left, right = OTHER[what]
    edge = EDGES["bapo_by_loops"]

    def apart(a: Method, b: Method, seed: int) -> float:
        return far(*(result(edge, m, seed, "policy") for m in (a, b)))

    assert any(apart(left, right, seed) > 1e-4 for seed in range(10)), what
