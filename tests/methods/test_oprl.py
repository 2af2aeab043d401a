"""Evidence for oprl: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
import torch
from hand import answer, batch_of, column, mean, objective
from looking_back import HINTED
from six_answers import clip_term, close
from small_batches import term_of
from turn_by_turn import Step, packed, played

from gruppo.data import Episode, Source, Status, Use, in_steps
from gruppo.methods import method
from gruppo.methods.oprl import EpisodeAndSteps, PairLikelihood
from gruppo.stages import Context

test_laws = evidence.laws("oprl")
test_asks = evidence.asks("oprl")
test_terms = evidence.terms("oprl")
test_planted_mistakes = evidence.planted("oprl")
test_equivalences = evidence.equivalences("oprl")
test_resume = evidence.resume("oprl")


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


@pytest.mark.parametrize("apart", [False, True])
def test_oprl_on_turns(apart: bool) -> None:
    """Turns of an environment, with observations between them or a context each, are steps as they are: nothing is to
    be split, what is paid and learned is what it was for answers in steps, also if the task pays on the last turn."""
    wrote = [[Step(tokens=n) for n in lengths] for lengths in STEPS]
    for steps, r in zip(wrote, [1.0, 0.0, 0.0], strict=True):
        steps[-1] = steps[-1]._replace(reward=r)
    episodes = [played(i, steps, apart=apart) for i, steps in enumerate(wrote)]
    prm = [old + paid for old, paid in zip(OLD, PAID, strict=True)]
    turns, steps = packed(episodes, logp_old_N=OLD, logp_prm_N=prm), oprl_batch()
    assert turns.size("S") == (5 if apart else 3) and turns.size("K") == steps.size("K") == 5
    m = method("oprl")
    left, right = (m.credit(Context(), batch) for batch in (turns, steps))
    assert left.keys() == right.keys() and all(left[k].tolist() == right[k].tolist() for k in left)
    for role in ("policy", "prm"):
        (value, slope), (same, alike) = (objective(m, batch, role, logp_N=LOGP) for batch in (turns, steps))
        close(value, same)
        close(slope["logp_N"], alike["logp_N"])


def test_oprl_of_a_turn_without_tokens() -> None:
    """It is no step: nothing was sampled that φ could pay for, and it is in no mean."""
    quiet = [played(0, [Step(tokens=1), Step(tokens=0)], 1.0), played(1, [Step(tokens=1)], 0.0)]
    batch = packed(quiet, logp_old_N=[-1.0, -1.0], logp_prm_N=[-0.5, -1.25])
    close(method("oprl").credit(Context(), batch)["adv_N"].tolist(), [1.0 + 0.05 * 0.75, -1.0 - 0.05 * 0.75])


def test_oprl_of_a_hint() -> None:
    """S = β (.5) against β (−.5): log σ(.5 · 1), however the hint before the first fares."""
    episodes = [answer(0, "g", 1, 1.0, **HINTED), answer(1, "g", 1, 0.0)]
    batch = batch_of(episodes, logp_old_N=[-1.0] * 3, beta_E=[0.5, 0.5])
    batch = batch.with_columns(win_P=torch.tensor([0]), lose_P=torch.tensor([1]), margin_P=torch.tensor([1.0]))
    for hint in (-1.0, -4.0):
        found = term_of(PairLikelihood(), "preference", batch, [hint, -0.5, -1.5])
        assert column(found.value) == pytest.approx([-math.log1p(math.exp(-0.5))])
