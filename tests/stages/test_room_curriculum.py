"""Which tasks come: every one once an epoch, at a place that the step says, and others when a draw is repeated."""

import pytest
import torch
from rooms import context, task

from gruppo.data import permutation
from gruppo.data.keyed import uniform
from gruppo.stages.curriculum import Uniform

TASKS = [task(i) for i in range(7)]


def drawn(tasks: int = 7, **ctx: int) -> list[int]:
    return [int(a.task.uid[1:]) for a in Uniform()(context(**ctx), TASKS[:tasks])]


@pytest.mark.parametrize(("size", "prompts"), [(7, 3), (7, 7), (5, 5), (3, 7), (1, 4), (4, 1)])
def test_every_task_once_an_epoch(size: int, prompts: int) -> None:
    """Whatever the cut into steps: also where a step spans the end of an epoch, or several epochs."""
    row = [i for step in range(size) for i in drawn(size, step=step, prompts=prompts)]
    assert len(row) == size * prompts
    epochs = [row[a : a + size] for a in range(0, len(row), size)]
    assert all(sorted(e) == list(range(size)) for e in epochs)
    assert epochs == [permutation(size, 0, "epoch", e).tolist() for e in range(len(epochs))]


def test_the_order_goes_by_seed_and_epoch() -> None:
    orders = {tuple(drawn(step=step, prompts=7, seed=seed)) for step in range(3) for seed in range(3)}
    assert len(orders) == 9


def test_an_ask_has_the_samples_of_the_run() -> None:
    [ask] = Uniform()(context(prompts=1, samples=5), TASKS)
    assert ask.samples == 5 and ask.group == ask.task.uid


def test_a_draw_again_takes_other_tasks_out_of_turn() -> None:
    """No task twice in one draw; another draw in another round, step or run."""
    draws = {tuple(drawn(prompts=4, round=r, step=t, seed=s)) for r in (1, 2) for t in (0, 1) for s in (0, 1)}
    assert len(draws) == 8 and all(len(set(d)) == 4 for d in draws)


@pytest.mark.parametrize("seed", range(12))
def test_a_draw_again_by_its_key(seed: int) -> None:
    """The first four different ones of four times as many draws; a small set that they do not fill is shuffled."""
    for size, n in ((7, 4), (7, 7), (4, 4), (3, 4)):
        u = uniform(seed, 5, "again", 2, torch.arange(4 * n))
        assert isinstance(u, torch.Tensor)
        picks = list(dict.fromkeys((u * size).long().tolist()))[:n]
        if len(picks) < n:
            picks = permutation(size, seed, "again", 5, 2)[:n].tolist()
        assert drawn(size, prompts=n, round=2, step=5, seed=seed) == picks
