"""Evidence for remax: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math
from dataclasses import replace

import evidence
import pytest
from hand import answer, batch_of, by_episode, close, objective
from six_answers import LOGP
from six_graded import GROUPS, LENGTHS, REWARDS, B, adv, each_token, hand_batch

from gruppo.data import Status, Use
from gruppo.methods import method
from gruppo.methods.remax import AgainstGreedy

test_laws = evidence.laws("remax")
test_asks = evidence.asks("remax")
test_terms = evidence.terms("remax")
test_planted_mistakes = evidence.planted("remax")
test_equivalences = evidence.equivalences("remax")
test_resume = evidence.resume("remax")


def greedy(uid: int, name: str, reward: float | None, **fields: object):
    return answer(uid, name, 2, reward, use=Use.BASELINE, **fields)


def test_remax_of_one_sample() -> None:
    """By hand, samples=1: R = 1, b = 1 → 0; R = 0, b = 1 → −1 on every token; R = 1, b = 0 → 1."""
    for reward, base, expected in ((1.0, 1.0, 0.0), (0.0, 1.0, -1.0), (1.0, 0.0, 1.0)):
        batch = batch_of([answer(1, "g", 3, reward), greedy(2, "g", base)])
        assert adv(AgainstGreedy(), batch)[:3] == [expected] * 3


def test_remax_baselines_belong_to_their_prompt() -> None:
    """By hand: g has b = 1, h has b = .25; two greedy answers to one group (two prompts) count with their mean."""
    batch = batch_of([answer(1, "g", 1, 0.5), greedy(2, "g", 1.0), answer(3, "h", 1, 0.5), greedy(4, "h", 0.25)])
    close([adv(AgainstGreedy(), batch)[i] for i in (0, 3)], [-0.5, 0.25])
    two = batch_of([answer(1, "g", 1, 1.0), greedy(2, "g", 1.0), greedy(3, "g", 0.0)])
    close(adv(AgainstGreedy(), two)[0], 0.5)


@pytest.mark.parametrize(
    "missing", [[], [greedy(2, "g", None, status=Status.TIMEOUT)], [greedy(2, "g", 1.0, status=Status.ENV_ERROR)]]
)
def test_remax_without_a_judged_greedy_answer_teaches_nothing(missing: list) -> None:
    """A failure is a status, never a reward of 0: there is no baseline, so A = 0, and not R."""
    batch = batch_of([answer(1, "g", 2, 1.0), *missing, answer(3, "h", 1, 1.0), greedy(4, "h", 0.0)])
    a = adv(AgainstGreedy(), batch)
    assert a[:2] == [0.0, 0.0] and a[-3] == 1.0


def test_remax_returns_to_go() -> None:
    """A_t = Σ_{s≥t} r_s − b (verl core_algos): a turn's reward of .5 at token 2 of 3 and 1 at the end; b = .25.

    G = (1.5, 1.5, 1), so A = (1.25, 1.25, .75).
    """
    e = answer(1, "g", 3, 1.0)
    start, stop = e.turns[0].start, e.turns[0].stop
    e.turns = [replace(e.turns[0], stop=stop - 1, reward={"tool": 0.5}), replace(e.turns[0], start=start + 2)]
    close(adv(AgainstGreedy(), batch_of([e, greedy(2, "g", 0.25)]))[:3], [1.25, 1.25, 0.75])


def test_remax() -> None:
    """ReMax (arXiv:2310.10505): J = 1/B Σ_i (R_i − b) Σ_t log π; greedy answers are in no mean and not learned."""
    base = {"p": 1.0, "q": 0.25}
    extra = [greedy(10, "p", 1.0), greedy(11, "q", 0.25)]
    a = [r - base[g] for r, g in zip(REWARDS, GROUPS, strict=True)]
    value = math.fsum(x * sum(lps) / B for x, lps in zip(a, by_episode(LOGP, LENGTHS), strict=True))
    batch = hand_batch(*extra, old=[0.0] * 4, ref=[0.0] * 4)
    got, slopes = objective(method("remax"), batch, logp_N=[*LOGP, *[0.0] * 4])
    close(got, value)
    close(slopes["logp_N"], [*(x / B for x in each_token(a)), *[0.0] * 4])
