"""Learning from pairs and from given answers: the cards' numbers, and whole objectives with their gradients by hand.

Origins: cards B14 to B19 of the method notes; where a number was not there it is worked out in the docstring. Expected
values come from plain loops over lists; nothing of the package is used for them.
"""

import math

import pytest
import torch
from hand import Use, answer, batch_of, by_episode, mean, objective

from gruppo.data import Batch, Source
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.methods.dpo import DirectPreference
from gruppo.methods.ipo import IdentityPreference
from gruppo.methods.kto import ProspectUtility
from gruppo.methods.orpo import OddsRatio
from gruppo.pieces.preference import bradley_terry, log_odds
from gruppo.stages.recorded import Accepted
from gruppo.stages.relations import PairUp

LENGTHS = [2, 3, 1, 2, 2]
REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0]  # two pairs: 0 over 1, and 3 over 2; the last answer is alone
GROUPS = ["p", "p", "q", "q", "r"]
PAIRS = [(0, 1), (3, 2)]
LOGP = [-4.0, -6.0, -3.0, -4.0, -4.0, -1.5, -0.7, -0.2, -1.0, -0.3]
REF = [-5.0, -7.0, -3.0, -3.0, -4.0, -1.1, -0.9, -0.6, -0.8, -0.9]


def close(a: object, b: object, accuracy: float = 1e-10) -> None:
    assert a == pytest.approx(b, abs=accuracy, rel=accuracy)


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def hand_batch(author: Source = Source.EXPERT, rows: int = 5, **columns: list[float]) -> Batch:
    made = [
        answer(i, GROUPS[i], LENGTHS[i], REWARDS[i], source=author)
        for i in range(rows)
    ]  # fmt: skip
    tokens = sum(LENGTHS[:rows])
    return batch_of(made, logp_ref_N=REF[:tokens], **{k: v[:tokens] for k, v in columns.items()})


def sums(values: list[float]) -> list[float]:
    return [sum(x) for x in by_episode(values, LENGTHS)]


def means(values: list[float]) -> list[float]:
    return [mean(x) for x in by_episode(values, LENGTHS)]


def over_tokens(slope_E: dict[int, float]) -> list[float]:
    return [slope_E.get(i, 0.0) for i, n in enumerate(LENGTHS) for _ in range(n)]


# DPO


@pytest.mark.parametrize("author", [Source.EXPERT, Source.POLICY])
def test_dpo_card(author: Source) -> None:
    """B14: log π(y_w) = −10 against −12, log π(y_l) = −11 against −10: h = 3, L = −log σ(.3) = .55436."""
    value, slopes = objective(method("dpo"), hand_batch(author, rows=2), logp_N=LOGP[:5])
    close(-value, 0.55436, 1e-5)
    push = 0.1 * sigma(-0.3)
    close(slopes["logp_N"], [push] * 2 + [-push] * 3)


def test_dpo_at_the_reference() -> None:
    """B14: π = π_ref, so L = ln 2 and each side is pushed by β/2."""
    value, slopes = objective(method("dpo"), hand_batch(rows=2), logp_N=REF[:5])
    close(-value, math.log(2))
    close(slopes["logp_N"], [0.05] * 2 + [-0.05] * 3)


def test_dpo_smoothed() -> None:
    """cDPO: −.9 log σ(.3) − .1 log σ(−.3) = .9 · .55436 + .1 · .85436 = .58436."""
    smooth = method("dpo").but(objective=DirectPreference(smoothing=0.1))
    value, slopes = objective(smooth, hand_batch(rows=2), logp_N=LOGP[:5])
    close(-value, 0.58436, 1e-5)
    close(slopes["logp_N"][0], 0.1 * (0.9 * sigma(-0.3) - 0.1 * sigma(0.3)))


def test_dpo_two_pairs() -> None:
    """The mean over pairs; an answer without a partner is in none."""
    ratio = [a - b for a, b in zip(sums(LOGP), sums(REF), strict=True)]
    value, slope = 0.0, {}
    for w, lose in PAIRS:
        h = 0.1 * (ratio[w] - ratio[lose])
        value += math.log(sigma(h)) / 2
        slope |= {w: 0.1 * sigma(-h) / 2, lose: -0.1 * sigma(-h) / 2}
    got, slopes = objective(method("dpo"), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], over_tokens(slope))


