"""Evidence for drpo_decoupled: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
import torch
from hand import answer, batch_of, by_episode, column, mean, objective
from six_answers import DRPO, LENGTHS, LOGP, OLD, REWARDS, T, close, hand_batch, members

from gruppo.data import Source
from gruppo.methods.drpo_decoupled import Decoupled
from gruppo.stages import Context, Sampling

test_laws = evidence.laws("drpo_decoupled")
test_asks = evidence.asks("drpo_decoupled")
test_terms = evidence.terms("drpo_decoupled")
test_planted_mistakes = evidence.planted("drpo_decoupled")
test_equivalences = evidence.equivalences("drpo_decoupled")
test_resume = evidence.resume("drpo_decoupled")


def shares(lengths: list[int], right: list[bool], budget: int, temperature: float = 0.1) -> list[float]:
    batch = batch_of([answer(i, "g", n, float(r)) for i, (n, r) in enumerate(zip(lengths, right, strict=True))])
    return column(Decoupled(temperature, budget).shares_E(Context(), batch, torch.tensor(right)))


def test_drpo_card() -> None:
    """Card S027: right answers of 1000, 2000 and 4000 of 8192 tokens weigh .757, .223 and .019; with λ → ∞ a third
    each. An eighth of them is the same; a wrong answer has no weight."""
    lengths, right = [125, 250, 500, 60], [True, True, True, False]
    assert shares(lengths, right, 1024) == pytest.approx([0.757, 0.223, 0.019, 0.0], abs=6e-4)
    assert shares(lengths, right, 1024, 1e9) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])


def test_drpo() -> None:
    """Mean over the two groups drawn of Σ ω s − τ log mean exp(s/τ), τ = ½, L = 8, λ = ½; then the hinge, β = 10 beyond
    a KL of −.1: −sg(10 (KL + .1)) KL."""
    tau, beta, limit, budget, lam = 0.5, 10.0, -0.1, 8, 0.5
    score = [mean(lps) for lps in by_episode(LOGP, LENGTHS)]
    kl = mean([old - lp for lp, old in zip(LOGP, OLD, strict=True)])
    price = beta * max(kl - limit, 0.0)
    assert price > 0
    value, slope = -price * kl, []
    for i, n in enumerate(LENGTHS):
        right = [j for j in members(i) if REWARDS[j] > 0]
        wrong = [j for j in members(i) if REWARDS[j] <= 0]
        omega = {j: math.exp((1 - LENGTHS[j] / budget) / lam) for j in right}
        heat = {j: math.exp(score[j] / tau) for j in wrong}
        if i == members(i)[0]:
            up = sum(omega[j] * score[j] for j in right) / sum(omega.values())
            value += (up - tau * math.log(mean(list(heat.values())))) / 2
        push = omega[i] / sum(omega.values()) if i in omega else -heat[i] / sum(heat.values())
        slope += [push / n / 2 + price / T] * n
    got, slopes = objective(DRPO.but(objective=Decoupled(lam, budget, tau, beta, limit)), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_drpo_counts_the_tokens_learned() -> None:
    """Given tokens are no length: with two of its three tokens given, the long answer is as short as the other one."""
    batch = batch_of([answer(0, "g", 3, 1.0), answer(1, "g", 1, 1.0), answer(2, "g", 1, 0.0)])
    source_N = batch.source_N.clone()
    source_N[:2] = Source.HINT
    batch = batch.with_columns(source_N=source_N)
    right = torch.tensor([True, True, False])
    assert column(Decoupled(0.1, 8).shares_E(Context(), batch, right)) == pytest.approx([0.5, 0.5, 0.0])
    by_run = Decoupled(0.1).shares_E(Context(sampling=Sampling(max_tokens=8)), batch, right)
    assert column(by_run) == pytest.approx([0.5, 0.5, 0.0])


def test_drpo_edges() -> None:
    """All right, all wrong, one alone: nothing, but they are groups drawn. No right answer is ever pushed down, however
    long; with the length in the reward the longest of an all-but-one right group would be."""
    dead = [answer(0, "r", 1, 1.0), answer(1, "r", 2, 1.0), answer(2, "w", 1, 0.0), answer(3, "o", 1, 1.0)]
    _, slope = objective(DRPO, batch_of(dead, logp_old_N=[-1.0] * 5), logp_N=[-1.0] * 5)
    assert slope["logp_N"] == [0.0] * 5
    long = [answer(i, "g", n, r) for i, (n, r) in enumerate(((1, 1.0), (2, 1.0), (7, 1.0), (3, 0.0)))]
    old = DRPO.but(objective=Decoupled(budget_tokens=8))
    _, slope = objective(old, batch_of(long, logp_old_N=[-1.0] * 13), logp_N=[-1.0] * 13)
    assert all(x > 0 for x in slope["logp_N"][:10]) and all(x < 0 for x in slope["logp_N"][10:])
    _, fewer = objective(
        old,
        batch_of([*dead, answer(9, "g", 1, 1.0), answer(10, "g", 1, 0.0)], logp_old_N=[-1.0] * 7),
        logp_N=[-1.0] * 7,
    )
    close(fewer["logp_N"], [0.0] * 5 + [1 / 4, -1 / 4])


def test_drpo_refuses() -> None:
    with pytest.raises(ValueError, match=r"length_temperature=0\.0 .*> 0"):
        Decoupled(length_temperature=0.0)
