"""Evidence for bnpo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
import torch
from hand import FAILED, answer, batch_of, close, group
from small_batches import adv, paid, two

from gruppo.data import Episode
from gruppo.methods import method
from gruppo.methods.bnpo import BetaNormalised, log_beta_density
from gruppo.stages import Context
from gruppo.stages.check import check_first_batch

test_laws = evidence.laws("bnpo")
test_asks = evidence.asks("bnpo")
test_planted_mistakes = evidence.planted("bnpo")
test_equivalences = evidence.equivalences("bnpo")
test_resume = evidence.resume("bnpo")


def test_bnpo_of_several_rewards_is_the_mean_of_each() -> None:
    """Card: A = 1/K Σ_k A^k. A component that nobody is paid is none of them; one outside the bounds is refused."""
    task, style = ([1.0, 0.0, 0.0], [1.0, 1.0, 0.0]), ([0.5, 0.0, 1.0], [0.25, 0.5, 0.5])
    groups = [*two(task[0], style[0]), *two(task[1], style[1], "h", 3)]
    each = [
        [*paid([{"task": x} for x in part[0]]), *paid([{"task": x} for x in part[1]], "h", 3)] for part in (task, style)
    ]
    alone = [adv(BetaNormalised(), episodes) for episodes in each]
    close(adv(BetaNormalised(), groups), [(a + b) / 2 for a, b in zip(*alone, strict=True)])
    m = method("bnpo")
    wide = batch_of(two([1, 0], [5, 0]))
    with pytest.raises(ValueError, match="a reward is 5, outside 0 to 1"):
        check_first_batch(m, wide.with_columns(**m.credit(Context(), wide)))


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
