"""Pitfall 16: "std=0, near-zero std from E[x²]−E[x]² cancellation, group of one (…raw reward as advantage), biased
vs unbiased std, epsilon inside/outside". Rule: "exact-equality group test, two-pass variance, defined behaviour for
n=1".

If the bug came back, equal rewards would have an advantage (up to ±1e6 where a rounding error is divided by a
rounding error), a single sample would be pushed by its raw reward, or worked numbers would change.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import advantages, answer, running

from gruppo.data import pack
from gruppo.stages import Context
from gruppo.stages.credit import GroupNormalised, LeaveOneOut


def credit(rewards: list[float], room: object = None, dtype: torch.dtype = torch.float32) -> list[float]:
    batch = pack([answer(i, r) for i, r in enumerate(rewards)], dtype=dtype)
    return list(advantages(batch.with_columns(**(room or GroupNormalised())(Context(), batch))).values())


def textbook(rewards: list[float], ddof: int = 0) -> np.ndarray:
    """The bug: E[x²] − E[x]² in float32, and nothing added to a std of 0."""
    x = np.array(rewards, np.float32)
    var = (np.mean(x * x, dtype=np.float32) - np.mean(x, dtype=np.float32) ** 2) * len(x) / max(len(x) - ddof, 1)
    with np.errstate(all="ignore"):
        return (x - np.mean(x, dtype=np.float32)) / np.sqrt(var)


@pytest.mark.parametrize("room", [GroupNormalised(), LeaveOneOut()], ids=str)
@given(value=st.floats(-1e6, 1e6, width=32), size=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_equal_rewards_have_no_advantage(room: object, value: float, size: int) -> None:
    assert credit([value] * size, room) == [0.0] * size


def test_the_textbook_variance_invents_one() -> None:
    groups = [[v] * n for v in np.linspace(0.01, 100, 200) for n in (3, 5, 7, 9)]
    assert any(np.isnan(textbook(g)).any() for g in groups)  # 0 / 0, or the root of a negative number
    rounded = [(x - x.mean()) / x.std(ddof=1) for x in (np.array(g, np.float32) for g in groups) if x.std() > 0]
    assert rounded and max(np.abs(z).max() for z in rounded) > 0.4  # a rounding error divided by itself
    assert all(credit(g) == [0.0] * len(g) for g in groups[::40])


def test_a_large_offset_does_not_cancel() -> None:
    small, large = ([b + x for x in (0.0, 1.0, 1.0, 0.0, 1.0)] for b in (0.0, 10_000.0))
    assert credit(large) == pytest.approx(credit(small), rel=1e-3)
    assert not np.allclose(textbook(large, 1), textbook(small, 1), rtol=0.05)


def test_rewards_that_differ_by_rounding_are_almost_equal() -> None:
    """0.1 + 0.2 and 0.3: eps stands outside the root, so the advantage is tiny, not ±1."""
    sums = [{"a": 0.1, "b": 0.2}, {"a": 0.3, "b": 0.0}, {"a": 0.2, "b": 0.1}, {"a": 0.15, "b": 0.15}]
    got = credit(sums, dtype=torch.float64)  # type: ignore[arg-type]
    assert max(map(abs, got)) < 1e-9
    raw = np.array([sum(s.values()) for s in sums])
    assert raw.std(ddof=1) > 0 and np.abs((raw - raw.mean()) / raw.std(ddof=1)).max() > 0.4  # without eps


def test_a_group_of_one_has_no_advantage(policy: Path) -> None:
    for room in (GroupNormalised(), LeaveOneOut()):
        assert credit([5.0], room) == [0.0]  # the bug: mean 0 and std 1 leave the raw reward, 5
    for name in ("grpo", "rloo", "dapo", "disco"):
        with pytest.raises(ValueError, match="samples=1"), running(policy, name, samples=1):
            pass


def test_worked_numbers() -> None:
    """1, 0, 0, 1, 1: mean 0.6, std 0.5477 with n − 1 and 0.4899 with n."""
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0]
    assert credit(rewards)[:2] == pytest.approx([0.730297 - 1.3e-6, -1.095445 + 2e-6], abs=2e-6)
    assert textbook(rewards)[0] == pytest.approx(0.816497, abs=1e-5)  # biased: another number
    assert credit(rewards, GroupNormalised(eps=0.1))[0] == pytest.approx(0.4 / (0.547723 + 0.1), abs=1e-5)
    assert abs(0.4 / (0.3 + 0.1) ** 0.5 - credit(rewards, GroupNormalised(eps=0.1))[0]) > 0.01  # eps inside the root
    assert credit(rewards, LeaveOneOut()) == pytest.approx([0.5, -0.75, -0.75, 0.5, 0.5])
