"""Every method that the laboratory can do trains in an exact world."""

from pathlib import Path

import pytest
import torch
from sweeps import fourth

from gruppo.lab.exact.groups import Unlike
from gruppo.lab.tabular import Setup, World, train_exact
from gruppo.methods import all_methods
from gruppo.stages.check import least_samples

SETUP = Setup(World(prompts=6, answers=9, depth=2, right=3), steps=3, prompts=4, samples=4, every=1)
PAGE = (Path(__file__).parents[2] / "docs" / "lab.md").read_text(encoding="utf-8")
NOT_DONE = {"archer": "several outputs", "latr": "steers the engine"}
LATER = {"vapo": 12, "t_ppo": 6}  # steps: the critic learns first, or an answer has several windows


def test_they_are_those_that_the_laboratory_cannot_do() -> None:
    rows = [line for line in PAGE.splitlines() if "not done:" in line]
    assert {line.split("]")[0].removeprefix("| [") for line in rows} == set(NOT_DONE)


@pytest.mark.parametrize("name", fourth(all_methods(), first=1, always=(*NOT_DONE, *LATER)))
def test_a_method_trains(name: str) -> None:
    m = all_methods()[name]
    samples = max(SETUP.samples, least_samples(m))
    if name in NOT_DONE:
        with pytest.raises(Unlike, match=NOT_DONE[name]):
            train_exact(m, SETUP, seeds=2, samples=samples)
        return
    done = train_exact(m, SETUP, seeds=2, samples=samples, lr=0.05, steps=LATER.get(name, 3))
    assert bool(torch.isfinite(done.theta).all()) and done.theta.dtype == torch.float64
    assert done.of("reward").shape == (LATER.get(name, 3) + 1, 2)
    moved = done.last("kl_start")
    assert bool((moved > 1e-9).all()) and moved[0] != moved[1]
