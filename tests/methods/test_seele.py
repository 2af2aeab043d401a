"""Evidence for seele: laws, mistakes, equivalences, resume, and numbers worked by hand."""

from itertools import count
from typing import Any

import evidence
import numpy as np
import pytest
from drawing import bench, rolled, steps_of, task
from hand import answer, batch_of, objective
from scripted import TASKS, uses

from gruppo.data import Episode, Source, Use, pack
from gruppo.methods import method
from gruppo.methods.seele import SEELE, HintLikelihood, HintRounds
from gruppo.pieces.response import Curve, fitted, next_rate
from gruppo.stages import Memory, StepRecord

test_laws = evidence.laws("seele")
test_asks = evidence.asks("seele")
test_planted_mistakes = evidence.planted("seele")
test_equivalences = evidence.equivalences("seele")
test_resume = evidence.resume("seele")


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


def rates_of(episodes: list[Episode], name: str = "t0") -> list[float]:
    return [float(e.notes["hint_rate"].values[0]) for e in episodes if e.task == name]


def test_seele_every_problem_has_a_rate_of_its_own() -> None:
    """One is right without help, so it gets less and less; the other needs more than can be given."""
    ctx = bench(SEELE, lambda prompt, r: "x", lambda e: float(e.task == "t0"))
    episodes = rolled(SEELE, ctx, [task(0), task(1)])
    assert rates_of(episodes) == [0.75, 0.5, 0.25, 0.0] and rates_of(episodes, "t1") == [0.75] * 4


@pytest.mark.parametrize("worth", [[1.0, 0.0, 0.0, 0.0], [None, 1.0, 0.0, 0.0], [None] * 4])
def test_seele_goes_by_the_share_of_right_answers(worth: list[float | None]) -> None:
    """One of four, or of three that were judged, is less than the half that is wanted: no less help. Nobody judged:
    nothing is known, and help stays as it was."""
    nth = count()
    ctx = bench(SEELE, lambda prompt, r: "x", lambda e: worth[next(nth) % 4])
    assert rates_of(rolled(SEELE, ctx, [task(0)], 16)) == [0.75] * 16


@pytest.mark.parametrize("target", [0.0, 1.0, -0.5])
def test_seele_a_target_lies_between_never_and_always(target: float) -> None:
    with pytest.raises(ValueError, match=f"target={target}"):
        HintRounds(target=target)
