"""Updates that draw: versions of what is drawn after an optimiser step, needs in ctx.read, answers nobody hears."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gruppo.cli import overrides
from gruppo.data import Batch, Episode, Use
from gruppo.methods.ppo import PPO
from gruppo.stages import Context, Method, Need, Occupant, Prompt, need
from gruppo.stages.objective import PolicyGradient
from gruppo.train.checkpoint import load_checkpoint, save_checkpoint
from gruppo.train.config import RunConfig
from gruppo.train.loop import train_step
from gruppo.train.run import Run
from gruppo.train.waiting import waited

SMALL = ("model=tiny", "task=chain", "task.level=1", "prompts=2", "samples=2", "steps=3", "threads=1")
QUIET = ("save.tensorboard=no", "eval.every=0")
SEEN: list[tuple[str, int, list[int]]] = []  # what was drawn, at which version of the step, with which versions


def versions(episodes: list[Episode]) -> list[int]:
    return sorted({int(v) for e in episodes for s in e.sequences for v in s.version[s.version >= 0]})


@dataclass(frozen=True)
class DrawAgain(Occupant):
    """A step on the batch, then one on answers to the same prompts that the changed policy gives."""

    async def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        asked = [Prompt(e.sequences[0].ids[: e.turns[0].start], replace(e.ask, key="again"), e.group, 1) for e in
                 ctx.episodes]  # fmt: skip
        SEEN.append(("before", ctx.version, versions(await ctx.answer(asked))))
        learner.step("policy", batch)
        learner.step("critic", batch)
        fresh = await ctx.answer(asked)
        SEEN.append(("after", ctx.version, versions(fresh)))
        SEEN.append(("played", ctx.version, versions(await ctx.play(asked))))
        ready = ctx.ready(fresh)
        assert bool(ready.learn_N.any()) and not bool(ready.judged_E.any()) and "adv_N" in ready.columns
        learner.step("policy", ready)


AGAIN = PPO.but(name="again", update=DrawAgain(), objective={**PPO.objectives, "policy": PolicyGradient()})


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    SEEN.clear()
    yield
    torch.set_num_threads(threads)


def run_of(method: Method, *settings: str) -> Run:
    return Run(replace(overrides.apply(RunConfig(), (*SMALL, *QUIET, *settings)), method=method), say=lambda s: None)


def test_what_is_drawn_after_an_optimiser_step_has_a_version_of_its_own() -> None:
    run = run_of(AGAIN)
    first, second = (waited(train_step(run, step)) for step in range(2))
    run.close()
    # Step 1 samples at 0. A step of the policy, and what is drawn has 1; a second draw, from the same weights, too.
    assert SEEN[:3] == [("before", 0, [0]), ("after", 0, [1]), ("played", 0, [1])]
    assert first.facts["version"] == 2.0 and versions(list(second.drawn)) == [2]
    assert SEEN[3:] == [("before", 2, [2]), ("after", 2, [3]), ("played", 2, [3])]
    assert second.facts["version"] == 4.0


def test_what_is_drawn_is_of_the_changed_policy() -> None:
    """logp_gen agrees with the weights at the draw; under those of the step's start the gap would be a hundred times
    as large, so the comparison can fail."""
    run = run_of(AGAIN, "optim.lr=1e-2")
    start = {k: v.clone() for k, v in run.models["policy"].state_dict().items()}
    read, made = run.walk.ready, list[Episode]()
    run.walk.ready = lambda ctx, episodes: (made.extend(episodes), read(ctx, episodes))[1]  # type: ignore[method-assign]
    facts = waited(train_step(run, 0)).facts
    assert facts["sampler_gap_max"] < 1e-3
    run.models["policy"].load_state_dict(start)
    batch = run.packed(made)
    old_N = run.learner.read("policy", batch, [need("logp")])["logp_policy_N"]
    run.close()
    assert float((old_N - batch.logp_gen_N).abs().max()) > 0.1


def test_all_that_was_sampled_counts() -> None:
    run = run_of(AGAIN)
    record = waited(train_step(run, 0))
    run.close()
    assert record.facts["sampled"] == run.engine.sampled > record.facts["tokens"]


def test_without_draws_in_updates_the_version_counts_steps() -> None:
    run = run_of(PPO, "method.update.minibatches=2", "method.update.epochs=2")
    facts = [waited(train_step(run, step)).facts for step in range(2)]
    run.close()
    assert [f["version"] for f in facts] == [1.0, 2.0] == [run.version - 1.0, float(run.engine.version)]


def test_it_resumes_exactly(tmp_path: Path) -> None:
    straight, again = run_of(AGAIN), run_of(AGAIN)
    waited(train_step(straight, 0))
    again.restore(load_checkpoint(save_checkpoint(tmp_path / "x", straight.state(1, {}))))
    ends = []
    for name, run in (("a", straight), ("b", again)):
        SEEN.clear()
        waited(train_step(run, 1))
        at = save_checkpoint(tmp_path / name, run.state(2, {}))
        ends.append(({str(p.relative_to(at)): p.read_bytes() for p in at.rglob("*") if p.is_file()}, list(SEEN)))
        run.close()
    assert ends[0] == ends[1]


def test_what_an_update_says_is_not_played() -> None:
    """In an environment: answers at the states of remembered turns have one turn and no reward."""
    run = run_of(PPO, "task=guess", "model=tiny-agent", "prompts=1")
    ctx = run.context(0)
    episodes = waited(run.walk.collected(ctx))[0]
    asked = [Prompt(e.sequences[t.sequence].ids[: t.start], e.ask, e.group, 1) for e in episodes for t in e.turns]
    fresh = waited(run.walk.answered(ctx, asked))
    run.close()
    assert len(fresh) == len(asked) > len(episodes)
    for e, p in zip(fresh, asked, strict=True):
        assert (len(e.turns), e.reward, e.use, e.turns[0].start) == (1, {}, Use.APART, len(p.ids))
        assert np.array_equal(e.sequences[0].ids[: len(p.ids)], p.ids) and not e.rewarded


def test_needs_can_be_read() -> None:
    """Names are readouts of one role at N; needs bring their own role, level and side."""
    run = run_of(PPO)
    ctx = run.context(0)
    episodes = waited(run.walk.collected(ctx))[0]
    wanted: list[Need | str] = [
        "value",
        need("logp", "old"),
        need("value", "critic", at="K", side="after", when="step"),
    ]
    batch = ctx.read(episodes, "critic", wanted)
    run.close()
    assert batch.value_critic_N.shape == batch.logp_old_N.shape == (batch.size("N"),)
    assert batch.value_critic_after_K.shape == (batch.size("K"),)
    assert "logp_policy_N" in ctx.read(episodes).columns
