"""Worked numbers of the methods whose answers have pieces: steps that are paid, early exits, windows, segments.

As in `test_golden_methods.py`: what is expected is computed by plain loops over lists, from the formula and its
derivative by hand, or stands in the card of the method.
"""

import math

import numpy as np
import pytest
from hand import Status, Use, answer, batch_of, mean, objective, worked
from test_golden_methods import clip_term, close

from gruppo.data import Episode, Note, Source, in_steps
from gruppo.methods import method
from gruppo.methods.oprl import EpisodeAndSteps
from gruppo.methods.s_grpo import FirstRight
from gruppo.methods.spo_segment import Segments, gains
from gruppo.methods.t_ppo import WindowGae
from gruppo.stages import Context, Method
from gruppo.stages.credit import two_gaes
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
    add_components(Context(), m.reward, episodes, of_groups=True)
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
    with pytest.raises(ValueError, match=r"by='rigth' is not one of its values .nearest: right"):
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
    add_components(Context(), method("s_grpo").reward, two, of_groups=True)
    assert [e.total for e in two] == [1, 0.5, 1]
    assert [e.reward["task"] for e in two] == [1, 1, 1]  # what the scorer said is kept


# T-PPO


def windows(lengths: list[int], reward: float | None, uid: int = 0, **fields: object) -> Episode:
    """An answer sampled in windows of these lengths, the last one by the weights of now, version 7."""
    e = answer(uid, f"g{uid}", sum(lengths), reward, **fields)
    e.status = Status.OPEN if reward is None else e.status
    versions = [7 - len(lengths) + 1 + i for i, n in enumerate(lengths) for _ in range(n)]
    e.sequences[0].version[2:] = versions
    return e


@pytest.mark.parametrize(("lam", "want"), [(1.0, [0.4, 0.2, 0.0]), (0.95, [0.39, 0.2, 0.0])])
def test_t_ppo_card(lam: float, want: list[float]) -> None:
    """Card S122: V = .2, .4, .6, cut, r = 0, γ = 1: the last error is 0, since V goes on as it is."""
    batch = batch_of([windows([3], None)], value_critic_N=[0.2, 0.4, 0.6])
    mine, adv, ret, known = two_gaes(batch, 1.0, lam, 1.0)
    close(adv.tolist(), want)
    assert mine.tolist() == [0, 1, 2] and bool(known.all())
    close(ret.tolist(), [0.6, 0.6, 0.6])
    # With γ = .5 the last error is (γ − 1) V = −.3, the one before .5 · .6 − .4 = −.1, the first .5 · .4 − .2 = 0.
    close(two_gaes(batch, 0.5, 1.0, 1.0)[1].tolist(), [-0.125, -0.25, -0.3])


def test_t_ppo_learns_this_window_and_values_of_what_has_ended() -> None:
    """Two answers of two windows: the first ended with 1, the second is open. The advantages of the older windows are
    0 and not learned; the critic's targets are returns, of the finished answer alone, in both of its windows."""
    batch = batch_of(
        [windows([2, 1], 1.0), windows([1, 2], None, uid=1)],
        value_critic_N=[0.1, 0.3, 0.6, 0.5, 0.2, 0.4],
        logp_old_N=[-1.0] * 6,
    )
    ctx = Context(version=7)
    m = method("t_ppo")
    columns = m.credit(ctx, batch)
    last = 1 - 0.6  # of the finished answer; of the open one .4 − .2 and 0
    raw = [last, 0.4 - 0.2, 0.0]
    mean_, var = mean(raw), sum((x - mean(raw)) ** 2 for x in raw) / 2
    white = [(x - mean_) / math.sqrt(var + 1e-8) for x in raw]
    close(columns["adv_N"].tolist(), [0, 0, white[0], 0, *white[1:]])
    close(columns["ret_N"].tolist()[:3], [1.0] * 3)
    ready = batch.with_columns(**columns)
    keep_N, weight_N = m.select[0].tokens(ctx, ready, None)  # type: ignore[attr-defined]
    assert keep_N.tolist() == [False, False, True, False, True, True] and bool((weight_N == 1).all())

    ready = ready.with_columns(keep_N=keep_N)
    for role, over in (("policy", [0, 0, 1, 0, 1, 1]), ("critic", [1, 1, 1, 0, 0, 0])):
        stats = {"logp_N": [-1.0] * 6} if role == "policy" else {"value_N": [0.0] * 6}
        [occupant] = m.objectives[role]
        found = worked(occupant, ready, ctx, **stats).values()
        assert [t.term.over.long().tolist() for t in found] == [over] * len(found)


