"""Worked numbers of the methods whose answers have pieces: steps that are paid, early exits, windows, segments.

As in `test_golden_methods.py`: what is expected is computed by plain loops over lists, from the formula and its
derivative by hand, or stands in the card of the method.
"""

import math

import numpy as np
import pytest
from hand import Status, Use, answer, batch_of, mean, objective
from test_golden_methods import clip_term, close

from gruppo.data import Episode, Note, Source, in_steps
from gruppo.methods import method
from gruppo.methods.oprl import EpisodeAndSteps
from gruppo.methods.s_grpo import FirstRight
from gruppo.stages import Context, Method
from gruppo.stages.reward import add_components

# OPRL: answers of two, one and two steps, in one group; the first token of an answer stands at position 2.


def steps_of(uid: int, lengths: list[int], reward: float | None, group: str = "g", **fields: object) -> Episode:
    made = answer(uid, group, sum(lengths), reward, **fields)
    return in_steps(made, [2 + sum(lengths[: i + 1]) for i in range(len(lengths))])


STEPS = [[2, 1], [2], [1, 2]]
PAID = [0.9, -0.4, 0.3, -1.2, 0.2, 0.8, -0.6, -0.7]  # log π_φ − log π_old of each token
OLD = [-0.9, -0.95, -0.7, -0.8, -0.6, -1.9, -1.3, -1.1]
LOGP = [-0.5, -1.0, -0.9, -1.2, -0.3, -2.0, -0.9, -1.5]
BETA, COEF = 0.05, 1.0


def oprl_batch(rewards: list[float | None] = [1.0, 0.0, 0.0], **columns: list[float]):  # noqa: B006
    episodes = [steps_of(i, lengths, r) for i, (lengths, r) in enumerate(zip(STEPS, rewards, strict=True))]
    prm = [old + paid for old, paid in zip(OLD, PAID, strict=True)]
    return batch_of(episodes, **{"logp_old_N": OLD, "logp_prm_N": prm, **columns})


def others(x: list[float]) -> list[float]:
    """Each less the mean of the others."""
    return [v - (math.fsum(x) - v) / (len(x) - 1) for v in x]


def test_oprl_card() -> None:
    """Card S218: log-ratio sums 2 and −1, β = .1: −log σ(.3) = .554. The slope of a token of the better answer is
    β σ(−.3), of the worse one its negative."""
    batch = batch_of(
        [answer(0, "g", 2, 1.0), answer(1, "g", 1, 0.0)], logp_old_N=[-3.0, -3.0, -1.0], logp_prm_N=[-9.0] * 3
    )
    m = method("oprl").but(credit=EpisodeAndSteps(beta=0.1))
    value, slope = objective(m, batch, "prm", logp_N=[-1.5, -2.5, -2.0])
    assert value == pytest.approx(-0.554, abs=5e-4)
    close(value, -math.log(1 + math.exp(-0.3)))
    weight = 0.1 / (1 + math.exp(0.3))
    close(slope["logp_N"], [weight, weight, -weight])


def test_oprl_pays_steps_and_the_answer() -> None:
    """A = R less the others' mean, plus r of the step less the mean of all other steps of the group."""
    whole = others([1.0, 0.0, 0.0])
    sums, at = [], 0
    for lengths in STEPS:
        for n in lengths:
            sums.append(BETA * math.fsum(PAID[at : at + n]))
            at += n
    step = iter(others(sums))
    want = [whole[i] + COEF * a for i, lengths in enumerate(STEPS) for n in lengths for a in [next(step)] * n]
    columns = method("oprl").credit(Context(), oprl_batch())
    close(columns["adv_N"].tolist(), want)
    assert sorted(zip(columns["win_P"].tolist(), columns["lose_P"].tolist(), strict=True)) == [(0, 1), (0, 2)]
    value = sum(clip_term(lp, old, a, 0.2, 0.2)[0] for lp, old, a in zip(LOGP, OLD, want, strict=True)) / 8
    got, slope = objective(method("oprl"), oprl_batch(), logp_N=LOGP)
    close(got, value)
    close(slope["logp_N"], [clip_term(lp, o, a, 0.2, 0.2)[1] / 8 for lp, o, a in zip(LOGP, OLD, want, strict=True)])


def test_oprl_steps_add_up_to_the_answer() -> None:
    """Σ_k r_k = β log π_φ(o)/π_old(o): with one step an answer A^S compares the sums."""
    batch = oprl_batch()
    one = batch_of([answer(i, "g", sum(n), r) for i, (n, r) in enumerate(zip(STEPS, [1.0, 0.0, 0.0], strict=True))])
    one = one.with_columns(logp_old_N=batch.logp_old_N, logp_prm_N=batch.logp_prm_N)
    adv = method("oprl").credit(Context(), one)["adv_N"].tolist()
    want = others([BETA * math.fsum(p) for p in (PAID[:3], PAID[3:5], PAID[5:])])
    whole = others([1.0, 0.0, 0.0])
    close([adv[0], adv[3], adv[5]], [w + s for w, s in zip(whole, want, strict=True)])


def test_oprl_where_the_second_model_is_the_old_policy() -> None:
    """Every r is 0: A = A^E."""
    adv = method("oprl").credit(Context(), oprl_batch(logp_prm_N=OLD))["adv_N"].tolist()
    close(adv, [1.0] * 3 + [-0.5] * 5)


