"""Evidence for spo_single: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math
from typing import Any

import evidence
import numpy as np
import pytest
import torch
from hand import answer

from gruppo.data import Batch, Episode, Note, Status, Use, name_hash, pack
from gruppo.methods.spo_single import ByTracker, LastOfTask, Tracked, value
from gruppo.stages import Context, Memory, StepRecord
from gruppo.stages.tables import Table
from gruppo.tasks import load_task

test_laws = evidence.laws("spo_single")
test_asks = evidence.asks("spo_single")
test_planted_mistakes = evidence.planted("spo_single")
test_equivalences = evidence.equivalences("spo_single")
test_resume = evidence.resume("spo_single")


def tracked(**tasks: tuple[float, float]) -> Memory:
    """{group: (a, b)} as memory has it; the place of a task is its number."""
    keys = torch.tensor([name_hash(f"task of {g}") for g in tasks])
    a, b = (torch.tensor([ab[i] for ab in tasks.values()], dtype=torch.float64) for i in (0, 1))
    return Memory({"tracker": Table().put(keys, a=a, b=b, index=torch.arange(len(tasks))).plain})


def stepped(episodes: list[Episode], drift: list[float], memory: Memory) -> list[float]:
    """a, b and v of the first task after a step."""
    batch = pack(episodes, dtype=torch.float64).with_columns(drift_E=torch.tensor(drift, dtype=torch.float64))
    with memory.writing():
        Tracked().observe(StepRecord(0, episodes, batch, {}, None, episodes), memory)
    tracker, key = Table.of(memory, "tracker"), torch.tensor([name_hash(episodes[0].task)])
    return [float(x) for x in (tracker.look(key, "a"), tracker.look(key, "b"), value(tracker, key))]


def test_spo_updates_what_it_expects_of_a_task() -> None:
    a, b = 8 * 6.5 / 9, 8 * 2.5 / 9  # the paper's start from eight answers, six of them right: N = 1/(1 - 0.875)
    assert (a, b, a / (a + b)) == pytest.approx((5.778, 2.222, 0.722), abs=1e-3)
    got = stepped([answer(0, "q", 3, 1.0)], [9.0], tracked(q=(a, b)))  # far: rho = 0.875
    assert got == pytest.approx([6.056, 1.944, 0.757], abs=1e-3)
    near = stepped([answer(0, "q", 3, 0.0)], [0.0], tracked(q=(a, b)))  # rho = 0.96
    assert near[:2] == pytest.approx([0.96 * a, 0.96 * b + 1])
    half = stepped([answer(0, "q", 3, 1.0)], [0.06 * math.log2(1 / 0.9)], tracked(q=(a, b)))  # 2^(-D/.06) = 0.9
    assert half[:2] == pytest.approx([0.9 * a + 1, 0.9 * b])


def test_spo_at_a_first_visit_starts_from_one_half() -> None:
    assert stepped([answer(0, "q", 3, 1.0)], [0.0], Memory())[:2] == pytest.approx([0.96 * 0.5 + 1, 0.96 * 0.5])


def test_spo_takes_several_answers_as_evidence_together_and_failures_as_none() -> None:
    answers = [answer(0, "q", 3, 1.0), answer(1, "q", 3, 0.0), answer(2, "q", 3, 1.0)]
    lost = [answer(3, "q", 3, None, status=Status.TIMEOUT), answer(4, "q", 3, 1.0, use=Use.NONE)]
    got = stepped([*answers, *lost], [9.0] * 5, tracked(q=(4.0, 4.0)))
    assert got[:2] == pytest.approx([3.5 + 2, 3.5 + 1])


@pytest.mark.slow
def test_spo_of_a_policy_that_stands_still_comes_to_expect_the_rate_of_right_answers() -> None:
    memory = Memory()
    for i in range(300):
        got = stepped([answer(i, "q", 1, 0.3)], [0.0], memory)
    assert got == pytest.approx([0.3 * 25, 0.7 * 25, 0.3], abs=1e-3)  # a window of 1 / (1 - 0.96) answers


def advantages(memory: Memory, episodes: list[Episode]) -> list[float]:
    batch = pack(episodes, dtype=torch.float64)
    adv_N = Tracked()(Context(memory=memory), batch)["adv_N"]
    return batch.gather(adv_N, "N", "E", "mean").tolist()


def test_spo_is_the_reward_above_what_was_expected_whitened_over_answers() -> None:
    memory = tracked(p=(9.0, 1.0), q=(1.0, 3.0))
    episodes = [answer(0, "p", 2, 1.0), answer(1, "q", 5, 1.0), answer(2, "new", 1, 0.0), answer(3, "x", 2, None)]
    episodes[3].status = Status.ENV_ERROR
    above = [1 - 0.9, 1 - 0.25, 0 - 0.5]
    mean = sum(above) / 3
    std = math.sqrt(sum((x - mean) ** 2 for x in above) / 2)
    wanted = [(x - mean) / (std + 1e-8) for x in above] + [0.0]
    assert advantages(memory, episodes) == pytest.approx(wanted, abs=1e-12)
    alike = [answer(i, g, 2, 1.0) for i, g in enumerate(("p", "p"))]
    assert advantages(memory, alike) == [0.0, 0.0]  # all right with v = .9: nothing stands out
    assert advantages(memory, [answer(0, "q", 2, 1.0)]) == [0.0]


def test_spo_draws_tasks_by_the_deviation_of_their_rewards() -> None:
    memory = tracked(p=(9.0, 1.0), q=(1.0, 1.0))
    weights = ByTracker().weights(Table.of(memory, "tracker"), 4)
    assert weights.tolist() == pytest.approx([0.3 + 0.05, 0.5 + 0.05, 0.5 + 0.05, 0.5 + 0.05])
    tasks = load_task("addition", train_size=4).train
    asks = ByTracker()(Context(prompts=3, samples=1, memory=memory), tasks)
    assert len({a.index for a in asks}) == 3 and [a.samples for a in asks] == [1, 1, 1]
    many = ByTracker()(Context(prompts=9, memory=memory), tasks)  # more prompts than tasks: with replacement
    assert len(many) == 9 and len({a.group for a in many}) == 9


def test_spo_keeps_the_last_answer_to_every_task_and_learns_from_none_of_them() -> None:
    store = LastOfTask().put(Context(), [], [answer(0, "p", 1, 1.0), answer(1, "q", 1, 1.0)])
    fresh = [answer(2, "q", 1, 0.0), answer(3, "p", 1, None, status=Status.ENV_ERROR)]
    store = LastOfTask().put(Context(step=1), store, fresh)
    assert {e.task: e.uid for e in store} == {"task of p": 0, "task of q": 2}
    assert LastOfTask().get(Context(step=1), store) == store and not LastOfTask().joins  # read, not learned


def test_spo_measures_how_far_the_policy_has_moved_on_the_last_answer() -> None:
    """|log π_then − log π_now| by hand: (0.2 + 0.4) / 2 for q; the task that is not asked again is not scored."""
    last = [answer(7, "q", 2, 1.0), answer(8, "other", 2, 1.0)]
    for e in last:
        e.notes["logp_old"] = Note(np.array([-1.0, -2.0], np.float32), "N")
    asked_for: list[int] = []

    def score(episodes: list[Episode]) -> Batch:
        asked_for.extend(e.uid for e in episodes)
        batch = pack(episodes, dtype=torch.float64)
        return batch.with_columns(logp_policy_N=torch.tensor([-1.2, -1.6], dtype=torch.float64))

    batch = pack([answer(0, "q", 3, 1.0), answer(1, "new", 1, 0.0)], dtype=torch.float64)
    ctx = Context(replay=last, read=score)
    assert Tracked()(ctx, batch)["drift_E"].tolist() == pytest.approx([0.3, 0.0]) and asked_for == [7]


@pytest.mark.parametrize("rewards", [(-1.0, 1.0), (0.0, 5.0)])
def test_spo_refuses_rewards_that_are_no_share(rewards: tuple[float, float]) -> None:
    batch = pack([answer(i, f"q{i}", 1, r) for i, r in enumerate(rewards)])
    said = Tracked().unfit(batch)
    assert f"rewards reach from {rewards[0]:g} to {rewards[1]:g}" in said and "Use 0 to 1" in said
    assert Tracked().unfit(pack([answer(0, "q", 1, 0.25), answer(1, "r", 1, 1.0)])) == ""


def observed(episodes: list[Episode], batch: Batch | None = None, memory: Memory | None = None) -> Table:
    memory = Memory() if memory is None else memory
    with memory.writing():
        Tracked().observe(StepRecord(0, episodes, batch, {}, None, episodes), memory)
    return Table.of(memory, "tracker")


def test_spo_answers_that_are_not_in_the_batch_have_not_drifted() -> None:
    """Dropped by selection, or all of them: ρ = 0.96, as at a first visit. To the last digit."""
    q = [answer(0, "q", 1, 0.1)]
    other = pack([answer(1, "r", 1, 1.0)], dtype=torch.float64).with_columns(drift_E=torch.tensor([9.0]).double())
    for batch in (None, other):
        table = observed(q, batch)
        assert table.columns["a"].tolist() == pytest.approx([0.96 * 0.5 + 0.1], abs=1e-15)
        assert table.columns["b"].tolist() == pytest.approx([0.96 * 0.5 + 0.9], abs=1e-15)


def test_spo_answers_to_one_task_are_one_place_and_drift_as_one() -> None:
    """Two answers to the task at place 2, each with 2^(−D/.06) = .9: ρ is .9 once."""
    episodes = [answer(i, "q", 1, 1.0, index=2) for i in range(2)]
    drift = torch.full((2,), 0.06 * math.log2(1 / 0.9), dtype=torch.float64)
    table = observed(episodes, pack(episodes, dtype=torch.float64).with_columns(drift_E=drift))
    assert table.columns["a"].tolist() == pytest.approx([0.9 * 0.5 + 2])
    v = (0.45 + 2) / (0.9 + 2)
    want = [0.55, 0.55, math.sqrt(v * (1 - v)) + 0.05, 0.55]
    assert ByTracker().weights(table, 4).tolist() == pytest.approx(want)


def test_spo_a_step_in_which_nothing_was_judged_tells_nothing() -> None:
    memory = Memory()
    before = observed([answer(0, "q", 1, 1.0)], memory=memory)
    after = observed([answer(1, "q", 1, None, status=Status.TIMEOUT)], memory=memory)
    assert after.key_T.dtype == torch.int64 and after.key_T.tolist() == before.key_T.tolist()
    assert {k: v.tolist() for k, v in after.columns.items()} == {k: v.tolist() for k, v in before.columns.items()}


def test_spo_a_task_without_a_place_weighs_on_nobody() -> None:
    """Its place is not known, or lies behind the tasks of this run."""
    keys = torch.tensor([name_hash(name) for name in "abc"])
    one = torch.ones(3, dtype=torch.float64)
    table = Table().put(keys, a=9 * one, b=one, index=torch.tensor([-1.0, 4.0, 5.0]))
    assert ByTracker().weights(table, 4).tolist() == pytest.approx([0.55] * 4)


@pytest.mark.parametrize("seed", range(5))
def test_spo_asks_for_every_task_once_where_there_are_as_many_prompts(seed: int) -> None:
    tasks = load_task("addition", train_size=4).train
    asks = ByTracker()(Context(seed=seed, prompts=4, samples=1), tasks)
    assert sorted(a.index for a in asks) == [0, 1, 2, 3]


def test_spo_drift_is_of_tokens_that_were_scored_before() -> None:
    """The middle one has no log π_then: (0.2 + 0.4) / 2 of the others."""
    last = answer(7, "q", 3, 1.0)
    last.notes["logp_old"] = Note(np.array([-1.0, np.nan, -2.0], np.float32), "N")

    def score(episodes: list[Episode]) -> Batch:
        now = torch.tensor([-1.2, -7.0, -1.6], dtype=torch.float64)
        return pack(episodes, dtype=torch.float64).with_columns(logp_policy_N=now)

    batch = pack([answer(0, "q", 1, 1.0)], dtype=torch.float64)
    assert Tracked()(Context(replay=[last], read=score), batch)["drift_E"].tolist() == pytest.approx([0.3])


@pytest.mark.parametrize(
    ("rewards", "fine"), [((0.0, 1.0), True), ((None, None), True), ((0.0, 1.5), False), ((-0.5, 1.0), False)]
)
def test_spo_takes_rewards_from_0_to_1_both_included(rewards: tuple[Any, Any], fine: bool) -> None:
    failed = [Status.TIMEOUT if r is None else Status.OK for r in rewards]
    made = [answer(i, f"q{i}", 1, r, status=s) for i, (r, s) in enumerate(zip(rewards, failed, strict=True))]
    assert (Tracked().unfit(pack(made)) == "") == fine
