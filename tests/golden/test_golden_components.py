"""Worked numbers of gdpo, copo, empo and unlikeliness: rewards of several components, and answers that agree.

Numbers marked "card" were worked from the authors' code or the paper's figure; the others are plain sums here.
"""

from hand import batch_of
from small_batches import paid

from gruppo.data import Turn

# several rewards in one method


def test_components_are_learned_as_they_are_paid() -> None:
    """What another component replaces is in `reward_EC`, and in no return."""
    e = paid([{"task": 1.0, "form": 0.5}])[0]
    e.turns = [Turn(2, 3, reward={"form": 0.25, "step": 2.0})]
    e.replaced = frozenset({"task", "step"})
    batch = batch_of([e])
    assert batch.components == ("form", "step", "task") and e.total == 0.75
    assert batch.reward_EC.tolist()[0][::2] == [0.5, 1.0] and batch.return_EC.tolist() == [[0.75, 0, 0]]
    assert batch.paid_EC.tolist() == [[True, False, False]]
    assert batch.reward_E.tolist() == [0.75] and batch.reward_K.tolist() == [0.25]
