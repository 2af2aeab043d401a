"""Equivalences of the methods that go back to an episode, or branch off one: spear."""

from dataclasses import replace

from sides import Equivalence

from gruppo.data import Episode
from gruppo.methods import method
from gruppo.methods.spear import NowAndThen
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.replay import Forget

SPEAR, DR_GRPO = method("spear"), method("dr_grpo")
BARE = {"reward": (), "select": (), "replay": Forget()}
NONE = {"share": 0.0, "low": 1.0, "high": 5.0}
LENGTH = "sequence_sum/max_tokens"


def fresh(episodes: list[Episode]) -> list[Episode]:
    return [replace(e, replayed=False) for e in episodes]


GRAPH = [
    Equivalence(
        "spear_without_a_past",
        SPEAR.but(
            name="spear, nothing left out",
            objective=NowAndThen(left_out=NONE),
            **BARE,
        ),
        DR_GRPO.but(name="dr_grpo, clips of dapo", objective=ClippedSurrogate(0.2, 0.28, mean=LENGTH)),
        "Nothing is remembered, no token is left out, no turn is paid for.",
        episodes=fresh,
    ),
]
