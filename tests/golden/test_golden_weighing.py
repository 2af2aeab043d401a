"""Worked numbers of ngrpo, adora, bnpo and g2rpo, whose difference is how a group's rewards become advantages.

Numbers marked "card" were worked from the authors' code or the paper's figure; the others are plain sums here.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hand import Status, Use, answer, batch_of, column, mean, sample_std

from gruppo.data import Batch, Episode
from gruppo.lab.laws import verdict
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.methods.adora import LongerIsRight
from gruppo.methods.bnpo import BetaNormalised, log_beta_density
from gruppo.methods.g2rpo import EntropyBand, RankQuantiles, TrapezoidLength
from gruppo.methods.ngrpo import DropSolvedGroups, VirtualBest
from gruppo.stages import Context, Sampling
from gruppo.stages.check import check_first_batch


def group(rewards: Sequence[float | None], tokens: Any = 1, name: str = "g", first: int = 0) -> list[Episode]:
    lengths = [tokens] * len(rewards) if isinstance(tokens, int) else tokens
    return [answer(first + i, name, n, r) for i, (r, n) in enumerate(zip(rewards, lengths, strict=True))]


def adv(credit: Any, episodes: Sequence[Episode]) -> list[float]:
    """One advantage an answer."""
    batch = batch_of(list(episodes))
    return column(batch.gather(credit(Context(), batch)["adv_N"], "N", "E", "mean"))


def close(a: object, b: object, tol: float = 1e-12) -> None:
    assert a == pytest.approx(b, abs=tol, rel=0)


FAILED = {"status": Status.ENV_ERROR}


# ngrpo


def test_ngrpo_all_wrong() -> None:
    """Card: eight answers of 0 and one virtual 1: mean 1/9, deviation 1/3, A = −1/3 each."""
    close(adv(VirtualBest(eps=0.0), group([0.0] * 8)), [-1 / 3] * 8)
    close(adv(VirtualBest(), group([0.0] * 8)), [-1 / 9 / (1 / 3 + 1e-6)] * 8)


def test_ngrpo_one_right_of_eight() -> None:
    """Card: +1.764 and −0.504, where GRPO has +2.475 and −0.354."""
    got = adv(VirtualBest(), group([1.0] + [0.0] * 7))
    assert [round(a, 3) for a in got] == [1.764] + [-0.504] * 7
    grpo = adv(method("grpo").credit, group([1.0] + [0.0] * 7))
    assert [round(a, 3) for a in grpo[:2]] == [2.475, -0.354]


@pytest.mark.parametrize("copies", [1, 3])
def test_ngrpo_by_hand(copies: int) -> None:
    rewards, top = [0.2, 0.9, 0.4], 1.5
    seen = [*rewards, *[top] * copies]
    want = [(r - mean(seen)) / (sample_std(seen) + 1e-6) for r in rewards]
    close(adv(VirtualBest(top_reward=top, copies=copies), group(rewards)), want)


def test_ngrpo_edges() -> None:
    """All right: exactly 0, also at a highest reward that is rounded. One alone: by the rule. Failed: out. No copy:
    GRPO, and equal rewards are exactly 0."""
    assert adv(VirtualBest(top_reward=0.7), group([0.7] * 3)) == [0.0] * 3
    assert adv(VirtualBest(copies=0), group([0.7] * 3)) == [0.0] * 3
    close(adv(VirtualBest(eps=0.0), group([0.0])), [-math.sqrt(0.5)])
    assert adv(VirtualBest(), group([1.0])) == [0.0]
    with_failure = [*group([0.0] * 8), answer(8, "g", 1, 1.0, **FAILED), answer(9, "h", 1, None, **FAILED)]
    close(adv(VirtualBest(eps=0.0), with_failure), [-1 / 3] * 8 + [0.0, 0.0])
    ragged = [*group([0.0] * 8), *group([0.0], name="h", first=8)]
    close(adv(VirtualBest(eps=0.0), ragged), [-1 / 3] * 8 + [-math.sqrt(0.5)])
    with pytest.raises(ValueError, match="copies=-1"):
        VirtualBest(copies=-1)


def test_ngrpo_drops_what_is_solved() -> None:
    """By the task's reward, not by the shaped sum; a failed answer and one apart say nothing."""
    a, b, c = group([1.0, 1.0], name="a"), group([1.0, 0.0], name="b", first=2), group([0.0, 0.0], name="c", first=4)
    a[0].reward["overlong"] = -0.5
    more = [answer(6, "a", 1, 0.0, **FAILED), answer(7, "a", 1, 0.0, use=Use.APART), answer(8, "d", 1, None, **FAILED)]
    keep, again = DropSolvedGroups().episodes(Context(), [*a, *b, *c, *more])
    assert keep == [False, False, True, True, True, True, False, False, True] and again == []


