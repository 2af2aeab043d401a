"""Pitfall 25: "shuffling/balancing breaks groups". Rule: "group id carried with the row".

If the bug came back, advantages would depend on where an answer stands in the batch, a minibatch would hold half a
group, or micro-batches that are cut by length would change statistics. The bug is planted as a reshape to (groups,
samples).
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import advantages, batch_of, drawn, running

from gruppo.data import Batch, Episode, minibatches
from gruppo.methods import method
from gruppo.stages.update import Passes


def reshaped(episodes: list[Episode], samples: int) -> dict[int, float]:
    """The bug: neighbours are taken for a group."""
    rewards = np.nan_to_num([e.total for e in episodes]).reshape(-1, samples)
    with np.errstate(all="ignore"):
        adv = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-6)
    return dict(zip([e.uid for e in episodes], adv.flatten().tolist(), strict=True))


def test_the_order_of_answers_does_not_matter(policy: Path) -> None:
    with running(policy) as run:
        episodes = drawn(run)
        shuffled = [episodes[i] for i in np.random.default_rng(0).permutation(len(episodes))]
        balanced = sorted(episodes, key=lambda e: e.tokens)
        want = advantages(batch_of(run, episodes))
        assert reshaped(episodes, 4) == pytest.approx(want, abs=1e-5)  # as long as nobody moves a row
        for other in (shuffled, balanced):
            assert advantages(batch_of(run, other)) == pytest.approx(want, abs=1e-5)
            assert reshaped(other, 4) != pytest.approx(want, abs=0.1)


def test_groups_of_unequal_size_stay_apart(policy: Path) -> None:
    """Failures are left out: no rectangle any more."""
    with running(policy, "grpo", "flaky") as run:
        episodes = drawn(run)
        judged = [e for e in episodes if e.status.judged]
        assert len({sum(e.group == g for e in judged) for g in {e.group for e in judged}}) > 1
        want = advantages(batch_of(run, episodes))
        got = advantages(batch_of(run, judged[::-1]))
        assert all(got[uid] == pytest.approx(want[uid], abs=1e-5) for uid in got)
        with pytest.raises(ValueError, match="reshape"):
            reshaped(judged[: len(judged) // 4 * 4 - 1], 4)


@pytest.mark.parametrize("count", [2, 3, 8, 20])
def test_minibatches_hold_whole_groups(policy: Path, count: int) -> None:
    with running(policy) as run:
        batch = batch_of(run, drawn(run))
    size = {int(u): int(n) for u, n in zip(batch.uid_G, batch.gather(batch.reward_E, "E", "G", "count"), strict=True)}
    parts = minibatches(batch, count, "shuffle")
    seen: list[int] = []
    for part in parts:
        mine = part.gather(part.reward_E, "E", "G", "count")
        assert all(size[int(u)] == int(n) for u, n in zip(part.uid_G, mine, strict=True))
        seen += part.uid_G.tolist()
    assert sorted(seen) == sorted(size) and len(parts) == min(count, 8)
    rows = torch.randperm(32, generator=torch.Generator().manual_seed(0)).tensor_split(count)  # the bug: rows are dealt
    dealt = [batch.minibatch(torch.sort(r)[0]) for r in rows]
    assert any(int(p.gather(p.reward_E, "E", "G", "count").max()) < 4 for p in dealt)


def test_the_update_goes_through_every_group_once_an_epoch(policy: Path) -> None:
    class Listening:
        trained = ("policy",)

        def __init__(self) -> None:
            self.parts: list[Batch] = []

        def step(self, role: str, part: Batch) -> None:
            self.parts.append(part)

    with running(policy, method("grpo").but(update=Passes(epochs=2, minibatches=3))) as run:
        batch, learner = batch_of(run, drawn(run)), Listening()
        run.method.update(run.learner.ctx, learner, batch)
    epochs = learner.parts[:3], learner.parts[3:]
    for parts in epochs:
        assert sorted(u for p in parts for u in p.uid_E.tolist()) == sorted(batch.uid_E.tolist())
    orders: list[Any] = [[p.uid_G.tolist() for p in parts] for parts in epochs]
    assert orders[0] != orders[1]  # shuffled anew
    want = advantages(batch)
    assert all(advantages(p)[u] == want[u] for p in learner.parts for u in p.uid_E.tolist())
