"""The way of the data: who is scored when, how often and in which order; what joins a batch, and when there is none."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from rooms import context, task

from gruppo.data import Batch, Episode, Status, Use, single_turn
from gruppo.methods import method
from gruppo.stages import Ask, Context, Need, Occupant, Prompt
from gruppo.stages.play import Fork, Start, one_answer
from gruppo.stages.reward import add_components
from gruppo.stages.select import RedrawEqualGroups
from gruppo.stages.walk import Walk
from gruppo.tasks.pool import Verdict

TASKS = [task(i) for i in range(4)]
ASKS = [Ask(t, 2, index=i) for i, t in enumerate(TASKS[:3])]
GRPO = method("grpo")


class Judge:
    """Right or wrong by the parity of the task, or a verdict of its own; notes every call.

    `until` calls must have run at the same time before one of them ends.
    """

    def __init__(self, in_order: bool = False, until: int = 1, *verdicts: Verdict) -> None:
        self.in_order, self.until, self.verdicts = in_order, until, list(verdicts)
        self.calls: list[list[str]] = []
        self.groups: list[list[str]] = []
        self.running = self.most = 0

    async def score(self, items: Sequence[tuple[Any, str]]) -> list[Verdict]:
        self.calls.append([t.uid for t, _ in items])
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            async with asyncio.timeout(60):
                while self.most < self.until:
                    await asyncio.sleep(0.001)
        finally:
            self.running -= 1
        if self.verdicts:
            return [self.verdicts.pop(0) for _ in items]
        return [Verdict({"task": float(int(t.uid[1:]) % 2)}) for t, _ in items]

    async def answers(self, groups: Sequence[Sequence[tuple[Any, str]]]) -> list[list[str]]:
        self.groups += [[t.uid for t, _ in group] for group in groups]
        return [[f"{t.uid} {i}" for i, (t, _) in enumerate(group)] for group in groups]


def no_read(role: str, batch: Batch, needs: list[Need]) -> dict[str, torch.Tensor]:
    return {n.column: torch.zeros(batch.size("N")) for n in needs}


def opened(walk: Walk, store: Sequence[Episode] = (), **fields: Any) -> Context:
    return walk.opened(context(**fields), store)


def walk(furniture: Any = GRPO, judge: Any = None, **fields: Any) -> Walk:
    return Walk(furniture, no_read, **{"tasks": TASKS, "judge": judge, **fields})


@dataclass(frozen=True)
class Component(Occupant):
    """Pays 1 for each time that an episode comes by; one of groups says who was there."""

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> dict[str, list[float]]:
        return {"bonus": [1.0] * len(episodes)}


@dataclass(frozen=True)
class OfGroups(Occupant):
    of_groups = True

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> dict[str, list[float]]:
        return {"company": [float(len(episodes))] * len(episodes)}


def judged(uid: int, reward: float = 1.0, **fields: Any) -> Episode:
    e = single_turn(uid, "t0", f"g{uid % 2}", np.array([1, 4]), np.arange(5, 8), np.full(3, -1.0), 0, step=0, **fields)
    e.reward = {"task": reward}
    return e


# an episode passes the reward room once


@dataclass(frozen=True)
class Asks(Occupant):
    """A rollout that asks for the rewards of its episodes itself, `times` times."""

    times: int = 1

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        episodes = await ctx.play(prompts)
        for _ in range(self.times):
            back = await ctx.reward(episodes)
            assert all(a is b for a, b in zip(back, episodes, strict=True))
            assert all({"task", "bonus"} == set(e.reward) for e in episodes)
        return episodes


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("rollout", [Asks(0), Asks(1), Asks(2)], ids=str)
def test_an_episode_passes_the_reward_room_once(rollout: Asks, in_order: bool) -> None:
    """A second time the component would be refused, as one that two occupants write."""
    judge = Judge(in_order)
    way = walk(GRPO.but(reward=Component(), rollout=rollout), judge)
    made = asyncio.run(way.drawn(opened(way), ASKS, rollout))
    assert [e.reward for e in made] == [{"task": float(i % 2), "bonus": 1.0} for i in (0, 0, 1, 1, 2, 2)]
    assert sorted(uid for call in judge.calls for uid in call) == ["t0", "t0", "t1", "t1", "t2", "t2"]
    assert all(e.rewarded for e in made)
    asyncio.run(way.rewarded(opened(way), made))  # nor in a later step
    assert {len(e.reward) for e in made} == {2} and sum(map(len, judge.calls)) == 6


def test_what_failed_is_scored_once_and_has_no_component() -> None:
    judge = Judge(True, 1, Verdict({}, "env_error", "no sandbox"), Verdict({}, "timeout", "hung"),
                  Verdict({"style": 1.0}), Verdict({"task": 0.5, "style": 2.0}))  # fmt: skip
    way = walk(GRPO.but(reward=Component()), judge)
    made = asyncio.run(way.drawn(opened(way), [replace(ASKS[0], samples=4)], GRPO.rollout))
    assert [e.status for e in made] == [Status.ENV_ERROR, Status.TIMEOUT, Status.ENV_ERROR, Status.OK]
    assert [e.reward for e in made] == [{}, {}, {}, {"task": 0.5, "style": 2.0, "bonus": 1.0}]
    assert made[0].error == "no sandbox" and "none called `task`" in made[2].error and "style" in made[2].error
    asyncio.run(way.rewarded(opened(way), made))
    assert judge.calls == [["t0"] * 4]


def test_an_episode_that_comes_with_its_reward_is_not_judged() -> None:
    judge = Judge()
    way = walk(GRPO.but(reward=Component()), judge)
    e = single_turn(1, "t0", "t0", np.array([1]), np.array([5]), np.zeros(1), 0, reward={"task": 0.25}, index=0)
    asyncio.run(way.rewarded(opened(way), [e]))
    assert judge.calls == [] and e.reward == {"task": 0.25, "bonus": 1.0}


def test_a_fork_of_a_rewarded_episode_is_an_episode_of_its_own() -> None:
    way = walk(GRPO.but(reward=Component()), Judge())
    ctx = opened(way)
    [first] = asyncio.run(way.drawn(ctx, [replace(ASKS[1], samples=1)]))
    at = first.sequences[0].prompt_len + 1
    [second] = asyncio.run(way.rewarded(ctx, asyncio.run(ctx.play([Fork(first, at, 99, ctx.sampling)]))))
    assert second.reward == first.reward == {"task": 1.0, "bonus": 1.0} and second.reward is not first.reward


# scoring and playing at the same time


class Plays:
    """Yields the episodes of these numbers, with a pause after each; notes what the judge has got by then."""

    def __init__(self, judge: Judge, order: Sequence[int], fails_after: int = 99) -> None:
        self.judge, self.order, self.fails_after = judge, order, fails_after
        self.judged_before: list[int] = []

    async def __call__(
        self, ctx: Context, starts: Sequence[Start | Fork], window: int = 0
    ) -> AsyncIterator[tuple[int, Episode]]:
        made = dict([pair async for pair in one_answer(ctx, starts, window)])
        for n, i in enumerate(self.order):
            if n == self.fails_after:
                raise ConnectionError("the engine is gone")
            self.judged_before.append(sum(map(len, self.judge.calls)))
            yield i, made[i]
            await asyncio.sleep(0.01)


def test_episodes_are_scored_while_others_are_played() -> None:
    judge, order = Judge(until=2), [5, 3, 0, 1, 4, 2]
    play = Plays(judge, order)
    way = walk(judge=judge, play=play)
    made = asyncio.run(way.drawn(opened(way), ASKS))
    assert play.judged_before[0] == 0 and play.judged_before[-1] >= 2  # the judge has begun before the last was played
    assert len(judge.calls) > 1 and judge.most > 1  # some at a time; a call does not wait for the one before it
    assert judge.calls[0] == ["t2"] and sorted(u for call in judge.calls for u in call) == [
        "t0",
        "t0",
        "t1",
        "t1",
        "t2",
        "t2",
    ]
    assert [e.task for e in made] == ["t0", "t0", "t1", "t1", "t2", "t2"]  # as they were asked for
    assert [e.reward["task"] for e in made] == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(("pause", "calls"), [(60.0, [6]), (0.0, [2, 2, 2])])
def test_episodes_that_end_together_are_one_call_unless_that_takes_long(
    pause: float, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gruppo.stages.scoring.PAUSE", pause)
    judge = Judge()

    async def at_once(
        ctx: Context, starts: Sequence[Start | Fork], window: int = 0
    ) -> AsyncIterator[tuple[int, Episode]]:
        for pair in [pair async for pair in one_answer(ctx, starts, window)]:
            yield pair  # it never waits

    way = walk(judge=judge, play=at_once)
    made = asyncio.run(way.drawn(opened(way), ASKS))
    assert [len(call) for call in judge.calls] == calls
    assert [e.reward["task"] for e in made] == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]


def test_a_judge_of_ordered_answers_is_called_once_with_all_of_them_in_order() -> None:
    judge, order = Judge(in_order=True), [5, 3, 0, 1, 4, 2]
    play = Plays(judge, order)
    way = walk(judge=judge, play=play)
    asyncio.run(way.drawn(opened(way), ASKS))
    assert judge.calls == [["t0", "t0", "t1", "t1", "t2", "t2"]] and play.judged_before == [0] * 6


def others() -> set[Any]:
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.parametrize("fails_after", [0, 1, 3])
def test_a_player_that_fails_leaves_no_task_behind(fails_after: int) -> None:
    """Nor a coroutine that nobody waited for: a warning would be an error here."""
    judge = Judge(until=99)
    way = walk(judge=judge, play=Plays(judge, [5, 3, 0, 1, 4, 2], fails_after))

    async def go() -> None:
        with pytest.raises(ConnectionError, match="the engine is gone"):
            await way.drawn(opened(way), ASKS)
        assert others() == set() and judge.running == 0

    asyncio.run(go())


def test_a_judge_that_fails_fails_the_draw_and_leaves_no_task_behind() -> None:
    class Fails(Judge):
        async def score(self, items: Sequence[tuple[Any, str]]) -> list[Verdict]:
            await super().score(items)
            raise ValueError("the scorer cannot be loaded")

    judge = Fails()
    way = walk(judge=judge, play=Plays(judge, [5, 3, 0, 1, 4, 2]))

    async def go() -> None:
        with pytest.raises(ValueError, match="the scorer cannot be loaded"):
            await way.drawn(opened(way), ASKS)
        assert others() == set()

    asyncio.run(go())


# the task of an episode


def stray(**fields: Any) -> Episode:
    return single_turn(1, "t2", "t2", np.array([1]), np.array([5]), np.zeros(1), 0, **fields)


def test_an_episode_finds_its_task_by_its_ask_or_by_its_index() -> None:
    way, other = walk(), task(77)
    assert way.task_of(stray(ask=Ask(other, 1))) is other  # as it was asked, whatever the training set holds
    assert way.task_of(stray(index=2)) is TASKS[2]


@pytest.mark.parametrize("index", [-1, 0, 3, 4, 99])
def test_an_episode_without_an_ask_and_a_valid_index_is_refused(index: int) -> None:
    """Unknown, another task's, or beyond the training set: never the last one of a list by accident."""
    with pytest.raises(ValueError, match=r"task 't2' of an episode is not in the training set, so it cannot be scored"):
        walk().task_of(stray(index=index))
    way = walk(judge=Judge())
    with pytest.raises(ValueError, match=r"Put the data back as it was; a rollout of your own makes its episodes with"):
        asyncio.run(way.rewarded(opened(way), [stray(index=index)]))


