"""Pitfall 21: "infrastructure failure scored as reward 0". Rule: "status field; excluded from group statistics or
retried".

A scorer that raises for every fourth answer is judged for real. If the bug came back, those answers would carry a
reward of 0, the advantages of their neighbours would rise, and the logged reward would fall.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_runs import advantages, batch_of, drawn, far, flat, grad_of, in_world, running, take_step

from gruppo.data import Episode, Status
from gruppo.train.metrics import episode_metrics


def as_zero(e: Episode) -> Episode:
    """The bug."""
    return e if e.status.judged else replace(e, status=Status.OK, reward={"task": 0.0})


def test_a_failure_is_a_status_and_leaves_no_trace(policy: Path) -> None:
    with running(policy, "grpo", "flaky") as run:
        episodes = drawn(run)
        failed = [e for e in episodes if not e.status.judged]
        assert 2 < len(failed) < 16
        for e in failed:
            assert e.status == Status.ENV_ERROR and e.reward == {} and e.total != e.total
            assert "no route to sandbox" in e.error

        with_failures = batch_of(run, episodes)
        without = batch_of(run, [e for e in episodes if e.status.judged])
        wrong = batch_of(run, [as_zero(e) for e in episodes])
        all_, judged, zeros = (advantages(b) for b in (with_failures, without, wrong))
        assert all(all_[uid] == judged[uid] for uid in judged)
        assert all(all_[e.uid] == 0.0 for e in failed)
        assert any(abs(zeros[uid] - judged[uid]) > 0.1 for uid in judged)

        right = grad_of(run, without)
        assert far(right, grad_of(run, with_failures)) < 1e-5 and far(right, grad_of(run, wrong)) > 0.05


def test_metrics_tell_failures_from_zeros(policy: Path) -> None:
    with running(policy, "grpo", "flaky") as run:
        facts = take_step(run).facts
        episodes = drawn(run, 1)
    assert 0 < facts["failed"] < 0.5
    judged = [e for e in episodes if e.status.judged]
    right, wrong = episode_metrics(episodes), episode_metrics([as_zero(e) for e in episodes])
    assert right["reward"] == pytest.approx(sum(e.total for e in judged) / len(judged))
    assert right["reward"] > wrong["reward"] and wrong["failed"] == 0.0


def test_a_step_in_which_too_much_failed_is_not_learned_from(policy: Path) -> None:
    with running(policy, "grpo", "broken") as run:
        before = flat(run.models["policy"])
        with pytest.raises(ValueError, match=r"100% of the episodes.*no route to sandbox|(?s:.*)max_failures"):
            take_step(run)
        assert torch.equal(before, flat(run.models["policy"])) and run.version == 0


def test_when_everything_may_fail_nothing_is_learned(policy: Path) -> None:
    """Nothing was judged: the first batch is refused, not learned as zeros."""
    with running(policy, "grpo", "broken", max_failures=1.0) as run:
        before = flat(run.models["policy"])
        with pytest.raises(ValueError, match="judged"):
            take_step(run)
        assert torch.equal(before, flat(run.models["policy"]))


def test_a_world_that_fails_in_the_middle_leaves_no_trace(policy: Path, tmp_path: Path) -> None:
    """What was paid and said before the failure counts for nothing either."""
    with running(policy, task=in_world(tmp_path, "Breaks")) as run:
        episodes = drawn(run)
        failed = [e for e in episodes if not e.status.judged]
        assert 0 < len(failed) < len(episodes) / 2
        assert all(e.status == Status.ENV_ERROR and "no answer" in e.error and e.reward == {} for e in failed)
        assert {len(e.turns) for e in failed} == {2}
        with_failures, without = batch_of(run, episodes), batch_of(run, [e for e in episodes if e.status.judged])
        all_, judged = advantages(with_failures), advantages(without)
        assert all(all_[uid] == judged[uid] for uid in judged) and all(all_[e.uid] == 0.0 for e in failed)
        wrong = batch_of(run, [as_zero(e) for e in episodes])
        right = grad_of(run, without)
        assert far(right, grad_of(run, with_failures)) < 1e-5 and far(right, grad_of(run, wrong)) > 0.05
