"""Evidence for reg_grpo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
from hand import answer, batch_of, by_episode, column, mean, objective, sample_std
from looking_back import HINTED
from six_answers import (
    LENGTHS,
    LOGP,
    OLD,
    REF,
    REG,
    REWARDS,
    B,
    close,
    group_advantages,
    hand_batch,
    members,
    of_one_token,
)
from small_batches import term_of

from gruppo.methods.reg_grpo import Regression

test_laws = evidence.laws("reg_grpo")
test_asks = evidence.asks("reg_grpo")
test_planted_mistakes = evidence.planted("reg_grpo")
test_equivalences = evidence.equivalences("reg_grpo")
test_resume = evidence.resume("reg_grpo")


PLAIN = REG.but(penalties=(), objective=Regression(eps=1e-9))


def test_reg_grpo_card() -> None:
    """Card S081: R = (1, 0) → A = (.707, −.707); ρ = (.2, −.2) → the same, loss 0."""
    value, slope = objective(PLAIN, of_one_token([1.0, 0.0]), logp_N=[-0.8, -1.2])
    assert value == pytest.approx(0.0, abs=1e-10) and slope["logp_N"] == pytest.approx([0.0, 0.0], abs=1e-5)


def test_reg_grpo() -> None:
    """−1/2 Σ_g 1/3 Σ_i (A_i − z_i)², z = (ρ − mean)/(s + ε); dz_j/dρ_i = (δ_ij − 1/3)/(s + ε) − z_j c_i / (2 s (s +
    ε)), c the centred ρ and s over n − 1 = 2. Less .04 k3 over the tokens of an answer, as in GRPO."""
    eps, beta = 0.01, 0.04
    rho = [sum(a) - sum(b) for a, b in zip(by_episode(LOGP, LENGTHS), by_episode(OLD, LENGTHS), strict=True)]
    adv = group_advantages(REWARDS)
    value, slope, at = 0.0, [], 0
    for i, n in enumerate(LENGTHS):
        mine = members(i)
        centre, s = mean([rho[j] for j in mine]), sample_std([rho[j] for j in mine])
        z = {j: (rho[j] - centre) / (s + eps) for j in mine}
        value -= (adv[i] - z[i]) ** 2 / 3 / 2
        push = 0.0
        for j in mine:
            dz = (float(i == j) - 1 / 3) / (s + eps) - z[j] * (rho[i] - centre) / (2 * s * (s + eps))
            push += 2 * (adv[j] - z[j]) * dz / 3 / 2
        for lp, ref in zip(LOGP[at : at + n], REF[at : at + n], strict=True):
            d = ref - lp
            value -= beta * (math.exp(d) - d - 1) / n / B
            slope.append(push - beta * (1 - math.exp(d)) / n / B)
        at += n
    got, slopes = objective(REG, hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_reg_grpo_does_not_see_a_constant() -> None:
    """Every ρ of a group moved by .7 changes nothing; and ρ that rises with R along a line has a loss of 0."""
    rewards, rho = [1.0, 0.0, 0.0, 1.0], [0.3, -0.1, 0.2, 0.05]
    one, two = (
        objective(REG.but(penalties=()), of_one_token(rewards), logp_N=[-1 + x + c for x in rho]) for c in (0, 0.7)
    )
    close(one[0], two[0])
    close(one[1]["logp_N"], two[1]["logp_N"])
    line = objective(PLAIN, of_one_token(rewards), logp_N=[-1.0 + 0.4 * r for r in rewards])[0]
    assert line == pytest.approx(0.0, abs=1e-9)


def test_reg_grpo_edges() -> None:
    """ρ = 0: 2 A/ε over the group of two. Equal rewards on-policy: nothing. One alone, one beside a failure: out."""
    _, slope = objective(REG.but(penalties=()), of_one_token([1.0, 0.0]), logp_N=[-1.0, -1.0])
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    close(slope["logp_N"], [2 * a / 0.01 / 2, -2 * a / 0.01 / 2])
    assert objective(REG.but(penalties=()), of_one_token([1.0, 1.0]), logp_N=[-1.0, -1.0])[1]["logp_N"] == [0.0, 0.0]
    for rewards in ([1.0], [1.0, None]):
        value, slope = objective(REG.but(penalties=()), of_one_token(rewards), logp_N=[-0.5] * len(rewards))
        assert value == 0.0 and slope["logp_N"] == [0.0] * len(rewards)


def test_reg_grpo_of_a_hint() -> None:
    """ρ = .5 and −.5 of the answers' own tokens, however the hint before the first fares; ddof = 1: std = √½."""
    batch = batch_of(
        [answer(0, "g", 1, 1.0, **HINTED), answer(1, "g", 1, 0.0)], logp_old_N=[-1.0] * 3, adv_N=[0.0, 1.0, -1.0]
    )
    want = -((1 - 0.5 / (math.sqrt(0.5) + 0.01)) ** 2)
    for hint in (-1.0, -4.0):
        found = term_of(Regression(), "regression", batch, [hint, -0.5, -1.5])
        assert column(found.value) == pytest.approx([want, want])