# IPO


def test_ipo_card() -> None:
    """B15: h = 3 and β = .1, so the target is 5 and L = 4. Here the means: 2 for y_w and −1 for y_l."""
    logp = [-3.0, -5.0, -4.0, -4.0, -5.0]  # means of the log-ratios: (2 + 2)/2, (−1 − 1 − 1)/3
    value, slopes = objective(method("ipo"), hand_batch(rows=2), logp_N=logp)
    close(-value, 4.0)
    close(slopes["logp_N"], [4.0 / 2] * 2 + [-4.0 / 3] * 3)  # −2 (h − 5) over the length


def test_ipo_turns_round_past_its_target() -> None:
    """β = .5 has the target 1: at h = 3 the better answer is pushed down again."""
    logp = [-3.0, -5.0, -4.0, -4.0, -5.0]
    past = method("ipo").but(objective=IdentityPreference(beta=0.5))
    value, slopes = objective(past, hand_batch(rows=2), logp_N=logp)
    close(-value, 4.0)
    assert slopes["logp_N"][0] < 0 < slopes["logp_N"][4]


# KTO


def kto(batch: Batch, logp: list[float], other: list[float], **fields: float) -> tuple[float, list[float]]:
    """`other`: log π under another task's prompt; the reference gives 0 there."""
    batch = batch.with_columns(logp_ref_mismatched_N=torch.zeros(len(other), dtype=torch.float64))
    m = method("kto").but(objective=ProspectUtility(**fields))
    value, slopes = objective(m, batch, logp_N=logp, logp_mismatched_N=other)
    assert slopes["logp_mismatched_N"] == [0.0] * len(other), "z is not differentiated"
    return value, slopes["logp_N"]


def test_kto_card() -> None:
    """B16: ρ_D = 2 and z = .3: L_D = .4576; ρ_U = 1: L_U = .5175. Two prompts, one answer each."""
    made = [answer(0, "p", 2, 1.0, source=Source.EXPERT), answer(1, "q", 1, 0.0, source=Source.EXPERT)]
    batch = batch_of(made, logp_ref_N=[-2.0, -2.0, -2.0])
    value, slope = kto(batch, [-1.0, -1.0, -1.0], [0.1, 0.1, 0.4])  # ρ under the other prompt: .2 and .4
    close(-value, (0.4576 + 0.5175) / 2, 1e-4)
    down = sigma(0.1 * 0.7) * sigma(-0.1 * 0.7)
    close(slope, [0.1 * sigma(0.17) * sigma(-0.17) / 2] * 2 + [-0.1 * down / 2])


def test_kto_at_the_reference() -> None:
    """B16: ρ = z = 0: .5 each."""
    made = [answer(i, g, 1, float(i), source=Source.EXPERT) for i, g in enumerate("pq")]
    value, _ = kto(batch_of(made, logp_ref_N=[-1.0, -1.0]), [-1.0, -1.0], [0.0, 0.0])
    close(-value, 0.5)


def test_kto_weights_and_a_negative_mean() -> None:
    """z is at least 0; λ_D = 4/3 weighs good answers. L = (4/3 (1 − σ(.2)) + (1 − σ(−.1))) / 2."""
    made = [answer(0, "p", 2, 1.0, source=Source.EXPERT), answer(1, "q", 1, 0.0, source=Source.EXPERT)]
    batch = batch_of(made, logp_ref_N=[-2.0, -2.0, -2.0])
    value, _ = kto(batch, [-1.0, -1.0, -1.0], [-5.0, 1.0, 1.0], good_coef=4 / 3)
    close(-value, (4 / 3 * (1 - sigma(0.2)) + (1 - sigma(-0.1))) / 2)


def test_kto_one_prompt_has_no_reference_point() -> None:
    """B16, edge: without another prompt z is 0, whatever the statistics say."""
    made = [answer(i, "p", 1, float(i), source=Source.EXPERT) for i in range(2)]
    batch = batch_of(made, logp_ref_N=[-2.0, -2.0])
    value, _ = kto(batch, [-1.0, -1.0], [3.0, 3.0])
    close(-value, ((1 - sigma(-0.1)) + (1 - sigma(0.1))) / 2)


