"""Evidence for arpo_replay: laws, mistakes, equivalences, resume, and numbers worked by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import evidence
import numpy as np
import pytest
import torch
from drawing import IN_A_WORLD, SMALL, finished, steps_of
from hand import answer, close

from gruppo.cli import overrides
from gruppo.data import Episode, Growing, Source, Status, Use, pack
from gruppo.methods import method
from gruppo.methods.arpo_replay import Readable, SuccessForFailure
from gruppo.stages import Context
from gruppo.stages.walk import Walk
from gruppo.train.checkpoint import load_checkpoint, save_checkpoint
from gruppo.train.config import RunConfig
from gruppo.train.loop import train_step
from gruppo.train.run import Run

test_laws = evidence.laws("arpo_replay")
test_asks = evidence.asks("arpo_replay")
test_planted_mistakes = evidence.planted("arpo_replay")
test_equivalences = evidence.equivalences("arpo_replay")
test_resume = evidence.resume("arpo_replay")

ARPO = method("arpo_replay")


def group(rewards: Sequence[float | None], name: str = "g", first: int = 0) -> list[Episode]:
    failed = {"status": Status.ENV_ERROR}
    return [answer(first + i, name, 1, r, **({} if r is not None else failed)) for i, r in enumerate(rewards)]


def inserted(kept: list[Episode], past: Sequence[Episode], **fields: Any) -> list[Episode]:
    return SuccessForFailure(**fields).insert(Context(replay=tuple(past)), kept)


PAST = [answer(90, "g", 1, 1.0, step=-3)]


def test_card() -> None:
    """Card S211: eight failures, and one makes room: A = (1 − 1/8)/.35355 = 2.47 and −.354."""
    batch = pack(inserted(group([0.0] * 8), PAST))
    adv = sorted(ARPO.credit(Context(), batch)["adv_N"].tolist())
    assert adv == pytest.approx([-0.354] * 7 + [2.47], abs=6e-3) and batch.size("G") == 1
    assert batch.replayed_E.sum() == 1 and batch.uid_E[batch.replayed_E].tolist() == [90]


@pytest.mark.parametrize(
    ("rewards", "replaced"),
    [
        ([0.0, 0.0], True),
        ([0.0, 1.0], False),  # it has a success
        ([1.0, 1.0], False),
        ([0.19, 0.19], True),
        ([0.2, 0.2], False),  # the mean is not below .2
        ([0.1, 0.2], False),  # mean .15, but the deviation, with n, is .05
        ([0.1, 0.19], True),  # deviation .045
        ([0.0, None], True),  # one failed for other reasons: it is in no mean, and makes no room
        ([None, None], False),  # nothing is known of this group
    ],
)
def test_which_groups_fail(rewards: list[float | None], replaced: bool) -> None:
    kept = group(rewards)
    found = inserted(kept, PAST)
    assert len(found) == len(kept) and any(e.replayed for e in found) == replaced
    assert [e.uid for e, r in zip(found, rewards, strict=True) if r is None] == [e.uid for e in kept if not e.reward]


def test_only_successes_at_the_same_task_and_each_once() -> None:
    others = [answer(91, "h", 1, 1.0)]
    for past in (others, []):
        assert [e.uid for e in inserted(group([0.0] * 4), past)] == [0, 1, 2, 3]
    two = [*group([0.0, 0.0]), *[replace(e, group="g again") for e in group([0.0, 0.0], first=5)]]  # one task
    found = inserted(two, PAST)
    assert [e.uid for e in found].count(90) == 1
    assert [e.group for e in inserted(two, [*PAST, answer(92, "g", 1, 1.0)]) if e.replayed] == ["g", "g again"]


def test_baselines_make_no_room() -> None:
    kept = group([0.0, 0.0])
    kept[0].use = Use.BASELINE
    assert [e.uid for e in inserted(kept, PAST)] == [0, 90]
    kept[1].use = Use.BASELINE
    assert [e.uid for e in inserted(kept, PAST)] == [0, 1]


def test_one_of_several_is_drawn_by_step() -> None:
    past = [answer(90 + i, "g", 1, 1.0) for i in range(3)]
    drawn = [SuccessForFailure().insert(Context(step=s, replay=past), group([0.0] * 3)) for s in range(60)]
    assert {e.uid for d in drawn for e in d if e.replayed} == {90, 91, 92}
    assert {i for d in drawn for i, e in enumerate(d) if e.replayed} == {0, 1, 2}


def test_the_last_successes_of_each_task_are_remembered() -> None:
    store = [answer(i, "g", 1, 1.0) for i in range(2)] + [answer(5, "h", 1, 0.11)]
    new = [answer(7, "g", 1, 0.3), answer(8, "g", 1, 0.1), answer(9, "g", 1, 0.0)]
    bad = [answer(10, "g", 1, 1.0, use=Use.BASELINE), answer(11, "g", 1, 1.0, source=Source.EXPERT)]
    kept = SuccessForFailure(capacity=2).put(Context(), store, [*new, *bad, *group([None], first=12)])
    assert [e.uid for e in kept] == [1, 5, 7]


def test_format_is_paid_for_after_the_task() -> None:
    """−½ for an answer that cannot be read and for an episode with a void turn; an action that the world refuses is
    read. The task's reward alone says who failed."""
    grown = Growing(3, "task of g", "g")
    grown.begin(np.array([1, 2]))
    for flags in ({"invalid"}, {"void"}):
        grown.act(np.array([5]), np.full(1, -1.0, np.float32), 0, flags=frozenset(flags))
    void = grown.finish(Status.OK, reward={"task": 0.0})
    episodes = [answer(0, "g", 1, 0.0), answer(1, "g", 1, 0.0, status=Status.INVALID), void]
    close(Readable()(Context(), episodes)["format"].tolist(), [0.0, -0.5, -0.5])
    for e in episodes:
        e.reward["format"] = -9.0 * (e.uid > 0)
    assert any(e.replayed for e in inserted(episodes, PAST))


