"""Sums of two digits: 70 to train on, 30 held out, and no sum on both sides in another order."""

import pytest

from gruppo.tasks import family, load_object, load_task


def test_the_split():
    sets = load_task("sums")
    train, held = ({(t.meta["a"], t.meta["b"]) for t in split} for split in (sets.train, sets.held_out))
    assert len(train) == len(sets.train) == 70 and len(held) == len(sets.held_out) == 30
    assert train | held == {(a, b) for a in range(10) for b in range(10)}
    assert not train & {(b, a) for a, b in held}
    assert {a + b for a, b in held} >= {8, 9, 10} and len({a + b for a, b in held}) > 9  # small and large ones
    assert all(family("sums").held_out(1, 10 * a + b) == ((a, b) in held) for a in range(10) for b in range(10))


def test_the_seed_orders_and_nothing_else():
    one, two = load_task("sums", seed=1), load_task("sums", seed=2)
    assert [t.uid for t in one.train] != [t.uid for t in two.train]
    assert {t.uid for t in one.held_out} == {t.uid for t in two.held_out}
    assert len(load_task("sums", train_size=10).train) == 10


@pytest.mark.parametrize(
    ("text", "right"),
    [("7", 1), (" 7.\n", 1), ("07", 0), ("3 + 4 = 7", 1), ("7, no 8", 0), ("", 0), ("-7", 0), ("7.5", 0)],
)
def test_score(text, right):
    task = next(t for t in [*load_task("sums").train, *load_task("sums").held_out] if t.uid == "sums/3+4")
    assert task.prompt == "What is 3 + 4? Answer with just the number."
    assert load_object(family("sums").scorer)(task, text) == right
