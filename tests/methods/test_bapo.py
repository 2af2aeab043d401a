"""Evidence for bapo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

from typing import Any

import evidence
import pytest
import torch
from hand import answer, batch_of, column, worked
from six_answers import close
from small_batches import slopes

from gruppo.methods.bapo import BalancedClip, ladder, up_to

test_laws = evidence.laws("bapo")
test_asks = evidence.asks("bapo")
test_planted_mistakes = evidence.planted("bapo")
test_equivalences = evidence.equivalences("bapo")
test_resume = evidence.resume("bapo")


VALUE = BalancedClip(clip_low=0.2, clip_low_least=0.05, clip_high_most=0.2, clip_step=0.1, contribution="value")


def test_bapo_card() -> None:
    """Card S040: A = (1, −1, −1), r = (1, .7, .7). By value, good/bad is .625 at c_low = .8, .556 at .9, .526 at .95:
    the published search can only make it worse, so that it ends at .95. By tokens with a gradient both bad ones are
    off at .8 already, and nothing is searched."""
    r_N, adv_N, one_N, low_L = (
        torch.tensor(x, dtype=torch.float64)
        for x in ([1.0, 0.7, 0.7], [1.0, -1.0, -1.0], [1.0, 1.0, 1.0], [0.8, 0.9, 0.95])
    )
    beyond_L = up_to(r_N, (-adv_N).clamp(min=0), low_L, strictly=True)
    close(column(1.0 / (low_L * beyond_L)), [0.625, 1 / 1.8, 1 / 1.9])
    close([float(x) for x in VALUE.bounds(r_N, adv_N, one_N)], [0.95, 1.2])
    live = BalancedClip(clip_low=0.2, clip_low_least=0.05, contribution="live")
    close([float(x) for x in live.bounds(r_N, adv_N, one_N)], [0.8, 1.2])


def test_bapo_searches_upwards_first() -> None:
    """r = 1.48 with A = 1, r = 1, .65, .55 with A = −1. The good token is off at 1.2 to 1.45 (share 0), on from 1.5:
    1.48 / (1.48 + 1.65) = .47; so c_low goes up to .7, where the token of .65 is off: 1.48 / 2.48 = .597 ≥ .5.

    dJ/dlog π = rA of the live ones, over 4 tokens."""
    _, slope, terms = slopes(BalancedClip(), [1.48, 1.0, 0.65, 0.55], [1.0, -1.0, -1.0, -1.0])
    close((terms["bound_low"], terms["bound_high"]), (0.7, 3.0))
    close(slope, [1.48 / 4, -0.25, 0.0, 0.0])


def test_bapo_stops_at_the_first_bound_that_is_enough() -> None:
    """r = 1.48 with A = 1 and r = 1 with A = −1: on at 1.5, share 1.48/2.48."""
    _, slope, terms = slopes(BalancedClip(), [1.48, 1.0], [1.0, -1.0])
    close((terms["bound_low"], terms["bound_high"]), (0.6, 1.5))
    close(slope, [0.74, -0.5])


@pytest.mark.parametrize(
    ("adv", "bounds"),
    [([1.0, 1.0], (0.6, 1.2)), ([-1.0, -1.0], (0.9, 3.0)), ([0.0, 0.0], (0.6, 1.2))],
    ids=["no bad token: no search", "no good token: to the end", "nothing to balance"],
)
def test_bapo_edges(adv: list[float], bounds: tuple[float, float]) -> None:
    terms = slopes(BalancedClip(), [1.1, 0.95], adv)[2]
    close((terms["bound_low"], terms["bound_high"]), bounds)


def test_bapo_counts_learned_tokens_by_their_weight() -> None:
    """Two bad tokens that weigh a quarter each do not outweigh one good one; nor do bad ones that were dropped."""
    occupant, r, adv = BalancedClip(), [1.0, 1.0, 1.0], [1.0, -1.0, -1.0]
    assert slopes(occupant, r, adv)[2]["bound_high"] == 3.0
    assert slopes(occupant, r, adv, weight_N=[1.0, 0.25, 0.25])[2]["bound_high"] == pytest.approx(1.2)
    batch = batch_of([answer(0, "g", 3, 1.0)], logp_old_N=[-1.0] * 3, adv_N=adv)
    batch = batch.with_columns(keep_N=torch.tensor([True, False, True]))
    assert float(worked(occupant, batch, logp_N=[-1.0] * 3)["bound_high"].value[0]) == pytest.approx(1.2)


def test_bapo_ladder_ends_at_its_end() -> None:
    """0.1 + 0.1 + … drifts away from 1; rungs are counted, and the last one is the end, also where no rung meets it."""
    like = torch.zeros(1).double()
    close(column(ladder(0.2, 2.0, 0.05, like)), [0.2 + 0.05 * i for i in range(37)])
    close(column(ladder(0.4, 0.1, 0.2, like)), [0.4, 0.2, 0.1])
    close(column(ladder(0.4, 0.4, 0.2, like)), [0.4])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"contribution": "lives"}, "nearest"),
        ({"clip_step": 0.0}, r"clip_step=0\.0 .*> 0"),
        ({"clip_step": 1e-9}, "never end"),  # rungs for 16 gigabytes
        ({"clip_high_most": 0.1}, "clip_high <= clip_high_most"),
        ({"clip_low_least": 0.5}, "clip_low_least <= clip_low"),
    ],
)
def test_bapo_refuses(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        BalancedClip(**fields)


STEPS = {"clip_low": 0.5, "clip_low_least": 0.25, "clip_high": 0.25, "clip_high_most": 0.5, "clip_step": 0.25}


FIRST, LAST = [0.5, 1.25], [0.75, 1.5]


@pytest.mark.parametrize(
    ("fields", "r", "a", "bounds"),
    [
        ({}, [1.0, 0.5], [1.0, -3.0], LAST),
        ({}, [1.25, 1.0], [1.0, -1.0], FIRST),
        ({"contribution": "value"}, [1.0, 0.5], [1.0, -1.5], FIRST),
        ({}, [1.0, 4.0], [1.0, -1.0], FIRST),
        ({}, [1.0, 3.0], [1.0, -1.0], LAST),
        ({"clip_dual": 0.0}, [1.0, 4.0], [1.0, -1.0], LAST),
        ({"contribution": "value"}, [1.0, 4.0], [1.0, -1.0], LAST),
        ({"clip_low_least": 0.5, "clip_high_most": 0.25}, [1.0, 1.0], [1.0, -9.0], FIRST),
    ],
    ids=[
        "a bad token on the lower bound counts: 1 / 2.5; at 0.75 it is off",
        "a good token on the upper bound counts: 1.25 / 2.25",
        "by value it counts once: 1 / 1.75",
        "beyond the dual clip a bad token has no gradient",
        "on the dual clip it has: 1 / 4",
        "without a dual clip it has: 1 / 5",
        "by value it counts r |A| there: 1 / 5",
        "no way to go",
    ],
)
def test_bapo_bounds_that_are_met_exactly(fields: dict[str, Any], r: list[float], a: list[float], bounds: Any) -> None:
    """c_low of 0.5 and 0.75, c_high of 1.25 and 1.5, until good tokens have a half."""
    tables = (torch.tensor(x, dtype=torch.float64) for x in (r, a, [1.0] * len(r)))
    assert [float(x) for x in BalancedClip(**{**STEPS, **fields}).bounds(*tables)] == bounds


@pytest.mark.parametrize(
    ("r", "a", "clipped"),
    [
        (2.0, 0.5, 1.0),
        (2.0, -0.5, 0.0),
        (2.0, 0.0, 0.0),
        (0.25, -0.5, 1.0),
        (0.25, 0.5, 0.0),
        (0.25, 0.0, 0.0),
        (1.0, 0.5, 0.0),
        (1.0, -0.5, 0.0),
    ],
)
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_bapo_says_which_tokens_the_clip_has_caught(clip: float, r: float, a: float, clipped: float) -> None:
    """Those that it took the gradient from: good ones above, bad ones below; not those on a bound."""
    same = {"clip_low": clip, "clip_low_least": clip, "clip_high": clip, "clip_high_most": clip}
    _, [slope], found = slopes(BalancedClip(**same), [r], [a])
    assert found["clip_fraction"] == clipped and (r == 1.0 or (slope == 0) == (clipped == 1 or a == 0))
