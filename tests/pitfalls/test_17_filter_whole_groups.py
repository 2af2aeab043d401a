"""Pitfall 17: "dynamic sampling filter after LOO drops only the odd one out". Rule: "filter by whole group".

If the bug came back, a group would lose some of its answers: those whose reward happens to be the mean of the
others. The statistics of the rest would then belong to another group than the one that is learned.
"""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch
from small_runs import answer, batch_of, drawn, running

from gruppo.data import Episode, pack
from gruppo.methods import method
from gruppo.stages import Context
from gruppo.stages.credit import LeaveOneOut
from gruppo.stages.select import RedrawEqualGroups, through_first_door

PLAIN = method("rloo").but(select=RedrawEqualGroups(max_rounds=2), credit=LeaveOneOut())


def sizes(episodes: list[Episode]) -> Counter[str]:
    return Counter(e.group for e in episodes)


def test_groups_come_through_the_door_whole_or_not_at_all(policy: Path) -> None:
    with running(policy, PLAIN, "thirds", prompts=16, samples=3) as run:
        ctx = run.context(0)
        everything, kept = asyncio.run(run.walk.collected(ctx))
        assert 0 < len(kept) < len(everything) and ctx.round > 0  # some groups were dropped and others drawn instead
        whole, left = sizes(everything), sizes(kept)
        assert all(left[g] >= 3 and left[g] % 3 == 0 for g in left)
        for group in left:
            assert len({e.reward["task"] for e in kept if e.group == group}) > 1
        assert any(g not in left for g in whole)

        batch = batch_of(run, kept)
        odd_E = batch.gather(batch.adv_N, "N", "E", "max") == 0  # the bug would drop these, one by one
        assert bool(odd_E.any())
        rest = sizes([e for e, odd in zip(kept, odd_E.tolist(), strict=True) if not odd])
        assert any(rest[g] % 3 for g in rest)


def test_dropping_the_odd_one_changes_the_others() -> None:
    """0, ½, 1: the middle one has no advantage; without it the others' advantage is another one."""
    three = [answer(i, r) for i, r in enumerate((0.0, 0.5, 1.0))]

    def adv(episodes: list[Episode]) -> list[float]:
        batch = pack(episodes, dtype=torch.float64)
        return batch.gather(LeaveOneOut()(Context(), batch)["adv_N"], "N", "E", "max").tolist()

    assert adv(three) == [-0.75, 0.0, 0.75] and adv([three[0], three[2]]) == [-1.0, 1.0]
    kept, _ = through_first_door(Context(), [RedrawEqualGroups(max_rounds=0)], three)
    assert kept == three


def test_a_failed_answer_neither_makes_a_group_mixed_nor_is_it_lost(policy: Path) -> None:
    """Judged answers decide; the door moves whole groups, failures included."""
    with running(policy, PLAIN, "flaky") as run:
        episodes = drawn(run)
        assert any(not e.status.judged for e in episodes)
        kept, _ = through_first_door(replace(run.context(0), round=99), run.method.select, episodes)
        before, after = sizes(episodes), sizes(kept)
        assert after and all(after[g] == before[g] for g in after)
        for group in before:
            judged = {e.total for e in episodes if e.group == group and e.status.judged}
            assert (group in after) == (len(judged) > 1)
