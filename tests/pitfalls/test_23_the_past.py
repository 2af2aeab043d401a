"""Pitfall 23, its other half: an answer of the past keeps its own credit, and today's statistics do not see it."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import running, save_policy

from gruppo.data import Note, Use, pack
from gruppo.methods import method
from gruppo.stages import Context, StepRecord
from gruppo.stages.replay import Recent, as_learned
from gruppo.stages.select import RedrawEqualGroups
from gruppo.stages.walk import recalled
from gruppo.train import loop

SEEN: list[Any] = []


@dataclass(frozen=True)
class Looks(Recent):
    """Remembers, recalls everything for the rooms and nothing for the batch, and keeps what it was shown."""

    joins = False

    def get(self, ctx: Any, store: Any) -> list[Any]:
        return list(store)

    def observe(self, record: StepRecord, memory: Any) -> None:
        SEEN.append(record)


def steps(run: Any, count: int) -> list[StepRecord]:
    return [asyncio.run(loop.train_step(run, i)) for i in range(count)]


@pytest.fixture
def policy(tmp_path: Any) -> Any:
    return save_policy(tmp_path / "policy")


def test_a_replayed_row_has_the_credit_it_was_learned_under(policy: Any) -> None:
    remember = Recent(take=12, max_age=3, credited="stored")
    with running(policy, method("grpo").but(replay=remember)) as run:
        first, second = steps(run, 2)
    then = {int(u): a for u, a in zip(first.batch.uid_N, first.batch.adv_N, strict=True)}
    past_N = second.batch.spread(second.batch.replayed_E, "E", "N")
    assert int(past_N.sum()) > 0
    mine = [then[int(u)] for u in second.batch.uid_N[past_N]]
    torch.testing.assert_close(second.batch.adv_N[past_N], torch.stack(mine))
    assert bool((second.batch.adv_N[past_N] != 0).any())
    assert bool(second.batch.learn_N[past_N].all())


def test_it_is_in_no_statistic_of_today(policy: Any) -> None:
    now, stored = (Recent(take=12, max_age=3, credited=c) for c in ("now", "stored"))
    with running(policy, method("grpo").but(replay=stored)) as run:
        batch = steps(run, 2)[1].batch
    assert not bool((batch.judged_E & batch.replayed_E).any())
    with running(policy, method("grpo").but(replay=now)) as run:  # anew: a group of its own, of which nothing follows
        batch = steps(run, 2)[1].batch
    past_N = batch.spread(batch.replayed_E, "E", "N")
    assert bool((batch.judged_E & batch.replayed_E).any())
    assert not torch.equal(batch.adv_N[past_N].abs() > 0, torch.ones_like(past_N[past_N]))


def test_rooms_see_what_was_remembered_when_the_step_began(policy: Any) -> None:
    SEEN.clear()
    with running(policy, method("grpo").but(replay=Looks(capacity=99, max_age=1))) as run:
        first, second = steps(run, 2)
        assert [len(r.ctx.replay) for r in SEEN] == [0, 32]
        assert {e.uid for e in SEEN[1].ctx.replay} == {e.uid for e in first.episodes}
        assert not bool(second.batch.replayed_E.any())
        batch = as_learned(second.ctx, second.ctx.replay)
    torch.testing.assert_close(batch.logp_old_N, first.batch.logp_old_N, atol=1e-6, rtol=0)
    torch.testing.assert_close(batch.adv_N, first.batch.adv_N)


def test_the_record_has_everything_that_was_drawn(policy: Any) -> None:
    with running(policy, method("dapo"), scorer="luck") as run:
        (record,) = steps(run, 1)
    assert len(record.drawn) > len(record.episodes) > 0
    assert {e.uid for e in record.episodes} <= {e.uid for e in record.drawn}
    written = sum(int((s.source == e.source).sum()) for e in record.drawn for s in e.sequences)
    assert record.facts["sampled"] == written == record.facts["tokens"]


def test_episodes_outside_of_the_statistics_have_no_voice_in_selection() -> None:
    from gruppo.data import single_turn

    def answer(uid: int, reward: float, use: Use) -> Any:
        ids = np.array([5, 6])
        e = single_turn(
            uid, "t", "g", ids, ids, np.zeros(2, np.float32), np.zeros(2, np.int32), reward={"task": reward}
        )
        return replace(e, use=use)

    right = [answer(i, 1.0, Use.LEARN) for i in range(2)]
    for use, kept in ((Use.LEARN, True), (Use.BASELINE, True), (Use.NONE, False), (Use.APART, False)):
        episodes = [*right, answer(9, 0.0, use)]
        assert RedrawEqualGroups(max_rounds=0).episodes(Context(), episodes)[0] == [kept] * 3


def test_a_step_without_penalties_is_that_of_the_objective_alone(policy: Any) -> None:
    with running(policy, method("grpo")) as run:  # GRPO has a KL to the reference
        batch, learner = steps(run, 1)[0].batch, run.learner
        whole, alone = learner.gradient("policy", batch), learner.gradient("policy", batch, penalties=False)
        torch.testing.assert_close(learner.gradient("policy", batch), whole)  # once without them changes nothing
        learner.method = run.method.but(penalties=())
        torch.testing.assert_close(alone, learner.gradient("policy", batch))
    assert not torch.allclose(whole, alone)


@pytest.mark.parametrize("stored", [0, 1])
def test_an_episode_without_a_stored_credit_gets_one_of_today(policy: Any, stored: int) -> None:
    """Nothing was noted of any episode, or of one of three."""
    with running(policy, method("grpo").but(replay=Recent(credited="stored"))) as run:
        (record,) = steps(run, 1)
        past = [recalled(e, "stored") for e in record.episodes[:3]]
        assert {e.use for e in past} == {Use.APART} and all(e.replayed for e in past)
        for e in past[:stored]:
            e.notes = {"adv": Note(np.full(e.tokens, 7.0, np.float32), "N", 0)}
        batch = pack([*record.episodes[3:], *past])
        batch = run.walk.with_needs(batch, run.walk.needs(record.ctx))
        today, made = run.method.credit(record.ctx, batch)["adv_N"], run.walk.credited(record.ctx, batch).adv_N
        mine_N = torch.isin(batch.uid_E[batch.episode_N], torch.tensor([e.uid for e in past[:stored]]))
        assert int(mine_N.sum()) == sum(e.tokens for e in past[:stored])
        assert torch.equal(made[~mine_N], today[~mine_N]) and bool((made[mine_N] == 7.0).all())
        assert bool((today != 0).any()) and not bool((today == 7.0).any())
