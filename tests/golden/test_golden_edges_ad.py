"""Edges of the methods from a to d: thresholds that are met exactly, batches with nothing in them, and what a term
counts and reads."""

import math
from typing import Any

import pytest
import torch
from drawing import bench, rolled, task
from hand import Status, Use, answer, batch_of, column, worked
from test_golden_clips import cov_slopes, slopes
from test_golden_components import said
from test_golden_draws import TASKS, heated, in_turn, uses
from test_golden_methods import close
from test_golden_selection import kept
from test_golden_weighing import FAILED, adv, group, rates

from gruppo.data import Batch, Source
from gruppo.methods import method
from gruppo.methods.adora import LongerIsRight
from gruppo.methods.aepo import AEPO, WithHeated
from gruppo.methods.bapo import BalancedClip
from gruppo.methods.bnpo import BetaNormalised
from gruppo.methods.chord import WithExperts
from gruppo.methods.clip_cov import ClipCovariance
from gruppo.methods.copo import InsideAndBetween, TwoSurrogates
from gruppo.methods.d3s import DownSample
from gruppo.stages import Context, Memory
from gruppo.stages.check import check_first_batch

# adora


def test_adora_at_the_bar() -> None:
    """An answer of exactly 0.5 is wrong: alone with a 0 there is no right one (λ), however long it is; and its length
    is in the mean of the wrong ones, 5 = (9 + 1)/2, which a right one of 3 tokens does not reach (λ)."""
    none, one = group([0.5, 0.0], [9, 1]), group([1.0, 0.5, 0.0], [3, 9, 1])
    for episodes in (none, one):
        close(adv(LongerIsRight(), episodes), [0.1 * a for a in adv(method("grpo").credit, episodes)])


def test_adora_without_a_right_or_a_counted_wrong_answer() -> None:
    """Wrong and truncated only: λ, since there is no right one. Right and truncated only: 1."""
    cut = [answer(i, "g", 2, r, status=Status.TRUNCATED) for i, r in enumerate((0.1, 0.3))]
    close(adv(LongerIsRight(), cut), [0.1 * a for a in adv(method("grpo").credit, cut)])
    right = [answer(2, "g", 1, 1.0), *cut]
    close(adv(LongerIsRight(), right), adv(method("grpo").credit, right))


# aepo


def test_aepo_half_as_many_where_entropy_is_high() -> None:
    """Three answers are better; of at most two a half is one, of all three too; below the target there are two."""
    assert [uses(heated(h, most=2)[0])[2] for h in (0.6, 0.4)] == [1, 2]


def test_aepo_compares_what_was_judged() -> None:
    """Of (right, wrong, not a number, failed with a reward) the first is better than the second; the others are in no
    mean, and nobody imitates them."""

    def worth(e: Any) -> float:
        if e.text == "f":
            e.status = Status.TIMEOUT
        return {"1": 1.0, "0": 0.0, "n": math.nan, "f": 9.0}[e.text]

    m = AEPO.but(rollout=WithHeated(share=1.0))
    episodes = rolled(m, bench(m, in_turn("1", "0", "n", "f"), worth, memory=Memory(entropy=0.1)), TASKS)
    assert [e.text for e in episodes if e.use == Use.APART] == ["1"] * 3


def test_aepo_what_is_better() -> None:
    """One right of two is 1/√2 deviations (with n − 1) above the mean. Who is equal to all is not better, by 0 either;
    nor is one alone."""

    def better(samples: int, min_adv: float, *texts: str) -> int:
        m = AEPO.but(rollout=WithHeated(share=1.0, min_adv=min_adv))
        ctx = bench(m, in_turn(*texts), lambda e: float(e.text == "1"), memory=Memory(entropy=0.1))
        return uses(rolled(m, ctx, TASKS, samples))[2]

    assert [better(2, x, "1", "0") for x in (0.70, 0.71, 0.9)] == [3, 0, 0]
    assert better(4, 0.0, "1") == better(1, 0.0, "1") == 0


def test_aepo_draws_prompts_anew_in_every_round() -> None:
    m = AEPO.but(rollout=WithHeated(share=0.5))

    def again(round: int) -> set[str]:
        ctx = bench(m, in_turn("1", "0"), lambda e: float(e.text == "1"), round=round)
        return {e.group for e in rolled(m, ctx, [task(i) for i in range(20)], 2) if e.use != Use.LEARN}

    assert again(0) == again(0) != again(1)


def test_aepo_without_heat_draws_at_one() -> None:
    _, ctx = heated(0.4, heat=0.0)
    assert {r.temperature for r in ctx.engine.heard} == {1.0} and len(ctx.engine.heard) == 24


