"""Evidence for aepo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math
from random import Random
from typing import Any

import evidence
import numpy as np
import pytest
from drawing import bench, equal, far_apart, rolled, steps_of, task
from hand import answer, batch_of, objective
from scripted import GRPO, TASKS, in_turn, uses

from gruppo.data import Episode, Note, Status, Use
from gruppo.methods.aepo import AEPO, HeatedLikelihood, WithHeated
from gruppo.stages import Memory, StepRecord

test_laws = evidence.laws("aepo")
test_asks = evidence.asks("aepo")
test_planted_mistakes = evidence.planted("aepo")
test_equivalences = evidence.equivalences("aepo")
test_resume = evidence.resume("aepo")


def heated(entropy: float | None = None, **fields: Any) -> tuple[list[Episode], Any]:
    m = AEPO.but(rollout=WithHeated(**{"share": 1.0, **fields}))
    memory = Memory({} if entropy is None else {"entropy": entropy})
    right = ("1", "0", "0", "0")  # of each prompt one is right, at every temperature
    ctx = bench(m, in_turn(*right), lambda e: float(e.text == "1"), memory=memory)
    return rolled(m, ctx, TASKS), ctx


@pytest.mark.parametrize(
    ("entropy", "temperature", "kept"), [(None, 0.8, 1), (0.6, 0.8, 1), (0.5, 0.8, 1), (0.4, 1.2, 3)]
)
def test_entropy_sets_the_temperature(entropy: float | None, temperature: float, kept: int) -> None:
    """Below the target hot, else cold and half as many: of three prompts with one right answer each, 3 or 3 // 2."""
    episodes, ctx = heated(entropy)
    assert uses(episodes) == [12, 12 - kept, kept]
    assert sorted({r.temperature for r in ctx.engine.heard}) == sorted({1.0, temperature})
    for e in episodes:
        s = e.sequences[0]
        assert (s.temperature is None) == (e.use == Use.LEARN)
        if e.use == Use.APART:
            assert e.text == "1" and e.notes["heated"].values.tolist() == [1.0]
            assert s.temperature == pytest.approx(temperature)


def test_who_is_imitated() -> None:
    assert uses(heated(0.4, most=2)[0]) == [12, 10, 2]
    assert uses(heated(0.4, share=0.0)[0]) == [12, 0, 0]
    assert uses(heated(0.4, min_adv=1.4)[0]) == [12, 9, 3]  # one right of four: 0.75 / 0.5 = 1.5 deviations
    assert uses(heated(0.4, min_adv=1.6)[0]) == [12, 12, 0]
    m = AEPO  # a quarter of the prompts, by lot
    ctx = bench(m, in_turn("1", "0", "0", "0"), lambda e: float(e.text == "1"), memory=Memory(entropy=0.4))
    episodes = rolled(m, ctx, [task(i) for i in range(400)])
    again = {e.group for e in episodes if e.use != Use.LEARN}
    assert 70 < len(again) < 130 and uses(episodes) == [1600, 4 * len(again) - 60, 60]


@pytest.mark.parametrize("worth", [1.0, 0.0, None])
def test_nobody_better_no_term(worth: float | None) -> None:
    """All alike, or nothing judged: no heated answer is learned (the released code fails here)."""
    m = AEPO.but(rollout=WithHeated(share=1.0))
    ctx = bench(m, lambda prompt, r: "1", lambda e: worth, memory=Memory(entropy=0.1))
    assert uses(rolled(m, ctx, TASKS))[2] == 0


def test_one_heated_answer_by_hand() -> None:
    """Two answers of the host, (1, 0) with A = ±0.7071, and a heated one of two tokens: α/3 · ½ on each of its tokens.

    The host's own weights are those of two answers: it does not count the third.
    """
    host = [answer(0, "g", 1, 1.0), answer(1, "g", 2, 0.0)]
    extra = answer(2, "g", 2, 1.0, use=Use.APART)
    extra.notes["heated"] = Note(np.ones(1, np.float32))
    batch = batch_of([*host, extra], logp_old_N=[-1.0] * 5)
    logp = [-1.0, -1.0, -1.0, -2.0, -3.0]
    value, slopes = objective(AEPO, batch, logp_N=logp, logp_T1_N=[-9.0, -9.0, -9.0, -0.5, -1.5])
    z = 0.5 / (0.5**0.5 + 1e-6)
    assert slopes["logp_N"] == pytest.approx([z / 2, -z / 4, -z / 4, 0, 0])
    assert slopes["logp_T1_N"] == pytest.approx([0, 0, 0, 1 / 6, 1 / 6])
    assert value == pytest.approx((-0.5 - 1.5) / 2 / 3 + z / 2 * 1 - z / 2 * 1)
    doubled = AEPO.but(objective=(*GRPO.objective, HeatedLikelihood(heated_coef=2.0)))
    assert objective(doubled, batch, logp_N=logp, logp_T1_N=logp)[1]["logp_T1_N"][3:] == pytest.approx([1 / 3] * 2)


