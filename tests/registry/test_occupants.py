"""The defaults of every occupant are locked: people put occupants together by name, and a default is a number."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gruppo.methods import built_in
from gruppo.stages import Context, Method
from gruppo.stages.check import problems
from gruppo.stages.credit import GroupNormalised
from gruppo.stages.requires import Samples


def script() -> Any:
    path = Path(__file__).parents[2] / "scripts" / "lock_records.py"
    spec = importlib.util.spec_from_file_location("lock_records", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lock = script()
STORED = lock.read(lock.OCCUPANTS)


@pytest.mark.parametrize("name", STORED)
def test_the_defaults_are_the_ones_that_are_stored(name: str) -> None:
    """A record that sets the value itself does not notice; who writes method.credit=gae does."""
    assert lock.defaults().get(name) == STORED[name], "if it is meant, run scripts/lock_records.py and tell the users"


def test_every_occupant_is_stored() -> None:
    assert set(STORED) == set(lock.defaults()), "run scripts/lock_records.py"


def test_what_an_occupant_declares_is_stored() -> None:
    """Columns, requirements without their words, and what a note may be; nothing of an occupant's usual ones."""
    assert STORED["credit.group_normalised"]["is"] == {
        "ignores": ["shift", "scale"], "requires": ["Samples(least=2)"], "writes": ["adv_N"],
    }  # fmt: skip
    assert STORED["select.host_alone"]["is"] == {"reads": ["note_heated_E among (0.0, 1.0)"]}
    assert STORED["reward.agreeing_answers"]["is"]["of_groups"] is True
    assert "OfBatch(name='pairs')" in STORED["credit.pair_up"]["is"]["requires"]
    assert STORED["replay.recent"]["is"] == {"joins": True} and STORED["replay.forget"]["is"]["joins"] is False
    assert "is" not in STORED["curriculum.uniform"]

    @dataclass(frozen=True)
    class Changed(GroupNormalised):
        requires = (Samples(3, "other words"),)

    assert lock.declared(Changed)["requires"] == ["Samples(least=3)"]


# One sample less than it takes: refused in words before the run, by each occupant that compares samples.
COMPARE = {
    "grpo",
    "dapo",
    "rloo",
    "dr_grpo",
    "gspo",
    "disco",
    "gpg",
    "opo",
    "grpo_passk",
    "dpo",
    "reinforce_pp_baseline",
}
ALONE = {"reinforce", "ppo", "vapo", "remax", "reinforce_pp", "sft", "rft", "kto"}


@pytest.mark.parametrize("name", sorted(COMPARE | ALONE))
def test_two_samples_are_enough_and_one_is_not_where_samples_are_compared(name: str) -> None:
    m: Method = built_in()[name]
    few, two = (problems(m, Context(), samples=n) for n in (1, 2))
    assert [p for p in two if p.startswith("samples=")] == []
    assert bool([p for p in few if p.startswith("samples=1")]) == (name in COMPARE), few
