"""Evidence for loop: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
from dialogues import dialogue
from hand import batch_of, by_episode, close, objective
from six_answers import GROUPS, LENGTHS, LOGP, OLD, REWARDS, B, clip_term, hand_batch
from small_batches import adv, group, kept

from gruppo.data import Status
from gruppo.methods import method
from gruppo.methods.loop import MaskSmall, UnitClipped
from gruppo.stages import Context

test_laws = evidence.laws("loop")
test_asks = evidence.asks("loop")
test_terms = evidence.terms("loop")
test_planted_mistakes = evidence.planted("loop")
test_equivalences = evidence.equivalences("loop")
test_resume = evidence.resume("loop")


def test_loop_card() -> None:
    """Card S130: R = (1, 0, 0, 0, 0, .5), A = (.9, −.3, −.3, −.3, −.3, .3)."""
    close(adv(method("loop").credit, group([1.0, 0.0, 0.0, 0.0, 0.0, 0.5])), [0.9, -0.3, -0.3, -0.3, -0.3, 0.3])


def test_loop() -> None:
    """J = 1/B Σ_i Σ_t PPOclip(r, A_i), A_i = R_i less the mean of the other two."""
    value, slope = 0.0, []
    for i, (lps, olds) in enumerate(zip(by_episode(LOGP, LENGTHS), by_episode(OLD, LENGTHS), strict=True)):
        a = REWARDS[i] - sum(REWARDS[j] for j in range(B) if GROUPS[j] == GROUPS[i] and j != i) / 2
        for lp, old in zip(lps, olds, strict=True):
            v, dv = clip_term(lp, old, a, 0.2, 0.2)
            value += v / B
            slope.append(dv / B)
    got, slopes = objective(method("loop"), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def two(unit: str) -> list[float]:
    """dJ/dlog π of a winner of two turns (2 and 1 tokens) and a loser of one: log-ratios .05, .1, .3 and −.5."""
    batch = batch_of([dialogue(0, [2, 1], 1.0), dialogue(1, [1], 0.0)], logp_old_N=[-1.05, -1.1, -1.3, -0.5])
    m = method("loop").but(objective=UnitClipped(unit=unit))  # type: ignore[arg-type]
    return objective(m, batch, logp_N=[-1.0] * 4)[1]["logp_N"]


def test_loop_clips_tokens_turns_or_trajectories() -> None:
    """A = ±1. Token: e^.05, e^.1 inside, e^.3 = 1.35 clipped. Turn: e^.15 = 1.16 inside, the second turn clipped.
    Trajectory: e^.45 = 1.57, all clipped. The loser's ratio e^−.5 = .61 is below .8 with A < 0: clipped in all."""
    close(two("token"), [math.exp(0.05) / 2, math.exp(0.1) / 2, 0.0, 0.0])
    close(two("turn"), [math.exp(0.15) / 2, math.exp(0.15) / 2, 0.0, 0.0])
    close(two("trajectory"), [0.0, 0.0, 0.0, 0.0])


def test_loop_leaves_out_what_has_no_advantage() -> None:
    """An equal group, and one advantage of .008, are in no mean: J is as without them."""
    near = [*group([1.0, 0.0], "p"), *group([0.5, 0.5], "q", 2), *group([0.504, 0.496], "r", 4)]
    old = {"logp_old_N": [-1.0] * 6}
    credited = batch_of(near, **old).with_columns(**method("loop").credit(Context(), batch_of(near)))
    assert kept(MaskSmall(), credited) == [True, True, False, False, False, False]
    alone = objective(method("loop"), batch_of(near[:2], logp_old_N=[-1.0] * 2), logp_N=[-0.9, -1.1])
    got = objective(method("loop"), batch_of(near, **old), logp_N=[-0.9, -1.1, -1.0, -1.0, -1.0, -1.0])
    close(got[0], alone[0])
    close(got[1]["logp_N"], [*alone[1]["logp_N"], 0.0, 0.0, 0.0, 0.0])
    assert kept(MaskSmall(least_adv=0.0), credited) == [True] * 6


def test_loop_edges() -> None:
    """K counts who could be judged; running out of turns is a failure that counts; alone, all equal: 0."""
    some = [
        dialogue(0, [1, 2], 1.0),
        dialogue(1, [3], 0.0, status=Status.TRUNCATED),
        dialogue(2, [2], None, status=Status.TIMEOUT),
    ]
    assert adv(method("loop").credit, some) == pytest.approx([1.0, -1.0, 0.0])
    assert adv(method("loop").credit, [dialogue(0, [1, 1], 1.0)]) == [0.0]
    value, slope = objective(method("loop"), batch_of(group([1.0, 1.0]), logp_old_N=[-1.0] * 2), logp_N=[-0.5, -2.0])
    assert value == 0.0 and slope["logp_N"] == [0.0, 0.0]


def test_loop_of_observations_and_silent_turns() -> None:
    """More tokens of the environment, or a turn in which nothing was said, change neither J nor a slope."""
    told, old = {}, [-1.05, -1.1, -1.3, -1.0]
    for name, turns, seen in (("plain", [2, 1], 2), ("long", [2, 1], 7), ("silent", [2, 0, 1], 2)):
        batch = batch_of([dialogue(0, turns, 1.0, seen=seen), dialogue(1, [1], 0.0)], logp_old_N=old)
        m = method("loop").but(objective=UnitClipped(unit="turn"))
        told[name] = objective(m, batch, logp_N=[-1.0] * 4)
    assert told["plain"] == told["long"] == told["silent"]
