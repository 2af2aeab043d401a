"""What is only told is not learned, and terms that read other answers say so: bapo and clip_cov, thresholds by hand."""

import math
from typing import Any

import pytest
import torch
from hand import answer, batch_of, worked
from six_answers import close

from gruppo.data import Batch
from gruppo.methods.bapo import BalancedClip
from gruppo.methods.clip_cov import ClipCovariance

# What terms count and read: bapo and clip_cov

BAPO_LOGP = [-1.0 + math.log(r) for r in (1.0, 1.3, 0.65, 0.1)]
COV_LOGP = [-0.1, -2.1, -0.1, -2.1]
WHOLE = {
    "bapo": (BalancedClip(), [-1.0] * 4, [1.0, 1.0, -1.0, -1.0], BAPO_LOGP),
    "clip_cov": (
        ClipCovariance(0.9, 2.0, 5.0, 0.2, 0.2),
        [-0.1, -2.1, -0.1 - math.log(1.5), -2.1],
        [2.0, -2.0, 2.0, 0.0],
        COV_LOGP,
    ),
}


def whole(name: str, lengths: list[int]) -> tuple[Any, Batch, list[float]]:
    occupant, old, a, logp = WHOLE[name]
    episodes = [answer(i, "g", n, 1.0) for i, n in enumerate(lengths)]
    return occupant, batch_of(episodes, logp_old_N=old, adv_N=a), logp


@pytest.mark.parametrize(
    ("name", "value"), [("bapo", (1.0 + 1.2 - 0.65 - 0.6) / 4), ("clip_cov", (2.0 + 0.0 + 2.4 + 0.0) / 4)]
)
def test_what_is_only_told_is_not_learned(name: str, value: float) -> None:
    """J is the mean of the clipped objective, and shares and bounds, none of which is 0 here, are no part of it.

    bapo: 1 of 1.65 is enough, so the bounds are 0.6 and 1.2. clip_cov: c = (1.5, 2.5, 1.5, .5), the second is out."""
    occupant, batch, logp = whole(name, [3, 1] if name == "bapo" else [2, 2])
    terms = worked(occupant, batch, logp_N=logp)
    close(sum(float(t.total(batch)) for t in terms.values()), value)
    assert all(float(t.value.sum()) != 0 for t in terms.values())


@pytest.mark.parametrize(
    ("name", "lengths", "other", "moved"),
    [
        ("bapo", [3, 1], [-1.0 + math.log(2.0)], {"policy", "clip_fraction", "bound_low", "bound_high"}),
        ("clip_cov", [2, 2], [-4.1, -4.1], {"policy", "singled_out"}),
    ],
)
def test_a_term_that_reads_other_answers_is_not_additive(
    name: str, lengths: list[int], other: list[float], moved: set[str]
) -> None:
    """Only log π of the second answer changes. A term whose rows of the first answer change by it needs the whole
    optimiser step at once, and must say so."""
    occupant, batch, logp = whole(name, lengths)
    mine = lengths[0]
    before, after = worked(occupant, batch, logp_N=logp), worked(occupant, batch, logp_N=[*logp[:mine], *other])
    read = {n for n, t in before.items() if not torch.allclose(t.value[:mine], after[n].value[:mine])}
    assert read == moved and read == {n for n, t in before.items() if not t.term.additive}
