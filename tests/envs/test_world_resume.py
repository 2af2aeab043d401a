"""Every method for agents resumes bit for bit in a world: two steps, then a third from the checkpoint.

archer does in tests/methods/test_archer.py.
"""

from pathlib import Path

import evidence
import pytest

GAMES = dict.fromkeys(("drmas", "mars", "spiral"), "kuhn")  # they tell seats apart
WORLDS = dict.fromkeys(
    (
        "gigpo", "hgpo", "salt", "poad", "igpo_gain", "rlvmr", "ufo", "scalinginter", "arpo_agentic", "memact",
        "simpletir", "loop", "spear", "arpo_replay", "oprl",
    ),
    "guess",
) | GAMES | {"otc": "calculator"}  # fmt: skip
FEW = ("prompts=2", "samples=4", "model=tiny-agent")


@pytest.mark.parametrize("name", WORLDS)
def test_it_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    few = ("prompts=1", "samples=2") if name == "ufo" else ()  # it has many turns
    evidence.resumed(name, tmp_path, f"task={WORLDS[name]}", *FEW, *few)


def test_a_tree_of_tokens_is_refused_in_a_world(tmp_path: Path) -> None:
    """latr branches within one answer, so its resume is tested there."""
    with pytest.raises(ValueError, match=r"a tree of tokens is that of one answer.*method=arpo_agentic"):
        evidence.resumed("latr", tmp_path, "task=guess", *FEW)
