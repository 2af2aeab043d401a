"""Every method for agents resumes bit for bit in a world: two steps, then a third from the checkpoint."""

from pathlib import Path

import evidence
import pytest
from evidence import WORLDS, keeps_nothing_more

from gruppo.methods import method

FEW = ("prompts=2", "samples=4", "model=tiny-agent")
MANY = ("ufo", "archer")  # many turns, many optimiser steps a step


# Of those that keep nothing more than their base, gigpo stands for all: between two steps they are the same run.
ALIKE = [name for name in WORLDS if name != "gigpo" and keeps_nothing_more(method(name))]
NAMES = [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in WORLDS]


@pytest.mark.parametrize("name", NAMES)
def test_it_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    few = ("prompts=1", "samples=2") if name in MANY else ()
    evidence.resumed(name, tmp_path, f"task={WORLDS[name]}", *FEW, *few)


def test_a_tree_of_tokens_is_refused_in_a_world(tmp_path: Path) -> None:
    """latr branches within one answer, so its resume is tested there."""
    with pytest.raises(ValueError, match=r"a tree of tokens is that of one answer.*method=arpo_agentic"):
        evidence.resumed("latr", tmp_path, "task=guess", *FEW)
