"""Evidence for kdrl: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math
from typing import Any

import evidence
import pytest
from hand import FAILED, answer, batch_of, close, group, worked
from with_experts import _leaf

from gruppo.data import Episode
from gruppo.methods import method
from gruppo.methods.kdrl import TeacherKL
from gruppo.stages import Context, Role, Schedule
from gruppo.stages.check import check_first_batch, problems

test_laws = evidence.laws("kdrl")
test_asks = evidence.asks("kdrl")
test_planted_mistakes = evidence.planted("kdrl")
test_equivalences = evidence.equivalences("kdrl")
test_resume = evidence.resume("kdrl")


def taught(
    episodes: list[Episode], logp: list[float], teacher: list[float], **fields: Any
) -> tuple[float, list[float]]:
    batch = batch_of(episodes, logp_teacher_N=teacher)
    [term] = worked(TeacherKL(teacher_coef=1.0, **fields), batch, **(stats := _leaf(logp))).values()
    total = term.total(batch)
    total.backward()
    return float(total.detach()), stats.logp_N.grad.tolist()


def test_kdrl_card() -> None:
    """Card: log π = −1, log π_T = −.5: k2 is .125, and its slope −.5: the likelihood goes up."""
    half = math.exp(0.5)
    for estimator, value, slope in (("k2", -0.125, 0.5), ("k1", 0.5, -1.0), ("k3", 1.5 - half, half - 1)):
        got = taught(group([0.0]), [-1.0], [-0.5], estimator=estimator)
        close([got[0], *got[1]], [value, slope])


def test_kdrl_masks() -> None:
    """A group with a right answer, one without; failed answers are out; masked tokens stay in the count of three."""
    episodes = [*group([1.0, 0.0], name="a"), *group([0.0], name="b", first=2), answer(3, "b", 1, 1.0, **FAILED)]
    logp, teacher = [-1.0] * 4, [-0.5, -2.0, -3.0, 0.0]
    pulls = [0.5, -1.0, -2.0, 0.0]
    for mask, some in (("nothing", (0, 1, 2)), ("right_answers", (1, 2)), ("solved_groups", (2,))):
        value, slope = taught(episodes, logp, teacher, mask=mask)
        close(value, -sum(0.5 * pulls[i] ** 2 for i in some) / 3)
        close(slope, [pulls[i] / 3 if i in some else 0.0 for i in range(4)])


def test_kdrl_schedule() -> None:
    """The paper's annealing: 5e-3 at first, 1e-3 from step 280 on."""
    falling = Schedule("linear(0.005, 0.001, steps=280)")
    assert [round(Context(step=s, steps=400).at(falling), 6) for s in (0, 140, 280, 399)] == [
        0.005,
        0.003,
        0.001,
        0.001,
    ]


def test_kdrl_wants_a_teacher() -> None:
    """A teacher that is a copy of the policy would teach nothing: the run is refused until one is given."""
    kdrl = method("kdrl")
    [said] = problems(kdrl, Context(), samples=4)
    assert said == (
        "kdrl: teacher_kl in penalties needs logp@teacher, and there is no model for 'teacher' yet: a copy of the "
        "policy would teach it nothing. Give a model with the policy's tokenizer: method.cast.teacher=FOLDER, such as "
        "the runs/NAME/policy of a run, or a name that model= takes."
    )
    assert problems(kdrl.but(cast={"teacher": Role(start="tiny")}), Context(), samples=4) == []
    assert problems(kdrl.but(penalties=()), Context(), samples=4) == []  # nobody needs it: it is not built


def test_kdrl_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"mask='right_answer' is not one of its values.*nearest: right_answers"):
        TeacherKL(mask="right_answer")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="estimator='full' is not one of its values"):
        TeacherKL(estimator="full")  # type: ignore[arg-type]
    shades = batch_of(group([0.0, 0.5, 1.0]))
    check_first_batch(method("kdrl"), shades)
    masked = method("kdrl").but(penalties=(TeacherKL(mask="right_answers"),))
    with pytest.raises(ValueError, match=r"teacher_kl in penalties cannot learn from the first batch: rewards have 3"):
        check_first_batch(masked, shades)