def test_t_ppo_edges() -> None:
    """All open, and all of it older: nothing to whiten over, nothing raised. A failed answer is in no mean. An open one
    has no reward, whatever stands there."""
    m, ctx = method("t_ppo"), Context(version=9)
    old = m.credit(ctx, batch_of([windows([2], None)], value_critic_N=[0.3, 0.1]))
    assert old["adv_N"].tolist() == [0.0, 0.0]
    ctx = Context(version=7)
    failed = windows([2], 1.0, uid=1)
    failed.status = Status.TIMEOUT
    with_it, without = (
        WindowGae()(ctx, batch_of(e, value_critic_N=[0.3, 0.1, 0.2, 0.9, 0.5][: sum(x.tokens for x in e)]))["adv_N"]
        for e in ([windows([3], 1.0), failed], [windows([3], 1.0)])
    )
    close(with_it.tolist()[:3], without.tolist())
    assert with_it.tolist()[3:] == [0.0, 0.0]
    paid, unpaid = windows([2], None), windows([2], None)
    paid.reward = {"task": 5.0}
    both = [WindowGae()(ctx, batch_of([e], value_critic_N=[0.3, 0.1]))["adv_N"].tolist() for e in (paid, unpaid)]
    assert both[0] == both[1]


# SPO: a prompt of two tokens, so that the first token of an answer stands at position 2.


def segmented(
    uid: int, gain: list[float], unsure: list[int], reward: float | None = 1.0, group: str = "g", **fields: object
) -> Episode:
    notes = {"gain": Note(np.array(gain, np.float32), "N"), "unsure": Note(np.array(unsure, np.float32), "N")}
    e = answer(uid, group, len(gain), reward, notes={} if reward is None else notes, **fields)
    e.status = Status.ENV_ERROR if reward is None else e.status
    return e


def test_spo_cuts_before_every_fifth_unsure_token() -> None:
    """Probabilities by hand: unsure are those below .9. The second and the fourth unsure token begin a segment."""
    path = answer(0, "g", 8, 1.0)
    path.sequences[0].logp[2:] = np.log([0.5, 0.95, 0.6, 0.89, 0.91, 0.9, 0.3, 0.2])
    assert Segments(interval=2).cuts(path) == [2, 4, 8]
    assert Segments(interval=3).cuts(path) == [2, 5]
    assert Segments(interval=5).cuts(path) == [2, 9] and Segments(interval=6).cuts(path) == [2]
    assert Segments(interval=1).cuts(path) == [2, 4, 5, 8, 9]  # none before the first token: there the prompt ends
    assert Segments(sure=0.4, interval=1).cuts(path) == [2, 8, 9]


def test_spo_gains_telescope() -> None:
    """V(s_0) = 1/3, V at 4 = 1, at 7 = 1/2, R = 0: the segments gain 2/3, −1/2 and −1/2, in all R − V(s_0)."""
    path = answer(0, "g", 7, 0.0)
    found = gains(path, {2: [1.0, 0.0, 0.0], 4: [1.0, 1.0, 1.0], 7: [1.0, 0.0]})
    assert np.isnan(found[:2]).all()
    assert found[2:].tolist() == pytest.approx([2 / 3] * 2 + [-0.5] * 5)
    assert found[2] + found[4] + found[7] == pytest.approx(0.0 - 1 / 3)
    alone = gains(path, {2: [1.0, 1.0, 0.0]})  # one segment: the answer against the mean of others
    assert alone[2:].tolist() == pytest.approx([-2 / 3] * 7)