# from the first draw to what is kept


def test_draws_again_until_selection_is_content_or_the_budget_is_spent() -> None:
    judge = Judge(True)
    way = walk(GRPO.but(select=RedrawEqualGroups(max_rounds=2)), judge)  # all groups are equal: it asks again and again
    ctx = opened(way, prompts=2, samples=2)
    drawn, kept = asyncio.run(way.collected(ctx))
    assert len(drawn) == 3 * 4 and kept == [] and ctx.round == 2
    assert len({e.uid for e in drawn}) == len(drawn)
    way.budget_tokens = sum(e.tokens for e in drawn[:4])  # the first draw is as much as a step may sample
    ctx = opened(way, prompts=2, samples=2)
    assert len(asyncio.run(way.collected(ctx))[0]) == 4 and ctx.round == 0


def test_rewards_of_groups_come_after_selection() -> None:
    """They see what was kept, and neither what selection dropped nor what is in no statistic."""

    @dataclass(frozen=True)
    class First(Occupant):
        def episodes(self, ctx: Context, episodes: Sequence[Episode]) -> tuple[list[bool], list[Ask | Prompt]]:
            assert all("company" not in e.reward and e.rewarded for e in episodes)
            return [e.group != "t0" for e in episodes], []

    way = walk(GRPO.but(reward=(OfGroups(), Component()), select=First()), Judge())
    ctx = opened(way, prompts=3, samples=2)
    drawn, kept = asyncio.run(way.collected(ctx))
    lost = [e for e in drawn if e.group == "t0"]
    assert len(kept) == len(drawn) - len(lost) and all(e.reward["company"] == len(kept) for e in kept)
    assert all(set(e.reward) == {"task", "bonus"} for e in lost)
    apart = [replace(e, reward={"task": 1.0}, use=use) for e, use in zip(kept, (Use.LEARN, Use.APART), strict=False)]
    add_components(ctx, (OfGroups(),), apart, of_groups=True)
    assert [e.reward for e in apart] == [{"task": 1.0, "company": 1.0}, {"task": 1.0}]