def test_log_pi_old_is_of_this_step() -> None:
    """The walk packs what was inserted, and leaves the stored log π_old alone."""
    ctx = Context(replay=tuple(PAST))
    walk = Walk(ARPO, lambda role, batch, needs: {n.column: 0.0 * batch.weight_N - 7.0 for n in needs})
    batch = walk.batch_of(ctx, kept := group([0.0] * 4), kept)
    assert batch is not None
    assert walk.credited(ctx, batch).logp_old_N.tolist() == [-7.0] * 4 and batch.drawn_G.tolist() == [4]


def test_a_run_learns_from_failures_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Nothing is solved in the second step, but the tasks were before: it has a gradient, also after a restart."""
    config = overrides.apply(RunConfig(), ("method=arpo_replay", *SMALL))
    first, second = (Run(config, say=lambda said: None) for _ in range(2))
    finished(train_step(first, 0))
    tasks = [a.index for a in first.method.curriculum(first.context(1), first.tasks.train)]
    solved = [e for e in first.replay if e.score == 1.0][: len(tasks)]
    assert solved
    pairs = [(e, first.tasks.train[i], i) for e, i in zip(solved, tasks, strict=False)]
    first.replay = [replace(e, task=t.uid, index=i, ask=None) for e, t, i in pairs]
    second.restore(load_checkpoint(save_checkpoint(tmp_path / "one", first.state(1, {}))))
    found = []
    for run in (first, second):
        judge = run.judge.score

        async def wrong(items: Any, judge: Any = judge) -> Any:
            return [replace(v, components=dict.fromkeys(v.components, 0.0)) for v in await judge(items)]

        run.judge.score = wrong  # type: ignore[method-assign]
        record = finished(train_step(run, 1))
        assert record.batch is not None and int(record.batch.replayed_E.sum()) == len(solved)
        assert record.facts["accuracy"] == 0.0 and record.facts["grad_norm"] > 0  # what is remembered is in no other
        assert record.facts["replayed"] == len(solved) / record.batch.size("E")  # metric than this one
        found.append({k: v.clone() for k, v in run.models["policy"].state_dict().items()})
        run.close()
    assert all(torch.equal(found[0][k], found[1][k]) for k in found[0])


def test_it_trains_in_a_world() -> None:
    _, records = steps_of(ARPO, *IN_A_WORLD, steps=2)
    assert records[1].facts["turns"] > 1 and "reward/format" in records[1].facts
    assert records[0].facts["replayed"] == 0.0  # nothing is remembered yet
