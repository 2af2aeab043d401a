"""Evidence for t_ppo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import asyncio
import math

import evidence
import numpy as np
import pytest
from drawing import TOKENS
from hand import answer, batch_of, mean, worked
from scripted import TASKS, cutting
from six_answers import close

from gruppo.data import Episode, Note, Status
from gruppo.methods import method
from gruppo.methods.t_ppo import T_PPO, Windowed, WindowGae, further, goes_on
from gruppo.stages import Ask, Context, Method, Sampling
from gruppo.stages.credit import two_gaes
from gruppo.stages.prompting import prompts_for

test_laws = evidence.laws("t_ppo")
test_asks = evidence.asks("t_ppo")
test_planted_mistakes = evidence.planted("t_ppo")
test_equivalences = evidence.equivalences("t_ppo")
test_resume = evidence.resume("t_ppo")


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


def window_of(ctx: Context, samples: int = 1, m: Method = T_PPO) -> list[Episode]:
    return asyncio.run(m.rollout(ctx, prompts_for(ctx, m.prompting, Ask(TASKS[0], samples))))


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("ab", [Status.OK]),
        ("abcdefgh", [Status.OPEN, Status.OK]),
        ("abcdefghijkl", [Status.OPEN, Status.TRUNCATED]),  # its second window ends where any answer must
    ],
)
def test_t_ppo_what_is_not_finished_goes_on(text: str, ends: list[Status]) -> None:
    """Nine tokens at most, so windows of five and four. It is the same answer: its number and its notes stay."""
    replay: list[Episode] = []
    for step, status in enumerate(ends):
        ctx = cutting(T_PPO, text, 9, step=step, replay=replay)
        [e] = window_of(ctx)
        assert e.status == status and e.text == text[: 5 if status == Status.OPEN else 9]
        e.notes = {"of": Note(np.ones(1, np.float32)), "adv": Note(np.ones(e.tokens, np.float32), "N")}
        if replay:
            assert e.uid == replay[0].uid and ctx.engine.heard[0].max_tokens == 4
        replay = [e]


def test_t_ppo_notes_of_the_answer_go_on_and_those_of_its_tokens_do_not() -> None:
    [e] = window_of(cutting(T_PPO, "abcdefgh", 9))
    e.notes = {"of": Note(np.full(1, 3.0, np.float32)), "adv": Note(np.ones(e.tokens, np.float32), "N")}
    [on] = window_of(cutting(T_PPO, "abcdefgh", 9, replay=[e]))
    assert on.tokens == 9 and set(on.notes) == {"of"} and on.notes["of"].values.tolist() == [3.0]


@pytest.mark.parametrize(
    ("waiting", "round", "fresh", "on"), [(0, 0, 4, 0), (1, 0, 3, 1), (4, 0, 0, 4), (5, 0, 0, 5), (2, 1, 4, 0)]
)
def test_t_ppo_fills_the_places_that_are_free(waiting: int, round: int, fresh: int, on: int) -> None:
    """Of four places; a draw again of the same step does not go on a second time."""
    before = window_of(cutting(T_PPO, "abcdefgh", 9), samples=5)[:waiting]
    store = T_PPO.replay.put(Context(), [], [*before, answer(99, "g", 3, 1.0)])  # what has ended does not go on
    replay = T_PPO.replay.get(Context(step=6), store)
    got = window_of(cutting(T_PPO, "abcdefgh", 9, step=6, round=round, replay=replay), samples=4)
    assert [e.tokens for e in got] == [5] * fresh + [9] * on
    assert [e.uid for e in got[fresh:]] == [e.uid for e in before[:on]]


@pytest.mark.parametrize(("most", "window"), [(1, 1), (2, 1), (8, 4), (9, 5)])
def test_t_ppo_a_window_is_half_of_an_answer_and_never_nothing(most: int, window: int) -> None:

    def heard(m: Method, allowed: int) -> list[int]:
        ctx = cutting(m, "abcdefghijkl", most)
        asyncio.run(m.rollout(ctx, prompts_for(ctx, m.prompting, Ask(TASKS[0], 1, how={"max_tokens": allowed}))))
        return [r.max_tokens for r in ctx.engine.heard]

    assert heard(T_PPO, 99) == [window]
    assert heard(T_PPO.but(rollout=Windowed(window_tokens=3)), 2) == [2]


def test_t_ppo_who_goes_on_and_how() -> None:
    """An open answer of one sequence, at the temperature of its last token, as far as an answer may go."""
    e = answer(7, "g", 3, None, status=Status.OPEN)
    two = answer(8, "g", 3, None, status=Status.OPEN)
    two.sequences = two.sequences * 2
    assert goes_on(e) and not goes_on(two) and not goes_on(answer(9, "g", 3, 1.0))
    ctx = Context(tokenizer=TOKENS, sampling=Sampling(max_tokens=9, temperature=0.25))
    r = further(ctx, e)
    assert (r.sampling.max_tokens, r.sampling.temperature, r.uid) == (6, 1.0, 7)
    assert r.prefix.tolist() == e.sequences[0].ids.tolist()
    e.sequences[0].temperature = np.array([1.0, 1.0, 0.5, 0.5, 0.75], np.float32)
    assert further(ctx, e).sampling.temperature == 0.75
    for most, left in ((4, 1), (3, 1), (2, 1)):  # it is as long as it may be, or longer since the run was changed
        ctx.sampling = Sampling(max_tokens=most)
        assert further(ctx, e).sampling.max_tokens == left


def test_t_ppo_asks_the_critic() -> None:
    assert [n.column for n in method("t_ppo").credit.needs(Context())] == ["value_critic_N"]
