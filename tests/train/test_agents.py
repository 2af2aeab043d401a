"""Games of two seats: their rewards add up to 0, and nothing may be called dead or equal because of that."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gruppo.data import Batch, Episode, Growing, Source, Status, pack
from gruppo.methods import method
from gruppo.policies import CharTokenizer
from gruppo.stages import Context, Sampling
from gruppo.stages.check import check_first_batch
from gruppo.stages.select import RedrawEqualGroups
from gruppo.tasks import Task
from gruppo.train.doctor import _dead
from gruppo.train.evaluate import evaluate
from gruppo.train.metrics import episode_metrics, known


def game(uid: int, outcome: float, group: str, rival: Source = Source.POLICY) -> Episode:
    made = Growing(uid, "kuhn", group)
    for agent, source, r in (("first", Source.POLICY, outcome), ("second", rival, -outcome)):
        made.begin(np.array([1, 2]))
        logp = np.full(2, -1.0, np.float32)
        made.act(np.array([3, 4]), logp, 0, agent=agent, source=source, reward={"task": r})
    return made.finish()


LIVE = [game(1, 1.0, "a"), game(2, -1.0, "a"), game(3, 1.0, "b"), game(4, 1.0, "b")]
DEAD = [game(1, 1.0, "a"), game(2, 1.0, "a")]


def test_metrics_look_at_each_seat() -> None:
    assert [e.total for e in LIVE] == [0.0] * 4
    found = episode_metrics(LIVE)
    assert found["dead_groups"] == 0.5 and found["reward"] == 0.0
    assert (found["return/first"], found["return/second"]) == (0.5, -0.5)
    assert all(known(name) for name in found) and found["accuracy"] == 0.0


def test_of_a_game_against_another_the_policys_own_seat_counts() -> None:
    found = episode_metrics([game(i, r, "a", Source.OPPONENT) for i, r in enumerate((1.0, 1.0, -1.0, 1.0))])
    assert found["reward"] == found["accuracy"] == 0.5 and found["return/second"] == -0.5
    assert found["dead_groups"] == 0.0


def test_a_group_lives_if_one_seat_has_something_to_compare() -> None:
    """The second loses both times, the first wins once with a bonus."""
    one, two = game(1, 1.0, "a"), game(2, 1.0, "a")
    two.turns[0].reward["bonus"] = 0.5
    assert episode_metrics([one, two])["dead_groups"] == 0.0 and _dead(packed([one, two])).value == 0.0
    assert check_first_batch(method("grpo"), packed([one, two])) == []


def one_agent(e: Episode) -> Episode:
    return replace(e, turns=[replace(t, agent="policy", reward={}) for t in e.turns], reward={"task": 1.0})


def test_with_one_agent_there_are_no_returns_by_agent() -> None:
    found = episode_metrics([one_agent(e) for e in LIVE])
    assert not any(name.startswith("return/") for name in found) and found["reward"] == found["dead_groups"] == 1.0


def packed(episodes: list[Episode]) -> Batch:
    batch = pack(episodes)
    return batch.with_columns(adv_N=torch.zeros(batch.size("N")))


def test_the_first_batch_is_not_equal_where_seats_differ() -> None:
    assert check_first_batch(method("grpo"), packed(LIVE)) == []
    [said] = check_first_batch(method("grpo"), packed(DEAD))
    assert said.startswith("every reward of the first batch is 1 (first), -1 (second): nothing can be compared")
    [said] = check_first_batch(method("grpo"), packed([one_agent(e) for e in LIVE]))
    assert said.startswith("every reward of the first batch is 1: nothing can be compared")


@pytest.mark.parametrize(("episodes", "share"), [(LIVE, 0.5), (DEAD, 1.0), (LIVE[:2], 0.0)])
def test_step_zero_looks_at_each_seat(episodes: list[Episode], share: float) -> None:
    assert _dead(packed(episodes)).value == share


def test_groups_are_redrawn_where_every_seat_has_equal_scores() -> None:
    ctx = Context(round=3)
    assert RedrawEqualGroups(max_rounds=3).episodes(ctx, LIVE)[0] == [True, True, False, False]


# ---- evaluation


class Tasks:
    graded = False
    name = "kuhn"
    held_out = tuple(Task(f"kuhn-{i}", f"{i}+1=", str(i), 1, "kuhn") for i in range(4))


class Nobody:
    """A judge that must not be asked."""

    async def score(self, items: Any) -> Any:
        raise AssertionError("the environment has scored it")


async def against(ctx: Context, starts: Any, window: int = 0) -> Any:
    """Won, lost, won, and one in which the environment broke."""
    for i, outcome in enumerate((1.0, -1.0, 1.0, 0.0)):
        e = replace(game(starts[i].uid, outcome, starts[i].prompt.group, Source.OPPONENT))
        yield i, e if i < 3 else replace(e, status=Status.ENV_ERROR, error="it broke")


def test_evaluation_takes_the_scores_of_the_environment() -> None:
    found = asyncio.run(evaluate(None, CharTokenizer(), Nobody(), Tasks, Sampling(4), 4, play=against))
    assert found.score_P[:3].tolist() == [1.0, -1.0, 1.0] and found.failed == 1
    assert found.accuracy == pytest.approx(1 / 3)
    assert found.by_agent == pytest.approx({"first": 1 / 3, "second": -1 / 3})
    logged = found.logged()
    assert logged["held_out/return/first"] == pytest.approx(1 / 3) and all(known(name) for name in logged)
