"""igrpo, aepo, scaf_grpo and seele, which draw more than a group: who is drawn, who learns, and the worked numbers."""

from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

import numpy as np
import pytest
from drawing import bench, equal, far_apart, prompt_of, rolled, steps_of, task
from hand import answer, batch_of, objective

from gruppo.data import Episode, Note, Source, Use, pack
from gruppo.methods import method
from gruppo.methods.aepo import AEPO, HeatedLikelihood, WithHeated
from gruppo.methods.igrpo import IGRPO, DraftThenRefine, Refine
from gruppo.methods.scaf_grpo import SCAF_GRPO, HelpFailedGroups, spaced
from gruppo.methods.seele import SEELE, HintLikelihood, HintRounds
from gruppo.pieces.response import Curve, fitted, next_rate
from gruppo.stages import Memory, StepRecord

GRPO = method("grpo").but(penalties=())
TASKS = [task(i) for i in range(3)]


def uses(episodes: list[Episode]) -> list[int]:
    return [sum(e.use == use for e in episodes) for use in (Use.LEARN, Use.NONE, Use.APART)]


def in_turn(*texts: str) -> Any:
    """A script that says these texts one after the other, again and again; and r for a refinement."""
    said: Iterator[int] = count()
    return lambda prompt, request: "r" if "\n" in prompt else texts[next(said) % len(texts)]


# igrpo


