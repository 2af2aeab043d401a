"""Evidence for empo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

from collections.abc import Sequence

import evidence
from hand import batch_of, close, column
from small_batches import adv, said, worth

from gruppo.data import Status, Use
from gruppo.methods import method
from gruppo.methods.copo import answer_entropy
from gruppo.methods.empo import AgreeingAnswers
from gruppo.stages import Context
from gruppo.stages.check import problems
from gruppo.stages.reward import add_components
from gruppo.stages.select import RedrawEqualGroups

test_laws = evidence.laws("empo")
test_asks = evidence.asks("empo")
test_planted_mistakes = evidence.planted("empo")
test_equivalences = evidence.equivalences("empo")
test_resume = evidence.resume("empo")


def test_empo_card() -> None:
    """Card: clusters of 4, 2 and 1: 0.571, 0.286, 0.143, H = 0.956 < log 7; A = 0.775, −0.775, −1.549."""
    group = said(["a"] * 4 + ["b"] * 2 + ["c"], [0, 0, 0, 0, 1, 1, 1])
    close(worth(AgreeingAnswers(), group), [4 / 7] * 4 + [2 / 7] * 2 + [1 / 7])
    close(column(answer_entropy(batch_of(group))), [0.9557], 1e-4)
    got = adv(method("empo").credit, group)
    assert [round(x, 3) for x in got] == [0.775] * 4 + [-0.775] * 2 + [-1.549]
    assert [e.reward["task"] for e in group] == [0, 0, 0, 0, 1, 1, 1], "labels are recorded, and not paid"


def test_empo_edges() -> None:
    def of(answers: Sequence[str], **fields: float) -> list[float]:
        return worth(AgreeingAnswers(**fields), said(answers))

    assert of(["a"] * 4) == [1] * 4 and adv(method("empo").credit, said(["a"] * 4)) == [0] * 4
    assert of(list("abcd")) == [0] * 4, "all differ"
    assert of(["a", "a", "", ""]) == [0.5, 0.5, 0, 0], "no answer is worth nothing, and counts"
    assert of(["a", "a", "b", "b"]) == [0.5] * 4, "two halves"
    assert of([""] * 3) == [0] * 3 and of(["a"]) == [0]
    assert of(["a", "a", "a", "b"], answer_entropy_low=0.4) == [0.75] * 3 + [0.25], "H = 0.562 = 0.406 log 4"
    assert of(["a", "a", "a", "b"], answer_entropy_low=0.41) == [0] * 4
    assert of(["a", "a", "b", "c"], answer_entropy_high=0.75) == [0] * 4, "H = 1.040 = 0.75 log 4"
    assert of(["a", "a", "b", "c"], answer_entropy_high=0.76) == [0.5, 0.5, 0.25, 0.25]


def test_empo_counts_who_is_in_statistics() -> None:
    group = said(["a", "a", "b", "b", "b"])
    group[2].use, group[3].use = Use.NONE, Use.APART
    group[4].status = Status.ENV_ERROR
    group[4].reward = {}
    add_components(Context(), (AgreeingAnswers(),), group, of_groups=True)
    assert [e.reward.get("agreement") for e in group] == [1, 1, None, None, None]
    assert group[2].replaced == frozenset() and group[0].replaced == {"task"}


def test_empo_is_refused_where_it_makes_no_sense() -> None:
    m = method("empo")
    assert any("Of two answers both agree or both differ" in s for s in problems(m, Context(), samples=2))
    [said_] = problems(m.but(select=RedrawEqualGroups()), Context(), samples=4)
    assert "agreeing_answers in reward and redraw_equal_groups in select conflict" in said_