# adora


@pytest.mark.parametrize(("right", "factor"), [(300, 0.1), (800, 1.0), (600, 0.1)])
def test_adora_weighs_a_group(right: int, factor: float) -> None:
    """Card: wrong answers of 500 and 700 tokens, so 600 in the mean; a right one must be longer than that."""
    got = adv(LongerIsRight(), group([1.0, 0.0, 0.0], [right, 500, 700]))
    plain = adv(method("grpo").credit, group([1.0, 0.0, 0.0]))
    close(got, [factor * a for a in plain])


def test_adora_edges() -> None:
    """No right one: λ; no wrong one: 1; truncated wrong ones are not counted, nor tokens that the policy did not
    write, nor failed answers; the bar itself is not right."""
    shaped = [0.1, 0.3]
    plain = adv(method("grpo").credit, group(shaped))
    close(adv(LongerIsRight(), group(shaped)), [0.1 * a for a in plain])
    close(adv(LongerIsRight(threshold=0.05), group(shaped)), plain)
    close(adv(LongerIsRight(threshold=0.3), group(shaped)), [0.1 * a for a in plain])
    cut = [*group([1.0, 0.0], [3, 2]), answer(2, "g", 9, 0.0, status=Status.TRUNCATED)]
    close(adv(LongerIsRight(), cut), adv(method("grpo").credit, cut))
    lost = [*group([1.0, 0.0], [3, 2]), answer(2, "g", 9, 0.0, **FAILED)]
    close(adv(LongerIsRight(), lost), [*adv(method("grpo").credit, lost[:2]), 0.0])
    assert adv(LongerIsRight(), group([0.7] * 3)) == [0.0] * 3 and adv(LongerIsRight(), group([1.0])) == [0.0]


def test_adora_weighs_each_group_alone() -> None:
    two = [*group([1.0, 0.0], [3, 2], "a"), *group([1.0, 0.0], [2, 3], "b", first=2)]
    half = math.sqrt(0.5)
    close(adv(LongerIsRight(), two), [half, -half, 0.1 * half, -0.1 * half], 1e-5)


# bnpo


def rates(*of_four: int, first: int = 0) -> list[Episode]:
    """Groups of four with so many right answers."""
    groups = [[1.0] * right + [0.0] * (4 - right) for right in of_four]
    return [e for i, g in enumerate(groups) for e in group(g, name=f"g{i}", first=first + 4 * i)]


def test_bnpo_two_prompts() -> None:
    """Card: rates .25 and .75: α = β = 7/6, B = .72286, f = 1.0466, weight .9555; +.7166 and −.2389."""
    got = adv(BetaNormalised(), rates(1, 3))
    assert [round(a, 4) for a in got[:2]] == [0.7166, -0.2389]
    close(got, [*got[:1], *[got[1]] * 3, *[-got[1]] * 3, -got[0]])
    alpha, beta = BetaNormalised().shape(torch.tensor([0.25, 0.75], dtype=torch.float64))
    close([float(alpha), float(beta)], [7 / 6, 7 / 6])
    log_b = 2 * math.lgamma(7 / 6) - math.lgamma(7 / 3)
    close(math.exp(log_b), 0.72286, 5e-6)
    close(got[0], 0.75 / (0.1875 ** (1 / 6) / math.exp(log_b)))


