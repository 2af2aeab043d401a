"""Evidence for g2rpo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import numpy as np
import pytest
import torch
from hand import FAILED, answer, batch_of, close, column, group
from small_batches import adv, term_of

from gruppo.data import Batch
from gruppo.lab.laws import verdict
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.methods.g2rpo import EntropyBand, RankQuantiles, TrapezoidLength
from gruppo.stages import Context, Sampling

test_laws = evidence.laws("g2rpo")
test_asks = evidence.asks("g2rpo")
test_planted_mistakes = evidence.planted("g2rpo")
test_equivalences = evidence.equivalences("g2rpo")
test_resume = evidence.resume("g2rpo")


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


@pytest.mark.slow
@pytest.mark.parametrize("law", ["schedules", "micro_batches", "fused_is_two_pass", "nan_mask", "failures", "record"])
def test_g2rpo_shaping_keeps_the_laws(law: str) -> None:
    """Neither is in the record, so the laws of the registry do not see them."""
    wide = TrapezoidLength(full_from=0.9, full_to=1.5, zero_above=3.0)  # for the lengths that the laws know
    m = method("g2rpo").but(reward=wide)
    assert verdict("fields_matter", m) == ""
    assert verdict(law, m.but(penalties=EntropyBand()), 0) == ""


def test_g2rpo_length_reward_as_it_comes() -> None:
    """Of 16 tokens: it rises to 1 at two, stays to eight, and falls to 0 at sixteen."""
    episodes = [answer(n, "g", n, 0.0) for n in (1, 2, 4, 8, 12, 16)]
    got = TrapezoidLength()(Context(sampling=Sampling(max_tokens=16)), episodes)["length"]
    assert np.asarray(got).tolist() == pytest.approx([0.5, 1.0, 1.0, 1.0, 0.5, 0.0])
    for edges in ({"zero_below": 0.25, "full_from": 0.25}, {"full_to": 0.75, "zero_above": 0.75}):
        with pytest.raises(ValueError, match="does not rise and fall"):
            TrapezoidLength(**edges)


@pytest.mark.parametrize(("tokens", "entropy", "outside"), [(1, 1.5, 0.5), (2, 0.05, 0.05), (2, 1.0, 0.0), (1, 0.1, 0)])
def test_g2rpo_entropy_band_as_it_comes(tokens: int, entropy: float, outside: float) -> None:
    """From .1 to 1 nat, .01 for each nat outside: the same for every answer, since it is the mean of the step's."""
    batch = batch_of([answer(0, "g", tokens, 1.0), answer(1, "g", 1, None, **FAILED)])
    rows = tokens + 1
    found = term_of(EntropyBand(), "entropy_band", batch, [-1.0] * rows, entropy_N=[entropy] * tokens + [9.0])
    assert (found.term.at, found.term.mean, found.term.coef, found.term.additive) == ("E", "token", 0.01, False)
    assert column(found.value) == pytest.approx([-outside] * 2) and column(found.term.over) == [True, False]


def test_g2rpo_entropy_band_that_is_a_point() -> None:
    with pytest.raises(ValueError, match="the band is empty"):
        EntropyBand(entropy_low=0.5, entropy_high=0.5)