def test_oprl_edges() -> None:
    """Equal rewards: no pair, nothing for φ to learn, and steps are still paid. A failed answer is in no mean, and a
    given token is not paid for. Alone: 0."""
    m = method("oprl")
    equal = m.credit(Context(), oprl_batch([1.0, 1.0, 1.0]))
    assert len(equal["win_P"]) == 0 and float(equal["adv_N"].abs().max()) > 0
    value, slope = objective(m, oprl_batch([1.0, 1.0, 1.0]), "prm", logp_N=LOGP)
    assert value == 0.0 and slope["logp_N"] == [0.0] * 8

    failed = [steps_of(0, [2, 1], 1.0), steps_of(1, [2], None, status=Status.ENV_ERROR), steps_of(2, [1, 2], 0.0)]
    prm = [old + paid for old, paid in zip(OLD, PAID, strict=True)]
    columns = m.credit(Context(), batch_of(failed, logp_old_N=OLD, logp_prm_N=prm))
    sums = [BETA * math.fsum(p) for p in (PAID[:2], PAID[2:3], PAID[5:6], PAID[6:])]
    step = others(sums)
    close(columns["adv_N"].tolist()[:3], [1.0 + step[0]] * 2 + [1.0 + step[1]])
    close(columns["adv_N"].tolist()[5:], [-1.0 + step[2]] + [-1.0 + step[3]] * 2)
    assert columns["adv_N"].tolist()[3:5] == [0.0, 0.0] and columns["win_P"].tolist() == [0]

    batch = oprl_batch()
    source_N = batch.source_N.clone()
    source_N[1] = Source.FORCED
    adv = m.credit(Context(), batch.with_columns(source_N=source_N))["adv_N"].tolist()
    sums = [BETA * x for x in (PAID[0], PAID[2], mean(PAID[3:5]) * 2, PAID[5], mean(PAID[6:]) * 2)]
    close(adv[0], 1.0 + others(sums)[0])

    alone = m.credit(Context(), batch_of([steps_of(0, [2], 1.0)], logp_old_N=OLD[:2], logp_prm_N=prm[:2]))
    assert alone["adv_N"].tolist() == [0.0, 0.0]
    apart = [steps_of(0, [1], 1.0), steps_of(1, [1], 0.0), steps_of(2, [1], 0.0, use=Use.BASELINE)]
    pairs = m.credit(Context(), batch_of(apart, logp_old_N=OLD[:3], logp_prm_N=prm[:3]))
    assert pairs["win_P"].tolist() == [0] and pairs["lose_P"].tolist() == [1]  # a baseline is compared, not learned
    close(pairs["adv_N"].tolist()[0] - others([BETA * p for p in PAID[:3]])[0], 1.0)


# S-GRPO


def exits(right: list[float | None], order: list[int] | None = None, **fields: object) -> list[Episode]:
    """A serial group by its exits, earliest first; answers of two tokens. None: it failed."""
    out: list[Episode] = []
    for i, r in enumerate(right):
        e = answer(i, "g", 2, r, notes={"exit": Note(np.array([3.0 + i], np.float32))}, **fields)
        e.status = Status.ENV_ERROR if r is None else e.status
        out.append(e)
    return [out[i] for i in order] if order else out


S_GRPO = method("s_grpo")


def serial(episodes: list[Episode], m: Method = S_GRPO) -> tuple[list[float], list[float]]:
    """(rewards, advantages) of the episodes in the order of their exits, through the reward room and the credit."""
    add_components(Context(), m.reward, episodes, whole=True)
    adv = m.credit(Context(), batch_of(episodes))["adv_N"].tolist()[::2]
    by_exit = sorted(range(len(episodes)), key=lambda i: float(episodes[i].notes["exit"].values[0]))
    return [episodes[i].total for i in by_exit], [adv[i] for i in by_exit]


@pytest.mark.parametrize("order", [None, [3, 0, 5, 1, 4, 2]])
def test_s_grpo_card(order: list[int] | None) -> None:
    """Card S120: right (0,1,1,1,0,1) from the earliest exit to the path. The row in the batch does not matter."""
    rewards, adv = serial(exits([0, 1, 1, 1, 0, 1], order))
    assert rewards == [0, 1, 0.5, 0.25, 0, 0.125]
    assert adv == [-0.3125, 0.6875, 0.1875, -0.0625, -0.3125, -0.1875]


def test_s_grpo_halves_by_exit_where_told() -> None:
    """The port for verl: 1, .5, .25 … by the place in the group, whoever is right."""
    m = S_GRPO.but(reward=(FirstRight(by="exit"),))
    assert serial(exits([0, 1, 1, 1, 0, 1]), m)[0] == [0, 0.5, 0.25, 0.125, 0, 1 / 32]
    with pytest.raises(ValueError, match=r"by='rigth': exits have no such order .nearest: right"):
        FirstRight(by="rigth")  # type: ignore[arg-type]


def test_s_grpo_edges() -> None:
    """All wrong: 0. Only the path is right: it has 1. All right: 1, ½, ¼. A failed exit is in no order and no mean.
    Groups have orders of their own."""
    assert serial(exits([0, 0, 0])) == ([0, 0, 0], [0, 0, 0])
    assert serial(exits([0, 0, 1]))[0] == [0, 0, 1]
    assert serial(exits([1, 1, 1]))[0] == [1, 0.5, 0.25]
    rewards, adv = serial(exits([None, 1, 1]))
    assert math.isnan(rewards[0]) and rewards[1:] == [1, 0.5] and adv == [0, 0.25, -0.25]
    two = [*exits([1, 1]), *(answer(9, "h", 2, 1.0, notes={"exit": Note(np.array([1.0], np.float32))}),)]
    add_components(Context(), method("s_grpo").reward, two, whole=True)
    assert [e.total for e in two] == [1, 0.5, 1]
    assert [e.reward["task"] for e in two] == [1, 1, 1]  # what the scorer said is kept