def test_bnpo_density() -> None:
    """(1, 1) is flat; (3/2, 3/2) is 8/π √(p (1 − p)); at the ends 0 log 0 is 0, and a density of 0 is no NaN."""
    p = torch.tensor([0.0, 0.2, 0.5, 1.0], dtype=torch.float64)

    def density(a: float, b: float) -> list[float]:
        return log_beta_density(p, torch.tensor(a).double(), torch.tensor(b).double()).exp().tolist()

    close(density(1.0, 1.0), [1.0] * 4)
    close(density(1.5, 1.5), [8 / math.pi * math.sqrt(x * (1 - x)) for x in p.tolist()])
    close(density(1.0, 2.0), [2 * (1 - x) for x in p.tolist()])


def test_bnpo_edges() -> None:
    """Rates that are all the same, and one group, are centred; all right and all wrong are exactly 0 beside others;
    one alone is 0; failed answers are out; the weight has a cap."""
    close(adv(BetaNormalised(), rates(1, 1)), [0.75, -0.25, -0.25, -0.25] * 2)
    close(adv(BetaNormalised(), rates(3)), [0.25, 0.25, 0.25, -0.75])
    assert adv(BetaNormalised(), rates(0, 4, 1, 1, 1))[:8] == [0.0] * 8
    assert adv(BetaNormalised(), [*rates(1, 3), *group([1.0], name="one", first=90)])[-1] == 0.0
    failed = [answer(90, "g0", 1, 1.0, **FAILED), answer(91, "lost", 1, None, **FAILED)]
    close(adv(BetaNormalised(), [*rates(1, 3), *failed]), [*adv(BetaNormalised(), rates(1, 3)), 0.0, 0.0])
    close(adv(BetaNormalised(cap=0.5), rates(1, 3))[:2], [0.375, -0.125])
    assert adv(BetaNormalised(), group([0.7] * 3)) == [0.0] * 3


def test_bnpo_other_scales() -> None:
    """Rewards of −1 and 1 with these ends are rewards of 0 and 1; outside the ends the first batch is refused."""
    doubled = rates(1, 3)
    for e in doubled:
        e.reward["task"] = 2 * e.reward["task"] - 1
    scaled = BetaNormalised(reward_low=-1.0, reward_high=1.0)
    close(adv(scaled, doubled), adv(BetaNormalised(), rates(1, 3)))
    m = method("bnpo")
    check_first_batch(m.but(credit=scaled), batch_of(doubled))
    with pytest.raises(
        ValueError, match=r"beta_normalised in credit cannot learn from the first batch: a reward is -1"
    ):
        check_first_batch(m, batch_of(doubled))
    with pytest.raises(ValueError, match="no reward lies between"):
        BetaNormalised(reward_low=1.0)


# g2rpo

FIGURE_2 = [
    ([0, 0, 0, 0, 1], [-0.32] * 4 + [1.28]),
    ([0, 0, 1, 1, 1], [-0.90] * 2 + [0.60] * 3),
    ([0.1, 0.1, 0.1, 0.2, 1], [-0.60] * 3 + [0.52, 1.28]),
    ([0.81, 0.81, 0.82, 0.82, 0.83], [-0.90, -0.90, 0.26, 0.26, 1.28]),
]


@pytest.mark.parametrize(("rewards", "want"), FIGURE_2)
def test_g2rpo_figure_2(rewards: list[float], want: list[float]) -> None:
    """The paper's figure, from the card; forwards and backwards."""
    got = adv(RankQuantiles(), group(rewards))
    assert [round(a, 2) for a in got] == pytest.approx(want, abs=1e-9)
    close(adv(RankQuantiles(), group(rewards[::-1])), got[::-1])
    close(math.fsum(got), 0.0)


def test_g2rpo_quantiles() -> None:
    """Card: the quantiles of five; at most 1.534 of eight; ±.6745 of two, whatever the rewards are."""
    close(adv(RankQuantiles(), group([5, 1, 3, 2, 4])), [1.2816, -1.2816, 0.0, -0.5244, 0.5244], 5e-5)
    assert round(max(adv(RankQuantiles(), group(list(range(8))))), 3) == 1.534
    close(adv(RankQuantiles(), group([0.0, 1000.0])), [-0.67449, 0.67449], 5e-6)


