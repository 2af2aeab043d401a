"""Worked numbers of gppo, bapo, clip_cov and kl_cov, and their edge cases.

As in `test_golden_methods.py`: what is expected is computed by plain loops over lists, from the formula and its
derivative by hand.
"""

import math
from typing import Any

import pytest
import torch
from hand import answer, batch_of, column, objective, worked
from test_golden_methods import LENGTHS, LOGP, OLD, REWARDS, T, close, group_advantages, hand_batch

from gruppo.methods import method
from gruppo.methods.bapo import BalancedClip, ladder, up_to
from gruppo.methods.clip_cov import ClipCovariance
from gruppo.methods.gppo import GradientPreserving
from gruppo.methods.kl_cov import KlCovariance
from gruppo.pieces.covariance import lowest, singled_out, token_covariance
from gruppo.stages.objective import ClippedSurrogate

ADV = [a for a, n in zip(group_advantages(REWARDS), LENGTHS, strict=True) for _ in range(n)]


def slopes(occupant: Any, ratios: list[float], adv: list[float], **columns: Any) -> tuple[float, list[float], Any]:
    """J, dJ/dlog π and all terms of one answer of so many tokens, each with its ratio and advantage."""
    old = [-1.0 - math.log(r) for r in ratios]
    batch = batch_of([answer(0, "g", len(ratios), 1.0)], logp_old_N=old, adv_N=adv, **columns)
    logp_N = torch.full((len(ratios),), -1.0, dtype=torch.float64, requires_grad=True)
    terms = worked(occupant, batch, logp_N=logp_N)
    total = terms["policy"].total(batch)
    [slope] = torch.autograd.grad(total, logp_N)
    return float(total.detach()), column(slope), {name: float(t.value[0].detach()) for name, t in terms.items()}


# GPPO


@pytest.mark.parametrize(
    ("r", "a", "preserved", "clipped"),
    [
        (2.0, 1.0, 1.28, 0.0),
        (2.0, -1.0, -2.0, -2.0),
        (0.5, -1.0, -0.8, 0.0),
        (0.5, 1.0, 0.5, 0.5),
        (1.1, -1.0, -1.1, -1.1),
        (12.0, -1.0, 0.0, 0.0),
    ],
)
def test_gppo_card(r: float, a: float, preserved: float, clipped: float) -> None:
    """Card S167 (KlearReasoner, compute_gppo_loss): at r = 2 and A = 1 the gradient is 1.28, PPO's is 0; at A = −1
    it is −2. Below the clip a bad token keeps 0.8, beyond the dual clip of 10 it has none. The value is PPO's."""
    value, [slope], _ = slopes(method("gppo").objective[0], [r], [a])
    same, [ppo], _ = slopes(ClippedSurrogate(0.2, 0.28, 10.0, "token"), [r], [a])
    close([value, slope, ppo], [same, preserved, clipped])


def test_gppo() -> None:
    """1/T Σ min(rA, clip(r, .8, 1.28) A); d/dlog π = rA, or the bound times A where the clip binds."""
    value, slope, bound = 0.0, [], 0
    for lp, old, a in zip(LOGP, OLD, ADV, strict=True):
        r = math.exp(lp - old)
        w = min(max(r, 0.8), 1.28)
        binds = w * a < r * a
        bound += binds
        value += min(r * a, w * a) / T
        slope.append((w if binds else r) * a / T)
    assert bound >= 2
    got, found = objective(method("gppo").but(select=()), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(found["logp_N"], slope)


def test_gppo_counts_what_met_a_bound() -> None:
    occupant = GradientPreserving()
    assert [slopes(occupant, [r], [a])[2]["gradient_bounded"] for r, a in ((2.0, 1.0), (2.0, -1.0), (0.5, -1.0))] == [
        1.0,
        0.0,
        1.0,
    ]


# BAPO

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


# Clip-Cov and KL-Cov


def test_covariance_card() -> None:
    """Card S029: A = (1, −1), log π = (−.1, −2.1): means 0 and −1.1, so c = (1, 1). A row outside says nothing."""
    adv_N, logp_N = (torch.tensor(x, dtype=torch.float64) for x in ([1.0, -1.0, 9.0], [-0.1, -2.1, float("nan")]))
    close(column(token_covariance(adv_N, logp_N, torch.tensor([True, True, False]))), [1.0, 1.0, 0.0])
    close(column(token_covariance(adv_N, logp_N, torch.zeros(3, dtype=torch.bool))), [0.0, 0.0, 0.0])


def test_the_lowest_rows() -> None:
    """The smallest keys first, of equal ones by the second key; never one outside, and all if there are fewer."""
    key, luck = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0]), torch.tensor([0.1, 0.9, 0.2, 0.5, 0.0])
    where = torch.tensor([True, True, True, True, False])
    assert [lowest(key, luck, where, n).tolist() for n in (0, 1, 2, 9)] == [
        [False] * 5,
        [False, False, True, False, False],
        [False, False, True, True, False],
        [True, True, True, True, False],
    ]
    assert [singled_out(share, where) for share in (0.0, 1e-6, 0.5, 1.0)] == [0, 1, 2, 4]


