"""Evidence for d3s: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import evidence
import torch
from hand import FAILED, answer, batch_of, close, group, mean
from small_batches import kept

from gruppo.data import Key
from gruppo.methods.d3s import DownSample, most_varied

test_laws = evidence.laws("d3s")
test_asks = evidence.asks("d3s")
test_planted_mistakes = evidence.planted("d3s")
test_equivalences = evidence.equivalences("d3s")
test_resume = evidence.resume("d3s")


def widest(x: list[float], share: float, parts: list[int] | None = None, luck: list[float] | None = None) -> list[bool]:
    key = torch.tensor(parts or [0] * len(x))
    luck_X = torch.tensor(luck or [i / 10 for i in range(len(x))])
    every = torch.ones(len(x), dtype=torch.bool)
    return most_varied(
        torch.tensor(x, dtype=torch.float64), Key(key, int(key.max()) + 1), share, luck_X, every
    ).tolist()


def test_d3s_card() -> None:
    """Card: of (1.5, −.5, −.5, −.5) two are 1.5 and one −.5, of variance 2 (with n − 1), above 1."""
    chosen = widest([1.5, -0.5, -0.5, -0.5], 0.5)
    assert chosen == [True, True, False, False]
    assert widest([1.5, -0.5, -0.5, -0.5], 0.5, luck=[0.0, 0.3, 0.1, 0.2]) == [True, False, True, False]
    two = [1.5, -0.5]
    close(sum((v - mean(two)) ** 2 for v in two), 2.0)


def test_d3s_both_ends() -> None:
    """Every split is tried; each part for itself; a share rounds up; one row stays."""
    assert widest([3.0, 2.95, 0.0, 0.1, 0.2], 0.6) == [True, True, True, False, False]
    assert widest([0.0, 3.0, 3.1, 3.2, 0.1], 0.8) == [True, False, True, True, True]
    assert widest([5.0, 1.0, 2.0, 9.0, 8.0], 0.5, parts=[0, 1, 0, 0, 1]) == [False, True, True, True, False]
    assert widest([1.0], 0.1) == [True] and widest([0.0] * 4, 0.5) == [True, True, False, False]


def test_d3s_lemma() -> None:
    """Any standardised set has a subset of any size of two or more with a variance of at least 1."""
    x = torch.randn(9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (x - x.mean()) / x.std(unbiased=False)
    for size in range(2, 9):
        some = x[torch.tensor(widest(x.tolist(), size / 9))]
        assert len(some) == size and float(some.var(unbiased=False)) >= 1


def test_d3s_tokens() -> None:
    """Two of three answers, and of their five tokens the two with the largest |A| H, and one of each answer."""
    batch = batch_of(
        group([1.0, 0.0, 0.4], [3, 2, 2]),
        adv_N=[2.0, 2.0, 2.0, -1.0, -1.0, 0.1, 0.1],
        entropy_old_N=[0.5, 0.9, 0.8, 0.1, 0.2, 9.0, 9.0],
    )
    some = DownSample(0.5, 0.5, 1.0, 0.4, 0.4)
    assert kept(some, batch) == [False, True, True, False, True, False, False]
    late = DownSample(0.5, 1.0, 1.0, 0.4, 1.0)
    assert kept(late, batch) == kept(some, batch) and kept(late, batch, step=10, steps=10) == [True] * 7
    half = DownSample(1.0, 1.0, 0.5, 1.0, 1.0)
    assert kept(half, batch) == [True] * 5 + [False] * 2


def test_d3s_edges() -> None:
    """Groups without advantage are the last to be taken; failed answers are no choice; nothing to choose from."""
    a, b = group([1.0, 0.0], name="a"), group([1.0, 1.0], name="b", first=2)
    batch = batch_of([*a, *b, answer(9, "a", 1, None, **FAILED)], adv_N=[0.7, -0.7, 0, 0, 9.0], entropy_old_N=[1.0] * 5)
    assert kept(DownSample(1.0, 1.0, 0.5, 1.0, 1.0), batch) == [True, True, False, False, False]
    alone = batch_of([answer(0, "g", 1, None, **FAILED)], adv_N=[0.0], entropy_old_N=[1.0])
    assert kept(DownSample(), alone) == [False]


def test_d3s_an_answer_is_worth_what_is_learned_of_it() -> None:
    """Advantages of 1, −1 and 0: the first two differ most. The third has a token of 9 that was dropped before."""
    episodes = group([1.0, 0.0, 0.5], 2)
    batch = batch_of(episodes, adv_N=[1.0, 1.0, -1.0, -1.0, 0.0, 9.0], entropy_old_N=[1.0] * 6)
    batch = batch.with_columns(keep_N=torch.tensor([True] * 5 + [False]))
    assert kept(DownSample(0.5, 0.5, 1.0, 1.0, 1.0), batch) == [True] * 4 + [False] * 2