def test_entropy_of_the_last_step() -> None:
    """Minus the mean log-probability of what the policy sampled and learns: heated answers are not in it."""
    mine = [answer(0, "g", 2, 1.0), answer(1, "g", 1, 0.0), answer(2, "g", 3, 1.0, use=Use.APART)]
    for e, logp in zip(mine, (-0.2, -0.8, -5.0), strict=True):
        s = e.sequences[0]
        s.logp = np.where(np.isnan(s.logp), s.logp, np.float32(logp))
    memory = Memory()
    with memory.writing():
        WithHeated().observe(StepRecord(0, mine, None, {}), memory)
    assert memory["entropy"] == pytest.approx((2 * 0.2 + 0.8) / 3)
    with memory.writing():
        WithHeated().observe(StepRecord(1, [], None, {}), memory)
    assert memory["entropy"] == pytest.approx(0.4)


def entropy_after(entropy: float, theta: Any) -> float:
    """A bandit of eight arms, three of them right, after one step by the heated term alone."""
    m = AEPO.but(rollout=WithHeated(target_entropy=1.0, share=1.0, heat=0.5, most=9999))
    p = np.exp(theta) / np.exp(theta).sum()

    def say(prompt: str, r: Any) -> str:
        hot = np.exp(theta / r.temperature)
        return "abcdefgh"[int(np.searchsorted(np.cumsum(hot) / hot.sum(), Random(r.key).random()))]

    ctx = bench(m, say, lambda e: float(e.text in "abc"), memory=Memory(entropy=entropy))
    heated_ones = [e for e in rolled(m, ctx, [task(i) for i in range(150)], samples=8) if e.use == Use.APART]
    batch = batch_of(heated_ones, logp_old_N=[0.0] * (2 * len(heated_ones)))
    slopes = objective(m, batch, logp_N=[0.0] * batch.size("N"), logp_T1_N=[0.0] * batch.size("N"))[1]["logp_T1_N"]
    for i, e in enumerate(heated_ones):  # each is an arm and eos
        theta = theta + 2.0 * slopes[2 * i] * ((np.arange(8) == "abcdefgh".index(e.text)) - p)
    q = np.exp(theta) / np.exp(theta).sum()
    return float(-(q * np.log(q)).sum() + (p * np.log(p)).sum())


@pytest.mark.slow
def test_hot_answers_raise_entropy_and_cold_ones_lower_it() -> None:
    """One turn of the loop: entropy goes to the target of 1, from below and from above."""
    peaked, flat = np.array([4.0, 1.0, 1.0, -1, -1, -1, -1, -1]), np.zeros(8)
    assert entropy_after(0.2, peaked) > 0.02 and entropy_after(1.8, peaked) < -0.02
    assert entropy_after(1.8, flat) < -0.005


def test_aepo_without_extras_is_grpo() -> None:
    plain, _ = steps_of(GRPO, steps=2)
    assert equal(steps_of(AEPO.but(rollout=WithHeated(share=0.0)), steps=2)[0], plain)
    silent = AEPO.but(rollout=WithHeated(share=1.0), objective=(*GRPO.objective, HeatedLikelihood(heated_coef=0.0)))
    weights, records = steps_of(silent, steps=2)
    assert far_apart(weights, plain) < 1e-5  # the same step from a larger batch
    assert all(any(e.use == Use.APART for e in r.drawn) for r in records)
    assert far_apart(steps_of(AEPO.but(rollout=WithHeated(share=1.0)), steps=2)[0], plain) > 1e-5


def test_aepo_half_as_many_where_entropy_is_high() -> None:
    """Three answers are better; of at most two a half is one, of all three too; below the target there are two."""
    assert [uses(heated(h, most=2)[0])[2] for h in (0.6, 0.4)] == [1, 2]


def test_aepo_compares_what_was_judged() -> None:
    """Of (right, wrong, not a number, failed with a reward) the first is better than the second; the others are in no
    mean, and nobody imitates them."""

    def worth(e: Any) -> float:
        if e.text == "f":
            e.status = Status.TIMEOUT
        return {"1": 1.0, "0": 0.0, "n": math.nan, "f": 9.0}[e.text]

    m = AEPO.but(rollout=WithHeated(share=1.0))
    episodes = rolled(m, bench(m, in_turn("1", "0", "n", "f"), worth, memory=Memory(entropy=0.1)), TASKS)
    assert [e.text for e in episodes if e.use == Use.APART] == ["1"] * 3


def test_aepo_what_is_better() -> None:
    """One right of two is 1/√2 deviations (with n − 1) above the mean. Who is equal to all is not better, by 0 either;
    nor is one alone."""

    def better(samples: int, min_adv: float, *texts: str) -> int:
        m = AEPO.but(rollout=WithHeated(share=1.0, min_adv=min_adv))
        ctx = bench(m, in_turn(*texts), lambda e: float(e.text == "1"), memory=Memory(entropy=0.1))
        return uses(rolled(m, ctx, TASKS, samples))[2]

    assert [better(2, x, "1", "0") for x in (0.70, 0.71, 0.9)] == [3, 0, 0]
    assert better(4, 0.0, "1") == better(1, 0.0, "1") == 0


def test_aepo_draws_prompts_anew_in_every_round() -> None:
    m = AEPO.but(rollout=WithHeated(share=0.5))

    def again(round: int) -> set[str]:
        ctx = bench(m, in_turn("1", "0"), lambda e: float(e.text == "1"), round=round)
        return {e.group for e in rolled(m, ctx, [task(i) for i in range(20)], 2) if e.use != Use.LEARN}

    assert again(0) == again(0) != again(1)


def test_aepo_without_heat_draws_at_one() -> None:
    _, ctx = heated(0.4, heat=0.0)
    assert {r.temperature for r in ctx.engine.heard} == {1.0} and len(ctx.engine.heard) == 24