COV_R, COV_ADV = [1.0, 1.0, 1.5, 1.0], [2.0, -2.0, 2.0, 0.0]


def cov_slopes(occupant: Any) -> list[float]:
    """dJ/dlog π of four tokens with log π = −.1, −2.1, −.1, −2.1: means .5 and −1.1, so c = (1.5, 2.5, 1.5, .5)."""
    logp = [-0.1, -2.1, -0.1, -2.1]
    old = [lp - math.log(r) for lp, r in zip(logp, COV_R, strict=True)]
    batch = batch_of([answer(0, "g", 4, 1.0)], logp_old_N=old, adv_N=COV_ADV)
    logp_N = torch.tensor(logp, dtype=torch.float64, requires_grad=True)
    policy = worked(occupant, batch, logp_N=logp_N)["policy"]
    return column(torch.autograd.grad(policy.total(batch), logp_N)[0])


@pytest.mark.parametrize(
    ("low", "high", "share", "slope"),
    [
        (1.0, 2.0, 0.9, [0.0, -0.5, 0.0, 0.0]),
        (2.0, 5.0, 0.9, [0.5, 0.0, 0.0, 0.0]),
        (2.5, 5.0, 0.9, [0.5, -0.5, 0.0, 0.0]),
        (1.0, 5.0, 0.0, [0.5, -0.5, 0.0, 0.0]),
    ],
    ids=["the first; the third is clipped already", "the second", "the band is open", "a share of 0 is none"],
)
def test_clip_cov_leaves_out_of_the_numerator_only(low: float, high: float, share: float, slope: list[float]) -> None:
    """Clip .2/.2: r = 1.5 with A > 0 has no gradient anyhow. The others have A r / 4, or 0 if left out; 4 stays."""
    close(cov_slopes(ClipCovariance(share, low, high, 0.2, 0.2)), slope)


def test_clip_cov_takes_one_at_least() -> None:
    """2e-4 of four tokens is less than one: one of the two candidates is out, which one is the key's affair."""
    slope = cov_slopes(ClipCovariance(2e-4, 1.0, 5.0, 0.2, 0.2))
    assert sorted(x == 0 for x in slope) == [False, True, True, True]


def test_kl_cov_holds_the_largest() -> None:
    """No clip: A r / 4. Those with the largest c pay 3 |log π − log π_old|: first the second token (c = 2.5), which has
    not moved and pays nothing; of three also the third, which has moved up and is pulled back by 3/4."""
    free = [0.5, -0.5, 0.75, 0.0]
    close(cov_slopes(KlCovariance(chosen_share=0.0, trust_coef=3.0)), free)
    close(cov_slopes(KlCovariance(chosen_share=0.25, trust_coef=3.0)), free)
    close(cov_slopes(KlCovariance(chosen_share=0.75, trust_coef=3.0)), [0.5, -0.5, 0.0, 0.0])


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_equal_rewards_have_no_covariance(name: str) -> None:
    """Card S029: a constant advantage has c = 0. So nothing is a candidate of Clip-Cov, and nothing is learned."""
    batch = batch_of([answer(i, "g", 2, 1.0) for i in range(3)], logp_old_N=[-1.0] * 6)
    value, slope = objective(method(name).but(select=()), batch, logp_N=[-1.0] * 6)
    assert value == 0.0 and slope["logp_N"] == [0.0] * 6
