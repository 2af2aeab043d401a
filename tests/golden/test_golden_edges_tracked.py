"""Edges of scaf_grpo, seele, spo_single, ssb and unlikeliness: who is helped, what a task is known for, ties."""

import math
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from drawing import bench, rolled, task
from hand import Status, answer

from gruppo.data import Batch, Episode, Note, Use, name_hash, pack
from gruppo.methods.scaf_grpo import SCAF_GRPO
from gruppo.methods.seele import SEELE, HintRounds
from gruppo.methods.spo_single import ByTracker, Tracked
from gruppo.methods.ssb import Selective
from gruppo.methods.unlikeliness import Unlikeliness, ranks
from gruppo.stages import Context, Memory, StepRecord
from gruppo.stages.tables import Table
from gruppo.tasks import load_task

# scaf_grpo


def test_scaf_a_lot_says_who_gives_its_place() -> None:
    """Twelve groups of four wrong answers: it is not always the same one that goes."""
    ctx = bench(SCAF_GRPO, lambda prompt, r: "x", lambda e: float(len(e.text) > 1))
    episodes = rolled(SCAF_GRPO, ctx, [task(i) for i in range(12)])
    gone = [i % 4 for i, e in enumerate(episodes[:48]) if e.use == Use.NONE]
    assert len(gone) == 12 and len(set(gone)) >= 3


def test_scaf_draws_nothing_where_nobody_needs_help() -> None:
    ctx = bench(SCAF_GRPO, lambda prompt, r: "x", lambda e: 1.0)
    ctx.draw = None  # type: ignore[assignment]
    assert len(rolled(SCAF_GRPO, ctx, [task(0)])) == 4


# seele


def rates(episodes: list[Episode], name: str = "t0") -> list[float]:
    return [float(e.notes["hint_rate"].values[0]) for e in episodes if e.task == name]


def test_seele_every_problem_has_a_rate_of_its_own() -> None:
    """One is right without help, so it gets less and less; the other needs more than can be given."""
    ctx = bench(SEELE, lambda prompt, r: "x", lambda e: float(e.task == "t0"))
    episodes = rolled(SEELE, ctx, [task(0), task(1)])
    assert rates(episodes) == [0.75, 0.5, 0.25, 0.0] and rates(episodes, "t1") == [0.75] * 4


@pytest.mark.parametrize("worth", [[1.0, 0.0, 0.0, 0.0], [None, 1.0, 0.0, 0.0], [None] * 4])
def test_seele_goes_by_the_share_of_right_answers(worth: list[float | None]) -> None:
    """One of four, or of three that were judged, is less than the half that is wanted: no less help. Nobody judged:
    nothing is known, and help stays as it was."""
    nth = count()
    ctx = bench(SEELE, lambda prompt, r: "x", lambda e: worth[next(nth) % 4])
    assert rates(rolled(SEELE, ctx, [task(0)], 16)) == [0.75] * 16


@pytest.mark.parametrize("target", [0.0, 1.0, -0.5])
def test_seele_a_target_lies_between_never_and_always(target: float) -> None:
    with pytest.raises(ValueError, match=f"target={target}"):
        HintRounds(target=target)


# spo_single


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


# ssb


def test_ssb_an_answer_that_was_not_credited_is_not_kept() -> None:
    kept = answer(0, "g", 2, 1.0, notes={"adv": Note(np.array([0.5, -0.5], np.float32), "N")}, step=1)
    assert Selective().put(Context(step=1), [], [answer(1, "g", 2, 1.0, step=1), kept]) == [kept]


# unlikeliness


def test_unlikeliness_ranks_are_of_a_group() -> None:
    """Two answers that are as likely, in different groups: the one is the likelier of two, the other the rarer."""
    group, likely = np.array([0, 0, 1, 1]), np.array([-2.0, -1.0, -1.0, -0.5])
    assert ranks(group, likely).tolist() == [0, 1, 0, 1]
    assert ranks(np.zeros(3, np.int64), np.array([-1.0, -2.0, -1.0])).tolist() == [1.5, 0, 1.5]


def test_unlikeliness_of_nobody() -> None:
    assert len(Unlikeliness()(Context(), [])["unlikely"]) == 0