def test_g2rpo_only_the_order_counts() -> None:
    rewards = [0.3, -2.0, 0.1 + 0.2, 7.0, 0.5]  # 0.3 and 0.1 + 0.2 are one reward, rounded
    got = adv(RankQuantiles(), group(rewards))
    assert got[0] == got[2]
    close(adv(RankQuantiles(), group([math.exp(round(r, 12)) for r in rewards])), got)
    close(adv(RankQuantiles(), group([*rewards[:3], 7000.0, 0.5])), got)


def test_g2rpo_edges() -> None:
    """Equal: exactly 0. One: 0. Failed: out. Groups of other sizes, and scattered, have their own ranks."""
    assert adv(RankQuantiles(), group([0.7] * 6)) == [0.0] * 6 and adv(RankQuantiles(), group([3.0])) == [0.0]
    a, b = group([0, 0, 0, 0, 1], name="a"), group([2.0, 1.0], name="b", first=5)
    failed = answer(9, "a", 1, 1.0, **FAILED)
    mixed = [b[0], *a[:2], failed, *a[2:], b[1]]
    one, two = adv(RankQuantiles(), a), adv(RankQuantiles(), b)
    close(adv(RankQuantiles(), mixed), [two[0], *one[:2], 0.0, *one[2:], two[1]])


def test_g2rpo_length_reward() -> None:
    """0 up to 10 %, 1 from 20 % to 50 %, 0 from 100 % of ten tokens on."""
    reward = TrapezoidLength(zero_below=0.1, full_from=0.2, full_to=0.5, zero_above=1.0)
    ctx = Context(sampling=Sampling(max_tokens=20))
    got = reward(ctx, group([0.0] * 7, [1, 2, 3, 4, 10, 15, 20]))
    assert list(got) == ["length"]
    close(np.asarray(got["length"]).tolist(), [0.0, 0.0, 0.5, 1.0, 1.0, 0.5, 0.0])
    with pytest.raises(ValueError, match="does not rise and fall"):
        TrapezoidLength(full_to=1.0)


def banded(band: EntropyBand, entropy: list[float]) -> tuple[float, list[float]]:
    episodes = [*group([1.0, 0.0], [2, 1]), answer(2, "g", 1, None, **FAILED)]
    world = World(method("g2rpo").but(penalties=band), 0)
    ready: Batch = world.prepared(batch_of(episodes, logp_old_N=[-1.0] * 4))
    stats = {"logp_N": torch.full((4,), -1.0).double(), "entropy_N": torch.tensor(entropy, dtype=torch.float64)}
    zero = {**stats, "entropy_N": torch.full((4,), 0.5).double()}  # inside the band
    value = float(world.value(ready, stats) - world.value(ready, zero))
    return value, world.slopes(ready, stats)["entropy_N"].tolist()


def test_g2rpo_entropy_band() -> None:
    """Mean entropy of the three tokens of answers that did not fail; above, inside and below the band."""
    band = EntropyBand(band_coef=0.3, entropy_low=0.2, entropy_high=1.0)
    value, slope = banded(band, [1.0, 2.0, 3.0, 50.0])
    close([value, *slope], [-0.3 * 1.0, -0.1, -0.1, -0.1, 0.0])
    value, slope = banded(band, [0.1, 0.0, 0.2, 50.0])
    close([value, *slope], [-0.3 * 0.1, 0.1, 0.1, 0.1, 0.0])
    value, slope = banded(band, [0.1, 0.9, 0.5, 50.0])
    close([value, *slope], [0.0] * 5)

    with pytest.raises(ValueError, match="the band is empty"):
        EntropyBand(entropy_low=2.0)


@pytest.mark.parametrize("law", ["schedules", "micro_batches", "fused_is_two_pass", "nan_mask", "failures", "record"])
def test_g2rpo_shaping_keeps_the_laws(law: str) -> None:
    """Neither is in the record, so the laws of the registry do not see them."""
    wide = TrapezoidLength(full_from=0.9, full_to=1.5, zero_above=3.0)  # for the lengths that the laws know
    m = method("g2rpo").but(reward=wide)
    assert verdict("fields_matter", m) == ""
    assert verdict(law, m.but(penalties=EntropyBand()), 0) == ""
