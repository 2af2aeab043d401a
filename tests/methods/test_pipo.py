"""Evidence for pipo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math
from collections.abc import Sequence

import evidence
import pytest
import torch
from hand import answer, batch_of
from looking_back import HINTED, credited

from gruppo.data import Batch, Episode, Status, Use, pack
from gruppo.methods.pipo import LookBack, attributed, improvement
from gruppo.stages import Context, Memory, StepRecord

test_laws = evidence.laws("pipo")
test_asks = evidence.asks("pipo")
test_planted_mistakes = evidence.planted("pipo")
test_resume = evidence.resume("pipo")


@pytest.mark.parametrize(("mean", "factor"), [(0.50, 3.0), (0.45, 1.5), (0.42, 0.0), (0.38, -0.2), (0.30, -0.3)])
def test_improvement_over_the_window(mean, factor):
    """Past means .40, .44, .42: mean .42, deviation .02. 0.50 is +4, bounded by 3; 0.38 is -2, of which a tenth."""
    assert improvement(mean, [0.40, 0.44, 0.42], undo=0.1, limit=3.0) == pytest.approx(factor, abs=1e-5)


def test_a_window_without_spread_is_bounded():
    assert improvement(0.5, [0.4, 0.4], undo=0.1, limit=3.0) == 3.0
    assert improvement(0.4, [0.4, 0.4], undo=0.1, limit=3.0) == 0.0
    assert improvement(0.3, [0.4, 0.4], undo=0.0, limit=3.0) == 0.0


def test_every_group_has_the_size_of_its_number():
    """A = (1.5, -.5, -.5, -.5): Σ|A| = 3, G = 4, so a = (2, -2/3, -2/3, -2/3). A group of zeros stays zero."""
    first = [credited(i, (a, a), group="g") for i, a in enumerate((1.5, -0.5, -0.5, -0.5))]
    second = [credited(10 + i, (0.0, 0.0), group="h") for i in range(2)]
    failed = credited(20, (9.0, 9.0), group="g", status=Status.TIMEOUT)
    batch = pack([*first, *second, failed])
    batch = attributed(batch.with_columns(adv_N=batch.note_adv_N), factor=-0.5)
    adv_E = batch.gather(batch.adv_N, "N", "E", "mean")
    torch.testing.assert_close(adv_E[:6], torch.tensor([-1.0, 1 / 3, 1 / 3, 1 / 3, 0.0, 0.0]))


def test_means_of_the_last_steps_are_remembered():
    update, memory = LookBack(window=2), Memory()
    for step, rewards in enumerate(((1.0, 0.0), (1.0, 1.0), (0.0, 0.0, 1.0, 0.0))):
        batch = pack([credited(i, reward=r) for i, r in enumerate(rewards)])
        with memory.writing():
            update.observe(StepRecord(step, (), batch, {}), memory)
            update.observe(StepRecord(step, (), None, {}), memory)
    assert memory["batch_means"] == pytest.approx([1.0, 0.25])
    failed = pack([credited(i, status=Status.TIMEOUT) for i in range(2)])
    with memory.writing():
        update.observe(StepRecord(3, (), failed, {}), memory)  # nothing was judged: that is no mean
    assert memory["batch_means"] == pytest.approx([1.0, 0.25])
    with pytest.raises(ValueError, match=r"window=1 .*>= 2"):
        LookBack(window=1)


@pytest.mark.parametrize(("mean", "factor"), [(0.43, 0.5), (0.42, 0.0), (0.41, -0.05)])
def test_pipo_of_a_small_improvement(mean: float, factor: float) -> None:
    """Past means of .42 ± .02: half a deviation up counts whole, half a deviation down a tenth."""
    assert improvement(mean, [0.40, 0.44, 0.42], undo=0.1, limit=3.0) == pytest.approx(factor, abs=1e-6)


def shared(episodes: Sequence[Episode], adv: list[float]) -> list[float]:
    return attributed(batch_of(episodes, adv_N=adv), 1.0).adv_N.tolist()


def test_pipo_of_small_advantages() -> None:
    """A = ±1/8: Σ|A| = ¼, G = 2, so a = ±1."""
    assert shared([answer(0, "g", 1, 1.0), answer(1, "g", 1, 0.0)], [0.125, -0.125]) == pytest.approx([1.0, -1.0])


def test_pipo_sizes_are_those_of_tokens_that_are_learned() -> None:
    """|A| = 1 and 3, so a = (½, −3/2): neither the 9 on a hint nor the 5 of an answer apart is in the sum."""
    episodes = [answer(0, "g", 1, 1.0, **HINTED), answer(1, "g", 1, 0.0), answer(2, "g", 1, 1.0, use=Use.APART)]
    found = shared(episodes, [9.0, 1.0, -3.0, 5.0])
    assert [found[1], found[2]] == pytest.approx([0.5, -1.5])


def test_pipo_of_a_group_without_advantages() -> None:
    """It says nothing, whatever stands apart in it."""
    episodes = [answer(0, "g", 1, 1.0), answer(1, "g", 1, 1.0), answer(2, "g", 1, 1.0, use=Use.APART)]
    assert shared(episodes, [0.0, 0.0, 0.5]) == [0.0] * 3


class Steps:
    """A learner that says what it was told."""

    trained = ("policy",)

    def __init__(self) -> None:
        self.told = list[tuple[list[float], float | None, bool]]()

    def lr(self, role: str) -> float:
        return 0.25

    def step(self, role: str, batch: Batch, lr: float | None = None, penalties: bool = True) -> None:
        self.told.append((batch.adv_N.tolist(), lr, penalties))


def looked_back(
    past: list[float], replay: list[Episode], status: Status = Status.OK
) -> list[tuple[list[float], float | None, bool]]:
    """Steps on a batch of mean .5, when two answers with A = ±2 were learned from before."""
    learner, two = Steps(), [answer(0, "g", 1, 1.0, status=status), answer(1, "g", 1, 0.0, status=status)]
    ctx = Context(memory=Memory(batch_means=past), replay=replay)
    ctx.read = lambda episodes, readouts: batch_of(episodes, note_adv_N=[2.0, -2.0])
    LookBack(window=2, lr_scale=0.5)(ctx, learner, batch_of(two, adv_N=[0.7, -0.7]))
    return learner.told


def test_pipo_steps_back_when_its_window_is_full_and_something_is_remembered() -> None:
    """Past means .2 and .4: ξ = .2/√.02 = √2, a = ±1, at half the policy's learning rate, without penalties."""
    two, forward = [answer(8, "h", 1, 1.0), answer(9, "h", 1, 0.0)], ([0.7, -0.7], None, True)
    assert looked_back([0.4], two) == [forward]
    assert looked_back([0.2, 0.4], []) == [forward]
    assert looked_back([0.2, 0.4], two, Status.TIMEOUT) == [forward]  # nothing was judged, so nothing rose or fell
    [(adv, lr, penalties), after] = looked_back([0.2, 0.4], two)
    assert adv == pytest.approx([math.sqrt(2), -math.sqrt(2)], rel=1e-6) and (lr, penalties) == (0.125, False)
    assert after == forward
