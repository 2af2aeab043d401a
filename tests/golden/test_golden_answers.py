"""Worked numbers of nft, dmpo, reg_grpo and drpo_decoupled, and their edge cases.

As in `test_golden_methods.py`: what is expected is computed by plain loops over lists, from the formula and its
derivative by hand. The same two groups of three answers.
"""

import math

import pytest
import torch
from hand import Status, Use, answer, batch_of, by_episode, column, mean, objective, sample_std, worked
from test_golden_methods import (
    GROUPS,
    LENGTHS,
    LOGP,
    OLD,
    REF,
    REWARDS,
    B,
    T,
    clip_term,
    close,
    group_advantages,
    hand_batch,
)

from gruppo.data import Batch, Source
from gruppo.methods import method
from gruppo.methods.dmpo import MatchDistribution
from gruppo.methods.drpo_decoupled import Decoupled
from gruppo.methods.nft import NegativeAware, RightRate
from gruppo.methods.reg_grpo import Regression
from gruppo.stages import Context, Method, Sampling

NFT, DMPO, REG, DRPO = (method(n).but(select=()) for n in ("nft", "dmpo", "reg_grpo", "drpo_decoupled"))


def of_one_token(rewards: list[float | None], **columns: list[float]) -> Batch:
    """A group of answers of one token each; None: failed."""
    failed = {"status": Status.ENV_ERROR}
    episodes = [
        answer(i, "g", 1, 0.0 if r is None else r, **(failed if r is None else {})) for i, r in enumerate(rewards)
    ]
    return batch_of(episodes, **({"logp_old_N": [-1.0] * len(rewards)} | columns))


def members(i: int) -> list[int]:
    return [j for j in range(B) if GROUPS[j] == GROUPS[i]]


# NFT


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


# DMPO


def matched(match: MatchDistribution) -> Method:
    """GRPO's surrogate and this matching."""
    return DMPO.but(objective=(*method("grpo").objective, match))


@pytest.mark.parametrize(("alpha", "first", "rest"), [(1.0, 0.475, 0.175), (0.5, 0.711, 0.096), (1 / 15, 1.0, 0.0)])
def test_dmpo_card(alpha: float, first: float, rest: float) -> None:
    """Card S016: rewards (1, 0, 0, 0): p = (.475, .175, .175, .175) at α = 1, (.711, .096, …) at ½, one-hot at 1/15.
    With equal log π q is ¼ each, so that the distances tell p."""
    batch = of_one_token([1.0, 0.0, 0.0, 0.0])
    match = worked(MatchDistribution(target_temperature=alpha), batch, logp_N=[-1.0] * 4)["match"]
    gap = [math.sqrt(-x) for x in column(match.value)]
    assert [0.25 + gap[0], *(0.25 - g for g in gap[1:])] == pytest.approx([first, rest, rest, rest], abs=6e-4)


def dmpo_by_hand(rewards: list[float], alpha: float) -> tuple[float, list[float]]:
    """−1/2 Σ_g 1/3 Σ_i (p − q)², and its slope −(2/3) q_i [(q_i − p_i) − Σ q (q − p)] / 2 / T_i."""
    value, slope = 0.0, []
    score = [mean(lps) for lps in by_episode(LOGP, LENGTHS)]
    for i in range(B):
        mine = members(i)
        p = {j: math.exp(rewards[j] / alpha) for j in mine}
        q = {j: math.exp(score[j]) for j in mine}
        p, q = ({j: x / math.fsum(d.values()) for j, x in d.items()} for d in (p, q))
        value -= (p[i] - q[i]) ** 2 / 3 / 2
        pull = (q[i] - p[i]) - sum(q[j] * (q[j] - p[j]) for j in mine)
        slope += [-2 / 3 * q[i] * pull / 2 / LENGTHS[i]] * LENGTHS[i]
    return value, slope


def test_dmpo() -> None:
    """GRPO's part and λ = 3 times the matching, α = ½."""
    value, slope = dmpo_by_hand(REWARDS, 0.5)
    value, slope = 3 * value, [3 * x for x in slope]
    at = 0
    for lps, olds, a in zip(
        by_episode(LOGP, LENGTHS), by_episode(OLD, LENGTHS), group_advantages(REWARDS), strict=True
    ):
        for lp, old in zip(lps, olds, strict=True):
            v, dv = clip_term(lp, old, a, 0.2, 0.2)
            value, slope[at], at = value + v / len(lps) / B, slope[at] + dv / len(lps) / B, at + 1
    got, slopes = objective(matched(MatchDistribution(3.0, 0.5)), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_dmpo_edges() -> None:
    """p = q: nothing. A group of one, and one that failed but for one: p = q = 1. Equal rewards: drawn to equal log π,
    unless equal_groups is off."""
    alike = objective(matched(MatchDistribution(1.0, 1.0)), of_one_token([1.0, 1.0]), logp_N=[-2.0, -2.0])
    assert alike[1]["logp_N"] == [0.0, 0.0]
    for rewards in ([1.0], [1.0, None]):
        value, slope = objective(DMPO, of_one_token(rewards), logp_N=[-2.0] * len(rewards))
        assert value == pytest.approx(0) and slope["logp_N"] == pytest.approx([0.0] * len(rewards))
    _, slope = objective(DMPO, of_one_token([1.0, 1.0]), logp_N=[-2.0, -0.5])
    assert slope["logp_N"][0] > 0 > slope["logp_N"][1]
    off = matched(MatchDistribution(equal_groups=False))
    assert objective(off, of_one_token([1.0, 1.0]), logp_N=[-2.0, -0.5])[1]["logp_N"] == [0.0, 0.0]


def test_dmpo_covers_two_equal_answers() -> None:
    """Card S016: of two equally good answers GRPO pushes both alike; the matching draws the likelier one back."""
    batch, logp = of_one_token([1.0, 1.0, 0.0]), [-2.0, -0.5, -6.0]
    slope, plain = (objective(matched(MatchDistribution(c)), batch, logp_N=logp)[1]["logp_N"] for c in (2.0, 0.0))
    assert slope[0] - plain[0] > 0 > slope[1] - plain[1]


def test_dmpo_refuses() -> None:
    with pytest.raises(ValueError, match=r"target_temperature=0\.0 .*> 0"):
        MatchDistribution(target_temperature=0.0)


# Reg-GRPO

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


# DRPO


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