# bapo

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


def test_clip_cov_the_band_is_open_above() -> None:
    """c = (1.5, 2.5, 1.5, .5): with cov_high = 2.5 the second is no candidate."""
    close(cov_slopes(ClipCovariance(0.9, 1.0, 2.5, 0.2, 0.2)), [0.0, -0.5, 0.0, 0.0])


# bnpo


def test_bnpo_rates_that_hardly_differ() -> None:
    """.5 and .50001 differ: α and β by their moments. .3 and .3 + 1e-10 are one rate that was rounded: α = β = 1."""
    shape = BetaNormalised().shape
    m, v = 0.500005, 0.5e-10
    near = [1 + (m * (1 - m) / v - 1) * x / 3 for x in (m, 1 - m)]
    got = [float(x) for x in shape(torch.tensor([0.5, 0.50001], dtype=torch.float64))]
    assert got == pytest.approx(near, rel=1e-6)
    assert [float(x) for x in shape(torch.tensor([0.3, 0.3 + 1e-10], dtype=torch.float64))] == [1.0, 1.0]


def test_bnpo_a_reward_that_is_rounded_up() -> None:
    """A reward of 1 + 5e-10 is a 1 that was rounded: it is not refused, and its group's rate counts as 1, so that the
    logarithm of 1 − p is none of a negative number."""
    episodes = [*rates(1, 2), *group([1.0 + 5e-10, 1.0], name="top", first=90)]
    check_first_batch(method("bnpo"), batch_of(episodes))
    got = adv(BetaNormalised(), episodes)
    assert all(map(math.isfinite, got)) and got[-2] == pytest.approx(-got[-1]) and got[-2] > 0


def test_bnpo_nobody_was_paid() -> None:
    assert adv(BetaNormalised(), [answer(i, "g", 1, None, **FAILED) for i in range(2)]) == [0.0, 0.0]


# chord


def test_chord_experts_are_drawn_by_prompt() -> None:
    """Of three prompts, with a share of a half, now and then one or two have an expert."""

    def experts(share: float, seed: int) -> int:
        m = method("chord").but(rollout=WithExperts(expert_share=share))
        made = rolled(m, bench(m, in_turn("1"), lambda e: 1.0, seed=seed), TASKS, 2)
        return sum(e.source == Source.EXPERT for e in made)

    assert {experts(0.5, seed) for seed in range(8)} & {1, 2}
    assert {experts(1.0, seed) for seed in range(3)} == {3}


# copo


def test_copo_both_advantages_have_the_same_eps() -> None:
    """A = ±.5 / (√.5 + 1) inside; between groups of mean 1/2 and 0: ±.25 / (√.125 + 1)."""
    credit = InsideAndBetween(eps=1.0)
    batch = batch_of([*said(["7", "8"], [1, 0]), *said(["9", "9"], [0, 0], "h", 2)])
    got = credit(Context(), batch)
    a, b = 0.5 / (math.sqrt(0.5) + 1), 0.25 / (math.sqrt(0.125) + 1)
    close(column(got["adv_N"]), [a, -a, 0.0, 0.0])
    close(column(got["adv_global_N"]), [b, b, -b, -b])


def test_copo_counts_the_clip_of_either_surrogate_by_its_weight() -> None:
    """w = .25 and r = 1.5: caught inside, between, both, and neither (bad tokens are not caught above)."""
    old = [-1.0 - math.log(1.5)] * 4
    columns = {"adv_N": [1, -1, 1, -1], "adv_global_N": [-1, 1, 1, -1], "local_N": [0.25] * 4}
    batch = batch_of([answer(0, "g", 4, 1.0)], logp_old_N=old, **columns)
    terms = worked(TwoSurrogates(), batch, logp_N=[-1.0] * 4)
    close(column(terms["clip_fraction"].value), [0.25, 0.75, 1.0, 0.0])


# d3s


def test_d3s_an_answer_is_worth_what_is_learned_of_it() -> None:
    """Advantages of 1, −1 and 0: the first two differ most. The third has a token of 9 that was dropped before."""
    episodes = group([1.0, 0.0, 0.5], 2)
    batch = batch_of(episodes, adv_N=[1.0, 1.0, -1.0, -1.0, 0.0, 9.0], entropy_old_N=[1.0] * 6)
    batch = batch.with_columns(keep_N=torch.tensor([True] * 5 + [False]))
    assert kept(DownSample(0.5, 0.5, 1.0, 1.0, 1.0), batch) == [True] * 4 + [False] * 2