@pytest.mark.parametrize(
    ("worth", "shown"),
    [
        ({"a": 0.0, "b": 1.0, "c": 0.5, "d": 1.0}, "b\nq0="),  # of two that are right, the first
        ({"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0}, "a\nq0="),  # all wrong: still the best
        ({"a": None, "b": None, "c": -1.0, "d": None}, "c\nq0="),  # what was not judged is no draft
        ({"a": None, "b": None, "c": None, "d": None}, "q0="),  # nothing to show
    ],
)
def test_the_best_draft_is_shown(worth: dict[str, float | None], shown: str) -> None:
    ctx = bench(IGRPO, in_turn("a", "b", "c", "d"), lambda e: worth.get(e.text, 1.0))
    episodes = rolled(IGRPO, ctx, TASKS[:1], samples=3)
    assert [e.text for e in episodes[:4]] == ["a", "b", "c", "d"]
    assert [prompt_of(e) for e in episodes] == ["q0="] * 4 + [shown] * 3
    assert [e.use for e in episodes] == [Use.NONE] * 4 + [Use.LEARN] * 3
    assert len({e.uid for e in episodes}) == 7 and {e.group for e in episodes} == {"t0"}


def test_how_often_a_draft_is_right() -> None:
    """1 − (1 − 0.25)⁴ = 0.6836 of the prompts show a right draft."""
    ctx = bench(
        IGRPO,
        lambda prompt, r: "yes" if Random(r.key).random() < 0.25 else "no",
        lambda e: float(e.text == "yes"),
    )
    episodes = rolled(IGRPO, ctx, [task(i) for i in range(2000)], samples=1)
    shown = [prompt_of(e).startswith("yes\n") for e in episodes if e.use == Use.LEARN]
    assert len(shown) == 2000 and abs(np.mean(shown) - 0.6836) < 0.03
    assert 0.2 < np.mean([e.total for e in episodes if e.use == Use.NONE]) < 0.3


def test_a_draft_is_cut() -> None:
    cut = IGRPO.but(prompting=(Refine(template="{prompt}{draft}", draft_tokens=2),))
    ctx = bench(cut, lambda prompt, r: "abcd", lambda e: 1.0)
    assert {prompt_of(e) for e in rolled(cut, ctx, TASKS[:1])} == {"q0=", "q0=ab"}


def test_no_drafts_is_grpo_bit_for_bit() -> None:
    alone, _ = steps_of(IGRPO.but(rollout=DraftThenRefine(drafts=0)), steps=2)
    assert equal(alone, steps_of(GRPO, steps=2)[0])


def test_no_token_of_a_draft_is_learned() -> None:
    after, [record] = steps_of(IGRPO)
    assert record.batch is not None
    assert record.batch.size("E") == 12 and len(record.drawn) == 24
    learned = set(record.batch.uid_E.tolist())
    assert not learned & {e.uid for e in record.drawn if e.use == Use.NONE}
    spent = sum(e.tokens for e in record.drawn)
    assert record.facts["sampled"] == spent > record.facts["tokens"]  # what drafts cost is told
    assert far_apart(after, steps_of(GRPO)[0]) > 0


# aepo


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


# scaf_grpo


def helped(at: int, ctx_fields: dict[str, Any] | None = None, **fields: Any) -> list[Episode]:
    """Prompts 0 and 2 fail; answers that see the hint of level `at` or a stronger one are right."""
    m = SCAF_GRPO.but(rollout=HelpFailedGroups(**fields))

    def worth(e: Episode) -> float:
        return float(e.task == "t1" or len(e.text) - 1 >= at)

    ctx = bench(m, lambda prompt, r: "x", worth, **(ctx_fields or {}))
    return rolled(m, ctx, TASKS, samples=8)


def test_the_weakest_hint_that_helps_replaces_one_answer() -> None:
    episodes = helped(2)
    learned = [e for e in episodes if e.use == Use.LEARN]
    assert uses(episodes) == [24, 2 + 2 * 2, 0]  # groups keep their size; two levels of each failed group are unused
    for g in ("t0", "t2"):
        mine = [e for e in learned if e.group == g]
        assert sorted(e.total for e in mine) == [0.0] * 7 + [1.0]
        [right] = [e for e in mine if e.total > 0]
        assert right.text == "12x" and prompt_of(right).endswith("=12")
    assert not [e for e in episodes if e.group == "t1" and e.use == Use.NONE]  # a group with a right answer
    batch = pack([e for e in learned if e.group == "t0"])
    adv_N = GRPO.credit(bench(GRPO, lambda p, r: "", lambda e: 0.0), batch)["adv_N"]
    by_hand = {True: 2.475, False: -0.354}
    for n, e in enumerate(batch.episode_N.tolist()):
        assert float(adv_N[n]) == pytest.approx(by_hand[bool(batch.reward_E[e] > 0)], abs=1e-3)
    assert int(batch.policy_N.sum()) == 16  # x and eos of each; the hint is a decision that nobody learns
    assert batch.size("N") == 18


def test_when_nothing_is_replaced() -> None:
    assert uses(helped(9)) == [24, 2 * 3, 0]  # no level helps
    assert uses(helped(1, exempt_share=0.6)) == [24, 0, 0]  # half of the run is over
    assert uses(helped(1, exempt_share=0.5)) == [24, 2 + 2 * 2, 0]
    assert uses(helped(1, levels=0)) == [24, 0, 0]


def test_failures_are_no_wrong_answers() -> None:
    m = SCAF_GRPO
    ctx = bench(m, lambda prompt, r: "x", lambda e: None)
    episodes = rolled(m, ctx, TASKS)
    assert len(episodes) == 12 and uses(episodes) == [12, 0, 0]  # nobody was judged: nobody is helped
    first = count()
    ctx = bench(m, lambda prompt, r: "x", lambda e: None if next(first) % 4 else float(len(e.text) > 1))
    assert uses(rolled(m, ctx, TASKS[:1], samples=4))[0] == 4


@pytest.mark.parametrize(
    ("hints", "levels", "tried"), [(3, 12, [1, 2, 3]), (0, 12, []), (4, 2, [2, 4]), (5, 3, [2, 4, 5])]
)
def test_levels_that_are_tried(hints: int, levels: int, tried: list[int]) -> None:
    assert spaced(hints, levels) == tried


def test_scaf_grpo_without_help_is_grpo_bit_for_bit() -> None:
    plain, _ = steps_of(GRPO, "task.level=4", first=2)
    for rollout in (HelpFailedGroups(levels=0), HelpFailedGroups(exempt_share=0.9)):
        assert equal(steps_of(SCAF_GRPO.but(rollout=rollout), "task.level=4", first=2)[0], plain)
    helped_too, [record] = steps_of(SCAF_GRPO, "task.level=4", first=2)
    assert record.batch is not None and bool((record.batch.source_N == Source.HINT).any())
    assert far_apart(helped_too, plain) > 0


# seele


def test_the_curve_and_its_inverse() -> None:
    card = Curve(k=19.03, mu=-0.64, b=0.45)
    assert card.inverse(0.5) == pytest.approx(0.519, abs=5e-4)
    assert float(card.at(card.inverse(0.7))) == pytest.approx(0.7)
    assert card.inverse(0.45) == card.inverse(0.2) == -float("inf")
    p = np.array([0.2, 0.5, 0.7, 0.9])
    assert fitted(p, card.at(p)).inverse(0.5) == pytest.approx(0.519, abs=0.01)


def test_next_rate_by_hand() -> None:
    assert next_rate([(0.9, 1.0)], 0.5, 0.9) == pytest.approx(0.45)  # too much: half of it
    assert next_rate([(0.9, 1.0), (0.4, 0.0)], 0.5, 0.9) == pytest.approx(0.65)
    assert next_rate([(0.9, 0.0)], 0.5, 0.9) == pytest.approx(0.9)  # more than all cannot be given
    assert next_rate([(0.9, 1.0), (0.4, 0.5)], 0.5, 0.9) == pytest.approx(0.4)  # there it is
    assert next_rate([(0.9, 1.0), (0.5, 0.9), (0.1, 0.8)], 0.5, 0.9) == 0.0  # right without help
    assert next_rate([(0.3, 0.0), (0.3, 1.0)], 0.5, 0.9) == pytest.approx(0.3)  # the mean of two rounds
    for points in ([(0.0, 0.0), (0.5, 0.0), (0.9, 0.0)], [(0.9, 1.0), (0.45, 0.0), (0.7, 0.4), (0.8, 0.9)]):
        assert 0.0 <= next_rate(points, 0.5, 0.9) <= 0.9


@pytest.mark.parametrize("k", [6.0, 10.0])
@pytest.mark.parametrize("middle", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("b", [0.0, 0.1, 0.3])
def test_a_logistic_learner_is_brought_to_one_half(k: float, middle: float, b: float) -> None:
    """The card's check: the share of right answers in round 4 lies within 0.1 of 0.5."""
    learner, rate, points = Curve(k, -middle, b), 0.95, list[tuple[float, float]]()
    for _ in range(3):
        points.append((rate, float(learner.at(rate))))
        rate = next_rate(points, 0.5, 0.95)
    assert abs(float(learner.at(rate)) - 0.5) < 0.1


def rounds(right_with: int, memory: dict[str, Any] | None = None, samples: int = 8, **fields: Any) -> list[Episode]:
    """Answers with at least so many steps of hint are right."""
    m = SEELE.but(rollout=HintRounds(**fields))
    ctx = bench(m, lambda prompt, r: "x", lambda e: float(len(e.text) - 1 >= right_with), memory=Memory(memory or {}))
    return rolled(m, ctx, TASKS[:1], samples)


def rates(episodes: list[Episode]) -> list[float]:
    return [float(e.notes["hint_rate"].values[0]) for e in episodes]


def test_rounds_of_one_group() -> None:
    """Four steps: at first three are given, all right; then half of that, wrong; then between."""
    episodes = rounds(3)
    assert rates(episodes) == pytest.approx([0.75] * 2 + [0.5] * 2 + [0.75] * 2 + [0.75] * 2)
    assert [len(e.text) - 1 for e in episodes] == [3, 3, 2, 2, 3, 3, 3, 3]
    assert {e.group for e in episodes} == {"t0"} and uses(episodes) == [8, 0, 0]
    assert len({e.uid for e in episodes}) == 8
    batch = pack(episodes)
    adv_E = batch.gather(SEELE.credit(bench(SEELE, lambda p, r: "", lambda e: 0.0), batch)["adv_N"], "N", "E", "max")
    assert adv_E.tolist() == pytest.approx([0.25, 0.25, -0.75, -0.75, 0.25, 0.25, 0.25, 0.25])  # one mean for all


def test_help_that_is_not_needed() -> None:
    assert rates(rounds(0))[-1] == 0.0 and rates(rounds(9)) == pytest.approx([0.75] * 8)


def test_the_last_rate_of_a_problem_is_kept() -> None:
    first = rounds(0)
    memory = Memory()
    with memory.writing():
        HintRounds().observe(StepRecord(0, first, None, {}), memory)
        HintRounds().observe(StepRecord(1, [], None, {}), memory)
    assert memory["hint_rate"] == {"t0": rates(first)[-1]}
    assert rates(rounds(0, {"hint_rate": {"t0": 0.25}}))[0] == 0.25
    assert rates(rounds(0, {"hint_rate": {"t0": 1.0}}))[0] == 0.75  # never all of it


def test_samples_that_do_not_divide_by_the_rounds() -> None:
    assert len(rounds(3, samples=6)) == 6 and len(rounds(3, samples=3)) == 3
    assert len(set(np.round(rates(rounds(3, samples=6, rounds=1)), 6))) == 1


def test_a_hint_is_learned_by_its_own_term_alone() -> None:
    """Two answers, one with two tokens of hint: γ/2 on each token of the hint, the surrogate over C on the others."""
    helped_one = answer(0, "g", 1, 1.0)
    s = helped_one.sequences[0]
    s.ids = np.insert(s.ids, 2, [7, 8])
    s.source = np.insert(s.source, 2, [Source.HINT] * 2).astype(np.int8)
    s.logp, s.version = np.insert(s.logp, 2, [np.nan] * 2), np.insert(s.version, 2, [-1] * 2).astype(np.int32)
    s.prompt_len = 4
    t = helped_one.turns[0]
    t.start, t.stop, t.obs_stop = 4, 5, 4
    m = SEELE.but(objective=(*method("dr_grpo").objective, HintLikelihood(hint_coef=0.5)), penalties=())
    batch = batch_of([helped_one, answer(1, "g", 1, 0.0)], logp_old_N=[-1.0] * 4)
    _, slopes = objective(m, batch, logp_N=[-1.0] * 4)
    order = batch.source_N.tolist()
    hint = [g for g, source in zip(slopes["logp_N"], order, strict=True) if source == Source.HINT]
    rest = [g for g, source in zip(slopes["logp_N"], order, strict=True) if source == Source.POLICY]
    assert hint == pytest.approx([0.25, 0.25])
    assert rest == pytest.approx([0.5 / 2 / 8, -0.5 / 2 / 8])  # A = ±0.5, 2 answers, C = 8


def test_seele_trains_with_memory() -> None:
    _, records = steps_of(SEELE, "task=chain", "samples=8", steps=2)
    for r in records:
        assert {e.use for e in r.drawn} == {Use.LEARN} and len(r.drawn) == 24
        assert any(float(e.notes["hint_rate"].values[0]) > 0 for e in r.drawn)


def test_wrong_settings_are_refused() -> None:
    for make, said in (
        (lambda: HintRounds(rounds=0), "rounds=0"),
        (lambda: HintRounds(target=1.0), "target=1.0"),
        (lambda: WithHeated(heat=1.0), "heat=1.0"),
        (lambda: Refine(template="{prompt}"), "no {draft}"),
    ):
        with pytest.raises(ValueError, match=said):
            make()