@pytest.mark.parametrize(("reward", "sign"), [(1.0, 1), (0.0, -1)])
def test_kto_one_kind_of_label(reward: float, sign: int) -> None:
    """B16, edge: all good, or all bad, is a lesson too."""
    made = [answer(i, g, 1, reward, source=Source.EXPERT) for i, g in enumerate("pq")]
    value, slope = kto(batch_of(made, logp_ref_N=[-2.0, -2.0]), [-1.0, -1.0], [0.0, 0.0])
    close(-value, 1 - sigma(sign * 0.1))
    assert all(sign * s > 0 for s in slope)


def test_kto_labels_go_by_the_group() -> None:
    """Of a pair the better one is good, also when both rewards are small or both are large."""
    made = [answer(0, "p", 1, 0.75), answer(1, "p", 1, 0.5), answer(2, "q", 1, 0.25), answer(3, "q", 1, 0.0)]
    made += [answer(4, "r", 1, 0.75), answer(5, "s", 1, None), answer(6, "p", 1, 0.9, use=Use.BASELINE)]
    labels = method("kto").credit(World(method("kto"), 0).ctx, batch_of(made))
    assert labels["label_E"].tolist() == [1, -1, 1, -1, 1, 0, 0]  # the mean of p is .717, with its baseline
    assert labels["other_E"].tolist() == [True] * 7


# ORPO


def test_orpo_card() -> None:
    """B17: a_w = −.5 and a_l = −1.5: lo = 1.6803, L_OR = .17086; and the likelihood of y_w."""
    logp = [-0.4, -0.6, -1.0, -1.5, -2.0]
    lo = float(log_odds(torch.tensor(-0.5)) - log_odds(torch.tensor(-1.5)))
    close(lo, 1.6803, 1e-4)
    close(-float(bradley_terry(torch.tensor(lo))), 0.17086, 1e-4)
    value, slopes = objective(method("orpo"), hand_batch(rows=2), logp_N=logp)
    close(-value, 0.5 + 0.1 * 0.17086, 1e-5)
    down = -0.1 * sigma(-1.68028) / (1 - math.exp(-1.5)) / 3  # d logit/da = 1/(1 − e^a)
    close(slopes["logp_N"][2:], [down] * 3, 1e-5)
    up = 0.5 + 0.1 * sigma(-1.68028) / (1 - math.exp(-0.5)) / 2
    close(slopes["logp_N"][:2], [up] * 2, 1e-5)


def test_orpo_at_certainty() -> None:
    """B17, edge: a_w → 0 has no odds; it is kept at −1e-6 and the value stays finite, log(1e6) and not more."""
    value, slopes = objective(
        method("orpo").but(objective=OddsRatio(odds_coef=1.0)), hand_batch(rows=2), logp_N=[0.0] * 5
    )
    close(-value, math.log(2), 1e-5)
    assert all(math.isfinite(s) for s in slopes["logp_N"]) and slopes["logp_N"][2:] == [0.0] * 3
    close(float(log_odds(torch.tensor(0.0, dtype=torch.float64))), math.log(1e6 - 1), 1e-6)


# SimPO


def test_simpo() -> None:
    """No card. r = β/|y| Σ log π: at β = 2 and γ = 1, means −.5 and −1.5 give log σ(2 · 1 − 1) = −.31326."""
    value, slopes = objective(method("simpo"), hand_batch(rows=2), logp_N=[-0.4, -0.6, -1.0, -1.5, -2.0])
    close(-value, 0.31326, 1e-5)
    close(slopes["logp_N"], [2 * sigma(-1.0) / 2] * 2 + [-2 * sigma(-1.0) / 3] * 3)


# SFT and RFT


def test_sft() -> None:
    """B18: minus the mean over all completion tokens; whoever wrote them."""
    for author in (Source.EXPERT, Source.POLICY):
        value, slopes = objective(method("sft"), hand_batch(author), logp_N=LOGP)
        close(value, sum(LOGP) / 10)
        close(slopes["logp_N"], [0.1] * 10)


