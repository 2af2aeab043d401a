"""The equivalences of `graph_answers.py` can fail: without its condition, or with another setting, each does."""

import pytest
from graph_answers import DMPO, DRPO, GRAPH, REG_PLAIN
from sides import DISCO, GRPO_PLAIN
from test_equivalences import result

from gruppo.lab.laws.same import far
from gruppo.methods.nft import NegativeAware
from gruppo.stages import Method

EDGES = {e.name: e for e in GRAPH}
NOT_EQUAL = {
    "nft_on_policy_is_dr_grpo": "off-policy wrong answers have another slope",
    "nft_on_policy_is_grpo": "off-policy wrong answers have another slope",
    "reg_grpo_far_from_scale": "a baseline answer is in the advantages, and not in the ratios",
}


@pytest.mark.parametrize("name", NOT_EQUAL)
def test_the_condition_is_needed(name: str) -> None:
    edge = EDGES[name]
    bare = edge._replace(on_policy=False, episodes=edge.episodes if name.startswith("nft") else list)
    left, right = (result(bare, m, 1, "policy") for m in (bare.left, bare.right))
    assert far(left, right) > 1e-3, NOT_EQUAL[name]


NFT_RIGHT = EDGES["nft_without_wrong_answers"].left
OTHER: dict[str, tuple[Method, Method]] = {
    "wrong answers are learned from": (NFT_RIGHT, NFT_RIGHT.but(objective=NegativeAware())),
    "the matching is there": (DMPO, GRPO_PLAIN),
    "a regression is no policy gradient": (REG_PLAIN, GRPO_PLAIN),
    "the length matters": (DRPO, DISCO),
}


@pytest.mark.parametrize("what", OTHER)
def test_it_is_another_method(what: str) -> None:
    edge = EDGES["dmpo_without_matching"]
    assert max(far(*(result(edge, m, seed, "policy") for m in OTHER[what])) for seed in range(3)) > 1e-3, what
