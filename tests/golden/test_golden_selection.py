"""Worked numbers of forking_tokens and d3s: which answers and tokens are chosen.

Numbers marked "card" were worked from the authors' code or the paper's example; the others are plain sums here.
"""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hand import Status, answer, batch_of, by_expert, column, mean, objective

from gruppo.data import Batch, Episode, Key
from gruppo.methods import method
from gruppo.methods.d3s import DownSample, most_varied
from gruppo.stages import Context, Stats
from gruppo.stages.select import TopEntropy, share_of, through_second_door

FAILED = {"status": Status.ENV_ERROR}


def close(a: object, b: object, tol: float = 1e-12) -> None:
    assert a == pytest.approx(b, abs=tol, rel=0)


def group(rewards: Sequence[float | None], tokens: Any = 1, name: str = "g", first: int = 0) -> list[Episode]:
    lengths = [tokens] * len(rewards) if isinstance(tokens, int) else tokens
    return [answer(first + i, name, n, r) for i, (r, n) in enumerate(zip(rewards, lengths, strict=True))]


# forking_tokens


def kept(select: Any, batch: Batch, **ctx: Any) -> list[bool]:
    return column(through_second_door(Context(**ctx), (select,), batch, Stats(), current=False).learn_N)


def test_forking_tokens_card() -> None:
    """Card: H = (.1, .2, 2, .05, .3) and ρ = .2: the third token only, and the mean is that token's, not a fifth."""
    entropy = [0.1, 0.2, 2.0, 0.05, 0.3]
    batch = batch_of(group([1.0], 5), entropy_old_N=entropy)
    assert kept(TopEntropy(share=0.2), batch) == [False, False, True, False, False]
    two = batch_of(group([1.0, 0.0], [5, 1]), entropy_old_N=[*entropy, 0.0], logp_old_N=[-1.0] * 6)
    m = method("forking_tokens").but(reward=())
    _, slope = objective(m.but(select=(TopEntropy(share=0.1),)), two, logp_N=[-1.0] * 6)
    a = math.sqrt(0.5) / (1 + math.sqrt(2) * 1e-6)
    close(slope["logp_N"], [0.0, 0.0, a, 0.0, 0.0, 0.0])
    _, counted = objective(m.but(select=(TopEntropy(share=0.1, counted=True),)), two, logp_N=[-1.0] * 6)
    close(counted["logp_N"], [x / 6 for x in slope["logp_N"]])  # TRL: a sixth, that of all tokens


def test_the_share_is_rounded_up() -> None:
    """ceil(ρ n), as the authors' code has it; 0.29 · 100 = 28.999… is 29; at least one, at most all."""
    assert [share_of(0.2, n) for n in (1, 4, 5, 6, 7, 10, 11)] == [1, 1, 1, 2, 2, 2, 3]
    assert (share_of(0.29, 100), share_of(0.07, 100), share_of(1.0, 7), share_of(0.0, 7), share_of(0.2, 0)) == (
        29, 7, 7, 1, 0,
    )  # fmt: skip


def test_forking_tokens_edges() -> None:
    """Ties at the bar all stay; equal entropies keep all; tokens of failed answers set no bar; nothing to choose from
    is no error; what experts wrote is no part of the choice."""
    flat = batch_of(group([1.0, 0.0], 3), entropy_old_N=[0.5] * 6)
    assert kept(TopEntropy(share=0.2), flat) == [True] * 6
    ties = batch_of(group([1.0], 5), entropy_old_N=[0.1, 2.0, 2.0, 0.3, 0.2])
    assert kept(TopEntropy(share=0.2), ties) == [False, True, True, False, False]
    failed = batch_of([*group([1.0], 2), answer(1, "g", 2, None, **FAILED)], entropy_old_N=[0.1, 0.2, 5.0, 6.0])
    assert kept(TopEntropy(share=0.5), failed) == [False, True, False, False]
    assert kept(TopEntropy(), batch_of([answer(0, "g", 2, None, **FAILED)], entropy_old_N=[1.0, 2.0])) == [False] * 2
    theirs = batch_of([*group([1.0], 2), by_expert(answer(1, "g", 1, 1.0))], entropy_old_N=[0.1, 0.2, 0.0])
    chosen = through_second_door(Context(), (TopEntropy(share=0.5),), theirs, Stats(), current=False)
    assert column(chosen.keep_N) == [False, True, True]


# d3s


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
