"""Evidence for spear: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math
from dataclasses import replace

import evidence
import numpy as np
import pytest
import torch
from drawing import IN_A_WORLD, steps_of
from hand import answer, batch_of, close, worked
from looking_back import credited

from gruppo.data import Episode, Growing, Source, Status, Use
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.methods.spear import PAST, GoodOnes, NowAndThen, Recalibrated, TurnBonus
from gruppo.stages import Context, Memory, StepRecord

test_laws = evidence.laws("spear")
test_asks = evidence.asks("spear")
test_terms = evidence.terms("spear")
test_planted_mistakes = evidence.planted("spear")
test_equivalences = evidence.equivalences("spear")
test_resume = evidence.resume("spear")


def of_turns(uid: int, turns: int, reward: float = 1.0) -> Episode:
    grown = Growing(uid, "t", "g")
    grown.begin(np.array([1, 2]))
    for _ in range(turns):
        grown.act(np.array([5]), np.full(1, -1.0, np.float32), 0)
        grown.observe(np.array([3]))
    return grown.finish(Status.OK, reward={"task": reward})


@pytest.mark.parametrize(("step", "mu", "gamma"), [(0, 1.0, 0.0), (50, 0.854, 0.5), (100, 0.5, 1.0), (200, 0.0, 1.0)])
def test_card_schedules(step: int, mu: float, gamma: float) -> None:
    """Card S219, T1 = 200 and T2 = 100."""
    ctx = Context(step=step)
    assert ctx.at(TurnBonus().bonus_coef) == pytest.approx(mu, abs=5e-4)
    assert ctx.at(NowAndThen().replay_coef) == pytest.approx(gamma, abs=1e-9)


def test_turns_are_paid_a_tenth_each_up_to_one() -> None:
    """At step 100 half of 0.1 a turn; eleven turns are worth ten; an answer of one turn used no tool."""
    episodes = [of_turns(i, n) for i, n in enumerate((1, 2, 10, 11))]
    close(TurnBonus()(Context(step=100), episodes)["turns"].tolist(), [0.0, 0.1, 0.5, 0.5])


def recalibrated(means: list[float], rewards: list[float], **fields: object) -> list[float]:
    """Advantages of remembered answers with these rewards, after groups of these means."""
    past = torch.tensor([[m, 0.25] for m in means], dtype=torch.float64)
    episodes = [answer(i, f"g{i}", 1, r, replayed=True) for i, r in enumerate(rewards)]
    ctx = Context(memory=Memory({PAST: past}))
    return Recalibrated(**fields)(ctx, batch_of(episodes))["adv_N"].tolist()  # type: ignore[arg-type]


def test_card_recalibration() -> None:
    """Card S219: R = 1 with P50 = .4 is .6; later P50 = 1, and it is 0. Of an even number it is the middle."""
    close(recalibrated([0.9, 0.4, 0.1], [1.0]), [0.6])
    close(recalibrated([1.0, 1.0, 0.1], [1.0]), [0.0])
    close(recalibrated([0.2, 0.4], [1.0, 0.1]), [0.7, -0.2])
    close(recalibrated([0.4], [1.0], normalise="std"), [0.6 / (0.25 + 1e-6)])


def test_fresh_groups_are_centred_and_know_nothing_of_the_past() -> None:
    episodes = [answer(0, "g", 1, 1.0), answer(1, "g", 1, 0.0), answer(2, "g", 1, 0.0), answer(3, "g", 1, 1.0)]
    episodes += [answer(4, "g", 1, None, status=Status.ENV_ERROR), answer(5, "h", 1, 1.0)]
    ctx = Context(memory=Memory({PAST: torch.tensor([[0.9, 0.1]])}))
    close(Recalibrated()(ctx, batch_of(episodes))["adv_N"].tolist(), [0.5, -0.5, -0.5, 0.5, 0.0, 0.0])
    close(Recalibrated()(Context(), batch_of([answer(0, "g", 1, 1.0, replayed=True)]))["adv_N"].tolist(), [0.0])


def test_means_and_deviations_of_fresh_groups_are_remembered() -> None:
    """Rewards 1, 0, 0, 1: mean ½, deviation ½ (with n). The remembered, the failed and the used for nothing do not
    count, and the oldest leave."""
    memory, credit = Memory(), Recalibrated(groups=2)
    group = [answer(i, "g", 1, r) for i, r in enumerate((1.0, 0.0, 0.0, 1.0))]
    others = [answer(8, "old", 1, 1.0, replayed=True), answer(9, "bad", 1, None, status=Status.TIMEOUT)]
    for batch in (batch_of([*group, *others]), batch_of(group[:1]), None, batch_of(group[1:2])):
        with memory.writing():
            credit.observe(StepRecord(0, (), batch, {}), memory)
        if batch is not None and batch.size("E") > 1:
            assert memory[PAST].tolist() == [[0.5, 0.5]]
    assert memory[PAST].tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_the_buffer_is_used_once_when_it_is_full() -> None:
    replay, ctx = GoodOnes(capacity=2), Context(step=1)
    one = replay.put(ctx, [], [credited(1, step=1), credited(2, (-1.0, -1.0), step=1), credited(3, (0.0, 0.0), step=1)])
    assert [e.uid for e in one] == [1] and replay.get(ctx, one) == []
    two = replay.put(ctx, one, [credited(4, step=1)])
    assert [e.uid for e in replay.get(ctx, two)] == [1, 4]
    assert [e.uid for e in replay.put(ctx, two, [credited(5, step=1)])] == [5]
    quarter = [replay.full(Context(prompts=4, samples=4), [credited(i) for i in range(n)]) for n in (1, 2)]
    assert quarter == [False, True]
    assert [GoodOnes().full(Context(prompts=4, samples=4), [credited(0)] * n) for n in (3, 4)] == [False, True]
    assert not GoodOnes().full(Context(prompts=1, samples=2), [])


def test_what_is_old_or_not_its_own_is_dropped() -> None:
    """Stored in step 1, recalled in step 6 at the age of 5 and never later."""
    replay = GoodOnes(capacity=9, max_age=5)
    assert [len(replay.put(Context(step=s), [credited(1, step=1)], [])) for s in (1, 5, 6)] == [1, 1, 0]
    bad = [credited(2, use=Use.BASELINE), credited(3, source=Source.EXPERT), credited(4, status=Status.ENV_ERROR)]
    assert replay.put(Context(), [], [*bad, answer(5, "g", 1, 1.0)]) == []


def terms(adv: list[float], now: list[float], **fields: object) -> dict[str, list[float]]:
    """Values of two fresh and two remembered tokens that were sampled with log π = −1."""
    episodes = [answer(i, f"g{i}", 1, 1.0, replayed=i > 1) for i in range(4)]
    batch = batch_of(episodes, adv_N=adv, logp_old_N=[-1.0] * 4)
    found = worked(NowAndThen(mean="token", **fields), batch, Context(step=50), logp_N=now)  # type: ignore[arg-type]
    return {k: [*w.value.tolist(), float(w.total(batch))] for k, w in found.items()}


def test_two_terms_of_their_own_means() -> None:
    """Step 50, so γ = ½. Ratios 1.5, 1, 1.2, 1: 1.28 · 2 is clipped. The last remembered one is worse than usual and
    is in no mean: ½ · 1.2."""
    found = terms([2.0, -1.0, 1.0, -0.5], [-1 + math.log(1.5), -1.0, -1 + math.log(1.2), -1.0])
    close(found["policy"][-1], (2.56 - 1.0) / 2)
    close(found["self_imitation"][-1], 0.5 * 1.2)
    assert found["clip_fraction"][:4] == [1.0, 0.0, 0.0, 0.0]
    assert found["singled_out"][:4] == [0.0] * 4


def test_tokens_are_left_out_by_their_own_covariances() -> None:
    """Fresh: A = ±1, log π = −½, −2½: c = 1 · 1 on both, in (½, 5), one of two goes. Remembered: A = 3, 1, log π = −1,
    −2: c = 1 · ½ on both. Its ratio is below the lower clip, but A is positive: nothing clips it."""
    half, few = {"share": 0.5, "low": 0.5, "high": 5.0}, {"share": 0.5, "low": 0.4, "high": 60.0}
    adv, now = [1.0, -1.0, 3.0, 1.0], [-1.1, -3.1, -1.0, -2.0]
    both = terms(adv, now, clip_low=0.9, left_out=half, replay_left_out=few)["singled_out"]
    assert sum(both[:2]) == 1.0 and sum(both[2:4]) == 1.0
    fresh = terms(adv, now, clip_low=0.9, left_out=half, replay_left_out=few | {"high": 0.5})["singled_out"]
    assert sum(fresh[:2]) == 1.0 and fresh[2:4] == [0.0, 0.0]
    with pytest.raises(ValueError, match="Give a share"):
        NowAndThen(left_out={"share": 0.5})


def test_turns_that_were_cut_off_are_compared_only() -> None:
    """An answer of one turn by its status; of several turns only those that ran out of tokens, not of turns."""
    m, long = method("spear"), of_turns(2, 3, 0.0)
    long.status, long.group, long.turns[1].flags = Status.TRUNCATED, "h", frozenset({"truncated", "invalid"})
    episodes = [answer(0, "g", 1, 1.0), answer(1, "g", 1, 0.0, status=Status.TRUNCATED), long, answer(3, "h", 1, 1.0)]
    ready = World(m, 0).prepared(batch_of(episodes, logp_old_N=[-1.0] * 6))
    assert ready.learn_N.tolist() == [True, False, True, False, True, True]
    assert ready.adv_N.tolist() == [0.5, -0.5, -0.5, -0.5, -0.5, 0.5]


def test_it_learns_again_from_what_was_good() -> None:
    """A run in which the buffer fills: the remembered rows are in the batch with their old log π."""
    _, records = steps_of(method("spear").but(replay=GoodOnes(capacity=1)), steps=3)
    past = [int(r.batch.replayed_E.sum()) for r in records if r.batch is not None]
    assert past[0] == 0 and max(past) > 0
    b = next(r.batch for r in records if r.batch is not None and bool(r.batch.replayed_E.any()))
    rows = b.spread(b.replayed_E, "E", "N")
    torch.testing.assert_close(b.logp_old_N[rows].float(), b.note_logp_old_N[rows].float())
    assert replace(records[0], step=0).facts["self_imitation"] == 0.0


def test_it_trains_in_a_world() -> None:
    """Two steps of many turns: they are paid for."""
    _, records = steps_of(method("spear"), *IN_A_WORLD, steps=2)
    assert records[0].facts["turns"] > 1 and "turns" in records[0].batch.components  # type: ignore[union-attr]
    assert float(records[0].batch.reward_E.max()) > 0.1  # type: ignore[union-attr]
