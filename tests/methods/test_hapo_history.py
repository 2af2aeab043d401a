"""Evidence for hapo_history: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
from hand import answer
from looking_back import seen

from gruppo.data import Source, Status, Use
from gruppo.methods import method
from gruppo.methods.hapo_history import ShorterThanBefore
from gruppo.stages import Context, Memory, Method, StepRecord
from gruppo.stages.reward import add_components

test_laws = evidence.laws("hapo_history")
test_asks = evidence.asks("hapo_history")
test_planted_mistakes = evidence.planted("hapo_history")
test_equivalences = evidence.equivalences("hapo_history")
test_resume = evidence.resume("hapo_history")


HISTORY = [answer(0, "q", 1200, 1.0), answer(1, "q", 1000, 1.0), answer(2, "q", 900, 0.0)]


@pytest.mark.parametrize(
    ("right", "tokens", "reward"),
    [
        (1.0, 500, 1 + math.sqrt(0.5)),
        (1.0, 1000, 1.0),
        (1.0, 1500, 0.3),
        (1.0, 2500, 0.3),
        (0.0, 500, 0.0),
        (0.0, 1500, -math.sqrt(0.5)),
        (0.0, 2500, -1.0),
    ],
)
def test_hapo_rewards_what_is_shorter_than_the_shortest_right_answer(right: float, tokens: int, reward: float) -> None:
    [shorter] = method("hapo_history").reward
    e = answer(9, "q", tokens, right)
    add_components(Context(memory=seen(shorter, HISTORY)), (shorter,), [e])
    assert e.total == pytest.approx(reward, abs=1e-12) and e.reward["task"] == right


def test_hapo_without_a_history_is_plain_correctness() -> None:
    other = [answer(0, "another question", 3, 1.0)]
    for before in ([], [answer(0, "q", 3, 0.0)], other):
        [value] = ShorterThanBefore()(Context(memory=seen(ShorterThanBefore(), before)), [answer(9, "q", 7, 1.0)])[
            "length"
        ]
        assert value == 0.0


def test_hapo_forgets_nothing_and_learns_from_what_counts_only() -> None:
    """A longer answer does not raise h; failed, unused and recorded answers do not lower it; a truncated one does."""
    nothing = [
        answer(3, "q", 1100, 1.0),
        answer(4, "q", 10, 1.0, status=Status.ENV_ERROR),
        answer(5, "q", 10, 1.0, use=Use.NONE),
        answer(6, "q", 10, 1.0, use=Use.APART),
        answer(7, "q", 10, 1.0, source=Source.EXPERT),
        answer(8, "q", 10, None),
    ]
    memory = seen(ShorterThanBefore(), HISTORY, nothing, [])
    half = math.cos(math.pi / 2 * 500 / 1000)
    [value] = ShorterThanBefore()(Context(memory=memory), [answer(9, "q", 500, 1.0)])["length"]
    assert value == pytest.approx(half)
    seen(ShorterThanBefore(), [answer(9, "q", 500, 1.0, status=Status.TRUNCATED)], memory=memory)
    assert ShorterThanBefore()(Context(memory=memory), [answer(9, "q", 500, 1.0)])["length"] == pytest.approx([0.0])


def test_hapo_counts_what_selection_dropped() -> None:
    """`drawn`, not `episodes`: a group that is all right is dropped by a host that redraws, and still has a history."""
    memory = Memory()
    with memory.writing():
        ShorterThanBefore().observe(StepRecord(0, [answer(1, "q", 50, 1.0)], None, {}, None, HISTORY), memory)
    assert ShorterThanBefore()(Context(memory=memory), [answer(9, "q", 1000, 1.0)])["length"] == pytest.approx([0.0])


def test_hapo_right_always_has_more_than_wrong() -> None:
    shorter, m = ShorterThanBefore(), seen(ShorterThanBefore(), HISTORY)
    lengths = (1, 300, 999, 1001, 1700, 9000)
    right, wrong = (
        [r + v for v in shorter(Context(memory=m), [answer(i, "q", n, r) for i, n in enumerate(lengths)])["length"]]
        for r in (1.0, 0.0)
    )
    assert min(right) == pytest.approx(0.3) and max(wrong) == 0.0


def test_hapo_is_its_base_with_one_more_reward() -> None:
    m: Method = method("hapo_history")
    assert m.base == "grpo" and m.but(name="grpo", reward=()).credit == method("grpo").credit


def test_hapo_of_an_answer_of_one_token() -> None:
    """Half the length of the shortest: cos(π/4)."""
    memory = seen(ShorterThanBefore(), [answer(0, "q", 2, 1.0)])
    found = ShorterThanBefore()(Context(memory=memory), [answer(1, "q", 1, 1.0)])["length"]
    assert found == pytest.approx([math.sqrt(0.5)])


def test_hapo_remembers_the_same_after_a_step_without_answers() -> None:
    history = [answer(0, "q", 7, 1.0), answer(1, "p", 3, 1.0)]
    before, after = (seen(ShorterThanBefore(), *steps)["shortest"] for steps in ([history], [history, []]))
    assert {k: v.tolist() for k, v in before.items()} == {k: v.tolist() for k, v in after.items()}