@dataclass(frozen=True)
class Reads(Component):
    reads = ("answer_E",)


def test_answers_are_asked_for_only_if_somebody_reads_them() -> None:
    for reward, asked in ((Component(), []), (Reads(), [["t0", "t0"], ["t1", "t1"], ["t2", "t2"]])):
        judge = Judge()
        way = walk(GRPO.but(reward=reward), judge)
        made = asyncio.run(way.compared(opened(way), asyncio.run(way.drawn(opened(way), ASKS))))
        assert judge.groups == asked
        assert [e.answer for e in made[:3]] == (["t0 0", "t0 1", "t1 0"] if asked else [""] * 3)


# a batch, or none


@pytest.mark.parametrize(
    ("uses", "there"),
    [
        ([], False),
        ([Use.BASELINE], False),
        ([Use.BASELINE, Use.NONE, Use.BASELINE], False),
        ([Use.NONE], False),
        ([Use.BASELINE, Use.LEARN], True),
        ([Use.BASELINE, Use.APART], True),
    ],
)
def test_there_is_no_batch_where_only_baselines_are_left(uses: list[Use], there: bool) -> None:
    episodes = [judged(i, use=use) for i, use in enumerate(uses)]
    way = walk()
    batch = way.batch_of(opened(way), episodes, episodes)
    assert (batch is not None) == there
    if batch is not None:
        assert batch.use_E.tolist() == [u for u in uses if u != Use.NONE]  # what is for the record only is left out


def test_a_batch_counts_the_groups_that_were_drawn_and_not_only_those_that_were_kept() -> None:
    drawn = [judged(i) for i in range(4)]  # of two groups
    way = walk()
    batch = way.batch_of(opened(way), drawn, drawn[:1])
    assert batch is not None and (batch.size("G"), int(batch.drawn)) == (1, 2)
