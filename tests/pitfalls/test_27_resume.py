"""Pitfall 27: "resume: data position, RNG, optimiser, EMA baselines, replay buffer, staleness counters, epoch
boundary". Rule: "100 steps == 50 + resume + 50, bitwise".

The whole is tested elsewhere; these are its parts, each with its bug planted: a run that goes on without one of
them ends elsewhere.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import SCORERS, config, flat, in_world, running, take_step

from gruppo.data import Batch, Episode, minibatches
from gruppo.methods import method
from gruppo.policies import load_policy
from gruppo.stages import Context
from gruppo.stages.cast import Ema, Role
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.replay import Recent
from gruppo.stages.update import Passes
from gruppo.train.checkpoint import State, latest_checkpoint, load_checkpoint, save_checkpoint
from gruppo.train.config import TaskConfig
from gruppo.train.folder import RunFolder
from gruppo.train.run import Run
from gruppo.train.trainer import Trainer

# All that can be lost: a baseline in memory, a buffer, Adam's moments, a reference that follows; 2.5 steps an epoch.
EVERYTHING = method("reinforce").but(
    replay=Recent(take=8), penalties=ReferenceKL(kl_coef=0.1), cast={"ref": Role(refresh=Ema(tau=0.3))}
)
TASK = TaskConfig(reward=f"{SCORERS}:luck", train_size=20)
HALF, END = 2, 4


def started(policy: Path) -> Any:
    return running(policy, EVERYTHING, task=TASK)


@pytest.fixture(scope="module")
def halfway(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[State, torch.Tensor, dict[str, Any]]:
    """The checkpoint in the middle, written and read; the weights and the facts of the end."""
    torch.set_num_threads(1)
    with started(policy) as run:
        facts: dict[str, Any] = {}
        for step in range(END):
            if step == HALF:
                path = save_checkpoint(tmp_path_factory.mktemp("checkpoints"), run.state(HALF, {}))
            facts = dict(take_step(run, step).facts)
        return load_checkpoint(path), flat(run.models["policy"]), facts


def gone_on(policy: Path, state: State) -> tuple[torch.Tensor, dict[str, Any]]:
    with started(policy) as run:
        run.restore(state)
        for step in range(HALF, END):
            facts = dict(take_step(run, step).facts)
        return flat(run.models["policy"]), facts


def test_the_parts_together(policy: Path, halfway: Any) -> None:
    state, end, facts = halfway
    weights, again = gone_on(policy, state)
    assert torch.equal(weights, end)
    timeless = [k for k in facts if "second" not in k]
    assert {k: again[k] for k in timeless} == {k: facts[k] for k in timeless} and "version" in timeless


@pytest.mark.parametrize("part", ["optimisers", "memory", "replay", "weights"])
def test_a_part_that_is_lost_is_missed(policy: Path, halfway: Any, part: str) -> None:
    state, end, _ = halfway
    whole = getattr(state, part)
    assert whole
    if part == "weights":
        lost = {k: v for k, v in whole.items() if k != "ref"}
        with pytest.raises(ValueError, match="the checkpoint holds"):
            gone_on(policy, replace(state, weights=lost))
        return
    weights, _ = gone_on(policy, replace(state, **{part: type(whole)()}))
    assert not torch.equal(weights, end)


def test_the_version_goes_on(policy: Path, halfway: Any) -> None:
    state, _, _ = halfway
    with started(policy) as run:
        assert run.version == 0
        run.restore(state)
        assert run.version == run.engine.version == HALF
        first = take_step(run, HALF)
        fresh = ~first.batch.spread(first.batch.replayed_E, "E", "N")
        assert set(first.batch.version_N[fresh].tolist()) == {HALF}


def test_the_data_position_is_a_function_of_the_step(policy: Path) -> None:
    """Asked in any order, by a new process, over the end of an epoch: nothing to save, nothing to lose."""

    def picks(run: Run, step: int) -> list[str]:
        return [ask.task.uid for ask in run.method.curriculum(run.context(step), run.tasks.train)]

    with started(policy) as run:
        forwards = [picks(run, step) for step in range(5)]
        assert [picks(run, step) for step in (4, 2)] == [forwards[4], forwards[2]]
    with started(policy) as run:
        assert picks(run, 3) == forwards[3] != forwards[0]  # the bug: a resumed run starts at the beginning
        tasks = {run.tasks.train[i].uid for i in range(20)}
    flat_ = [uid for step in forwards for uid in step]
    assert set(flat_[:20]) == set(flat_[20:]) == tasks and flat_[:20] != flat_[20:]  # two epochs, two orders


def test_randomness_is_a_function_of_the_step(policy: Path, halfway: Any) -> None:
    """The same weights at the same step sample the same, whatever was drawn before; another step does not."""

    def texts(run: Run, step: int) -> list[str]:
        asks = run.method.curriculum(run.context(0), run.tasks.train)
        made: list[Episode] = asyncio.run(run.walk.drawn(run.context(step), asks, run.method.rollout))
        return [e.text for e in made]

    with started(policy) as run:
        torch.manual_seed(1)
        first = texts(run, 3)
        torch.rand(100)
        assert texts(run, 3) == first != texts(run, 4)


def test_metrics_of_steps_that_are_done_again_are_cut(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    at_three = b""
    for step in range(5):
        folder.append_metrics({"step": step, "reward": 0.1 * step})
        at_three = folder["metrics.jsonl"].read_bytes() if step == 3 else at_three
    with folder["metrics.jsonl"].open("a") as f:
        f.write('{"step": 5, "rew')  # killed while writing
    assert [r["step"] for r in folder.metrics()] == [0, 1, 2, 3, 4]  # half a row is none
    folder.set_metrics(at_three)  # from the checkpoint
    folder.append_metrics({"step": 4, "reward": 9.0})
    rows = folder.metrics()
    assert [r["step"] for r in rows] == [0, 1, 2, 3, 4]
    assert [r["reward"] for r in rows] == pytest.approx([0.0, 0.1, 0.2, 0.3, 9.0])


def test_a_folder_without_metrics_has_no_rows(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).metrics() == []


@dataclass(frozen=True)
class Halfway(Passes):
    """An update that fails in its second step, after one optimiser step, as a third bad gradient does."""

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        learner.step("policy", minibatches(batch, 2, 0)[0])
        if ctx.step == 1:
            raise ValueError("gradient norm is nan")


def test_a_step_that_failed_leaves_the_checkpoint_from_before_it(policy: Path, tmp_path: Path) -> None:
    """Else the step is done again from weights that it has half moved: not the run that was interrupted."""
    furniture = method("grpo").but(update=Halfway())
    with running(policy, furniture) as run:
        take_step(run, 0)
        before = flat(run.models["policy"])
    trainer = Trainer(config(policy, furniture, steps=3), RunFolder(tmp_path), quiet=True)
    with pytest.raises(ValueError, match="gradient norm is nan"):
        trainer.go()
    last = latest_checkpoint(tmp_path / "checkpoints")
    assert last is not None
    state, model = load_checkpoint(last), load_policy(policy)
    model.load_state_dict(state.weights["policy"])
    assert state.step == 1 and torch.equal(flat(model), before)
    assert not torch.equal(flat(trainer.run.models["policy"]), before)  # the bug would have saved these


def test_the_plant_has_everything(policy: Path) -> None:
    """So that none of the parts above is empty by accident."""
    assert config(policy, EVERYTHING).method.remembers_episodes


def test_in_a_world_the_rest_is_the_same(policy: Path, tmp_path: Path) -> None:
    """Episodes of several turns, some of them replayed, from a checkpoint in the middle."""
    task = in_world(tmp_path)
    with running(policy, EVERYTHING, task=task) as run:
        take_step(run, 0)
        path = save_checkpoint(tmp_path, run.state(1, {}))
        take_step(run, 1)
        end = flat(run.models["policy"])
    with running(policy, EVERYTHING, task=task) as run:
        run.restore(load_checkpoint(path))
        take_step(run, 1)
        assert torch.equal(flat(run.models["policy"]), end)
        assert not torch.equal(flat(load_policy(str(policy))), end)