def test_rft_keeps_right_answers_once() -> None:
    """B19: R ≥ 1, each text once a prompt; what failed or is unknown is not accepted."""
    made = [answer(0, "p", 2, 1.0), answer(1, "p", 2, 1.0), answer(2, "p", 3, 1.0), answer(3, "p", 2, 0.9)]
    made += [answer(4, "q", 2, 1.0), answer(5, "q", 2, None), answer(6, "q", 2, float("nan"))]
    ctx = World(method("rft"), 0).ctx
    assert Accepted().episodes(ctx, made) == ([True, False, True, False, True, False, False], [])
    assert sum(Accepted(most=1).episodes(ctx, made)[0]) == 2
    assert Accepted(threshold=0.5).episodes(ctx, made)[0][3] is False  # the same text as the first
    best = [answer(0, "p", 1, 1.0), answer(1, "p", 2, 3.0), answer(2, "p", 3, 2.0)]
    assert Accepted(most=2).episodes(ctx, best)[0] == [False, True, True]


def test_rft_nothing_accepted() -> None:
    """B19, edge: a prompt without a right answer is skipped."""
    ctx = World(method("rft"), 0).ctx
    assert Accepted().episodes(ctx, [answer(0, "p", 2, 0.0), answer(1, "p", 1, 0.0)]) == ([False, False], [])


# Edges of all


PAIRED = ("dpo", "ipo", "orpo", "simpo")


@pytest.mark.parametrize("name", PAIRED)
def test_an_answer_without_a_token_is_in_no_pair(name: str) -> None:
    """B15, edge. A pair with an empty completion leaves the count; nothing is divided by 0."""
    made = [answer(0, "p", 2, 1.0), answer(1, "p", 0, 0.0)]
    value, slopes = objective(method(name), batch_of(made, logp_ref_N=[-1.0, -1.0]), logp_N=[-0.5, -0.5])
    assert value == 0.0 and slopes["logp_N"] == [0.0, 0.0]


@pytest.mark.parametrize("name", PAIRED)
def test_identical_answers(name: str) -> None:
    """B14, edge: two copies of one text, one of them preferred: the two pushes cancel in every weight."""
    made = [answer(0, "p", 3, 1.0), answer(1, "p", 3, 0.0)]
    world = World(method(name), 0)
    batch = world.prepared(world.packed(made))
    assert batch.size("P") == 1
    pushed = float(world.grad(batch).norm())
    if name == "orpo":  # the likelihood of the chosen one stays
        assert pushed > 0.1
        likely = world.grad(world.prepared(world.packed([answer(0, "p", 3, 1.0)])))
        assert float(likely.norm()) == 0.0  # alone it is no pair, so it is not chosen
    else:
        assert pushed < 1e-12
    if name == "dpo":
        same = torch.full((6,), -1.0, dtype=torch.float64)
        value = world.value(batch.with_columns(logp_ref_N=same), {"logp_N": same})
        close(-float(value), math.log(2))


@pytest.mark.parametrize("name", PAIRED)
def test_what_is_not_to_be_learned_is_in_no_pair(name: str) -> None:
    made = [answer(0, "p", 1, 1.0), answer(1, "p", 1, 0.0, use=Use.BASELINE), answer(2, "p", 1, -1.0, use=Use.APART)]
    world = World(method(name), 0)
    assert world.prepared(world.packed(made)).size("P") == 0


def test_pairs_of_a_scored_group() -> None:
    """Best against worst; with most=0 all that differ by more than min_gap."""
    made = [answer(i, "p", 1, r) for i, r in enumerate([0.2, 1.0, 0.0, 0.6])] + [answer(9, "q", 1, 0.5)]
    batch, ctx = batch_of(made), World(method("dpo"), 0).ctx
    one = PairUp()(ctx, batch)
    assert (one["win_P"].tolist(), one["lose_P"].tolist(), one["margin_P"].tolist()) == ([1], [2], [1.0])
    wide = PairUp(most=0, min_gap=0.5)(ctx, batch)
    assert sorted(zip(wide["win_P"].tolist(), wide["lose_P"].tolist(), strict=True)) == [(1, 0), (1, 2), (3, 2)]
    assert len(PairUp(most=0)(ctx, batch)["win_P"]) == 6
