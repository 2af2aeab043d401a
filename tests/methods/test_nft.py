"""Evidence for nft: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
from hand import FAILED, answer, batch_of, by_episode, column, mean, objective
from six_answers import LENGTHS, LOGP, NFT, OLD, REWARDS, B, close, hand_batch, members, of_one_token
from small_batches import group, term_of

from gruppo.data import Use
from gruppo.methods.nft import NegativeAware, RightRate
from gruppo.stages import Context

test_laws = evidence.laws("nft")
test_asks = evidence.asks("nft")
test_planted_mistakes = evidence.planted("nft")
test_equivalences = evidence.equivalences("nft")
test_resume = evidence.resume("nft")


@pytest.mark.parametrize(
    ("weight", "good", "bad"), [("centred", 0.75, -0.25), ("normalised", math.sqrt(3), -1 / math.sqrt(3))]
)
def test_nft_card(weight: str, good: float, bad: float) -> None:
    """Card S166 (NVlabs/NFT, dp_actor.py): at R = 1 and r_q = 1/4 the gradient is +.75 and −.25 (Dr.GRPO), or +1.732
    and −.577 (GRPO with the deviation over n); here over 4 answers and 1000."""
    nft = NFT.but(objective=NegativeAware(prompt_weight=weight))  # type: ignore[arg-type]
    _, slope = objective(nft, of_one_token([1.0, 0.0, 0.0, 0.0]), logp_N=[-1.0] * 4)
    close([4000 * x for x in slope["logp_N"]], [good, bad, bad, bad])


@pytest.mark.parametrize("floor", [1.0, 0.05])
def test_nft(floor: float) -> None:
    """Right: log R, slope 1. Wrong: log max(x, ε), x = (1 − r_q R)/(1 − r_q), slope −r_q R / (1 − r_q) / max(x, ε),
    also where the floor holds. Weighed by 1 − r_q, summed over an answer, over 1000 and 6 answers."""
    value, slope, held = 0.0, [], set()
    for i, (lps, olds) in enumerate(zip(by_episode(LOGP, LENGTHS), by_episode(OLD, LENGTHS), strict=True)):
        rate = mean([REWARDS[j] for j in members(i)])
        for lp, old in zip(lps, olds, strict=True):
            ratio = math.exp(lp - old)
            x = (1 - rate * ratio) / (1 - rate)
            held.add(x < floor)
            good = REWARDS[i] > 0
            value += (1 - rate) * (lp - old if good else math.log(max(x, floor))) / 1000 / B
            slope.append((1 - rate) * (1.0 if good else -rate * ratio / (1 - rate) / max(x, floor)) / 1000 / B)
    assert held >= ({True, False} if floor == 1 else {False})
    got, slopes = objective(NFT.but(objective=NegativeAware(floor=floor)), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_nft_edges() -> None:
    """A failed member is in no rate, a baseline one is; an all-right and an all-wrong group, and one alone, say
    nothing, and leave the mean: the mixed group counts as if it were alone."""
    rate = RightRate()(Context(), of_one_token([1.0, None, 0.0, 0.0]))["rate_N"]
    assert column(rate)[0] == pytest.approx(1 / 3)
    based = batch_of([answer(0, "g", 1, 1.0), answer(1, "g", 1, 0.0), answer(2, "g", 1, 1.0, use=Use.BASELINE)])
    assert column(RightRate()(Context(), based)["rate_N"])[0] == pytest.approx(2 / 3)
    mixed = [answer(0, "g", 1, 1.0), answer(1, "g", 2, 0.0)]
    dead = [answer(2, "r", 1, 1.0), answer(3, "r", 1, 1.0), answer(4, "w", 1, 0.0), answer(5, "w", 1, 0.0)]
    dead += [answer(6, "o", 2, 1.0)]
    plain, whole = (objective(NFT, batch_of(e, logp_old_N=[-1.0] * n), logp_N=[-0.8] * n)[1]["logp_N"]
                    for e, n in ((mixed, 3), (mixed + dead, 9)))  # fmt: skip
    close(whole, plain + [0.0] * 6)


def test_nft_refuses() -> None:
    with pytest.raises(ValueError, match="nearest: centred"):
        NegativeAware(prompt_weight="centered")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"floor=0\.0 .*> 0"):
        NegativeAware(floor=0.0)


def test_nft_right_answers_are_judged() -> None:
    """One that failed is not right, whatever it had, and not in the share."""
    made = RightRate()(Context(), batch_of([*group([1.0, 0.0]), *group([1.0], first=2, **FAILED)]))
    assert column(made["right_N"]) == [1.0, 0.0, 0.0] and column(made["rate_N"]) == [0.5] * 3


def test_nft_counts_what_is_judged_and_learned() -> None:
    """A baseline answer is judged and not learned from, one apart is learned from and not judged here."""
    episodes = [*group([1.0, 0.0]), *group([1.0], first=2, use=Use.BASELINE), *group([1.0], first=3, use=Use.APART)]
    batch = batch_of(episodes, logp_old_N=[-1.0] * 4, right_N=[1.0, 0.0, 1.0, 1.0], rate_N=[0.5] * 4)
    assert column(term_of(NegativeAware(), "policy", batch, [-1.0] * 4).term.over) == [1, 1, 0, 0]


def test_nft_bounds_the_log_ratio() -> None:
    """log R is at most 10, as in the authors' code, and at least −20, as every log-ratio here; times w = ½."""
    batch = batch_of(group([1.0] * 3), logp_old_N=[-50.0, -50.0, -1.0], right_N=[1.0] * 3, rate_N=[0.5] * 3)
    found = term_of(NegativeAware(), "policy", batch, [-35.0, -42.0, -31.0])
    assert column(found.value) == pytest.approx([5.0, 4.0, -10.0])