def test_spo_values_that_are_not_known() -> None:
    """A continuation that was not judged is in no mean; a cut without a judged one is no cut, and what is left still
    adds up; without a value of the prompt the first segment has no gain; a failed answer has none at its end."""
    path, nan = answer(0, "g", 6, 1.0), math.nan
    assert gains(path, {2: [0.0, nan], 5: [1.0, nan, 0.0]})[2:].tolist() == [0.5] * 6
    assert gains(path, {2: [0.0], 4: [nan, nan], 6: [0.25]})[2:].tolist() == [0.25] * 4 + [0.75] * 2
    unknown = gains(path, {2: [nan], 5: [0.25]})
    assert np.isnan(unknown[2:5]).all() and unknown[5:].tolist() == [0.75] * 3
    path.status = Status.TIMEOUT
    failed = gains(path, {2: [0.0], 5: [1.0]})
    assert failed[2:5].tolist() == [1.0] * 3 and np.isnan(failed[5:]).all()


def test_spo_whitens_over_what_it_learns() -> None:
    """Unsure tokens of judged answers alone: gains ¼, −¼, 1, 0; mean ¼, variance 7/24. Others are 0, not learned."""
    batch = batch_of(
        [
            segmented(0, [0.25, 0.25, -0.25], [1, 0, 1]),
            segmented(1, [1.0, 0.0], [1, 1], 0.0),
            segmented(2, [9.0], [1], None),
        ],
        logp_old_N=[-1.0] * 6,
        logp_ref_N=[-1.0] * 6,
    )
    m, scale = method("spo_segment"), math.sqrt(0.875 / 3 + 1e-8)
    adv = m.credit(Context(), batch)["adv_N"].tolist()
    want = [0.0, 0.0, -0.5 / scale, 0.75 / scale, -0.25 / scale, 0.0]
    close(adv, want)
    value, slope = objective(m, batch, logp_N=[-0.9, -0.5, -1.4, -1.3, -1.0, -0.1])
    parts = [
        clip_term(lp, -1.0, a, 0.2, 0.2) for lp, a in zip([-0.9, -1.4, -1.3, -1.0], [0.0, *want[2:5]], strict=True)
    ]
    kl_slope = 1e-4 * (math.exp(-1.0 + 0.5) - 1) / 5  # a token that is not kept has the KL's slope alone
    close([slope["logp_N"][1], slope["logp_N"][5]], [kl_slope, 0.0])
    kl = [math.exp(-1.0 - lp) - (-1.0 - lp) - 1 for lp in [-0.9, -0.5, -1.4, -1.3, -1.0]]  # of all tokens, kept or not
    close(value, sum(v for v, _ in parts) / 4 - 1e-4 * mean(kl))


def test_spo_edges() -> None:
    """Where the policy was sure of everything, all tokens count. A gain that is not known is 0. One token: nothing to
    compare with. Equal gains: 0."""
    m = method("spo_segment")

    def credit(*episodes: Episode) -> list[float]:
        return m.credit(Context(), batch_of(episodes))["adv_N"].tolist()

    close(credit(segmented(0, [1.0, 0.0], [0, 0])), [0.5 / math.sqrt(0.5 + 1e-8), -0.5 / math.sqrt(0.5 + 1e-8)])
    keep_N, _ = m.select[0].tokens(Context(), batch_of([segmented(0, [1.0, 0.0], [0, 0])]), None)  # type: ignore[attr-defined]
    assert keep_N.tolist() == [True, True]
    assert credit(segmented(0, [math.nan, 1.0, 1.0], [1, 1, 1])) == [0.0, 0.0, 0.0]
    assert credit(segmented(0, [1.0, 0.0], [1, 0])) == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"interval=0 has no meaning here. Use a number >= 1"):
        Segments(interval=0)
