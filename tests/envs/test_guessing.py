"""Methods that branch, hint, retry or reuse run unchanged in an environment of two turns, through ctx.play."""

import asyncio

import guessing
import numpy as np
import pytest
import torch

from gruppo.data import Episode, Source, Use
from gruppo.methods import method
from gruppo.stages import StepRecord
from gruppo.stages.play import nodes_of
from gruppo.train.config import EvalConfig, RunConfig
from gruppo.train.loop import train_step
from gruppo.train.run import Run


def played(name: str, steps: int = 2, level: int = 10) -> tuple[list[StepRecord], guessing.Guess, bool]:
    """A run of the method in the environment: its steps, the player, and whether the policy moved."""
    run = Run(RunConfig(method=method(name), steps=steps, prompts=8, samples=4, eval=EvalConfig(prompts=4), threads=1))
    try:
        run.walk.tasks, run.walk.play = guessing.tasks(32, level), (player := guessing.Guess())
        before = {k: v.clone() for k, v in run.models["policy"].state_dict().items()}
        records = [asyncio.run(train_step(run, step)) for step in range(steps)]
        moved = any(not torch.equal(v, before[k]) for k, v in run.models["policy"].state_dict().items())
    finally:
        run.close()
    return records, player, moved


def two_turns(episodes: list[Episode]) -> list[Episode]:
    return [e for e in episodes if len(e.turns) == 2]


@pytest.mark.parametrize("name", ["igrpo", "scaf_grpo", "spo_segment", "aepo", "grpo", "remax"])
def test_runs_unchanged_in_two_turns(name: str) -> None:
    records, player, moved = played(name, level=100 if name == "scaf_grpo" else 10)
    drawn = [e for r in records for e in r.drawn]
    assert moved and player.steps > 0 and two_turns(drawn)
    assert all(r.facts["sampler_gap"] < 1e-3 for r in records)  # the trainer sees the tokens that the sampler saw
    for e in two_turns(drawn):
        [s], (first, second) = e.sequences, e.turns
        assert (s.source[first.stop : second.start] == Source.ENV).all() and first.stop < second.start
        assert (s.source[second.start : second.stop] == Source.POLICY).all()
        assert e.reward["task"] in (0.0, 1.0)


def test_a_probe_of_a_first_turn_goes_on_to_the_second() -> None:
    records, _, _ = played("spo_segment", steps=1)
    probes = [e for e in records[0].drawn if e.use == Use.NONE]
    paths = {e.uid: e for e in records[0].drawn if e.use == Use.LEARN}
    assert two_turns(probes) and paths
    begun = 0
    for e in two_turns(probes):  # its decisions before the cut are those of its path, as node ids say
        [s] = e.sequences
        assert s.node is not None
        shared = s.node[s.node != -1]
        mine = [p for p in paths.values() if set(shared.tolist()) & set(nodes_of(p).tolist()) - {-1}]
        begun += len(shared) > 0
        assert len(mine) == (len(shared) > 0)
        assert all((p.sequences[0].ids[: len(shared)] == s.ids[: len(shared)]).all() for p in mine)
    assert begun


def test_drafts_and_refinements_are_both_played() -> None:
    records, _, _ = played("igrpo", steps=1)
    drafts = [e for e in records[0].drawn if e.use == Use.NONE]
    refined = [e for e in records[0].drawn if e.use == Use.LEARN]
    assert two_turns(drafts) and len(drafts) == len(refined) == 32
    assert any(e.sequences[0].prompt_len > drafts[0].sequences[0].prompt_len for e in refined)


def test_heated_answers_keep_their_temperature_in_both_turns() -> None:
    records, _, _ = played("aepo", steps=2)
    heated = two_turns([e for r in records for e in r.drawn if e.sequences[0].temperature is not None])
    assert heated
    for e in heated:
        [s] = e.sequences
        assert s.temperature is not None
        warm = s.temperature[s.source == Source.POLICY]
        assert np.isclose(warm, 0.8).all() or np.isclose(warm, 1.2).all()


def test_a_hint_belongs_to_the_first_turn() -> None:
    run = Run(RunConfig(method=method("scaf_grpo"), steps=1, prompts=8, samples=4, eval=EvalConfig(prompts=4)))
    try:
        run.walk.tasks, run.walk.play = guessing.tasks(32, 100), guessing.Guess()
        ctx = run.context(0)
        ctx.step, ctx.steps = 9, 10  # beyond the share of the run without help
        drawn, _ = asyncio.run(run.walk.collected(ctx))
    finally:
        run.close()
    helped = [e for e in drawn if (e.sequences[0].source == Source.HINT).any()]
    assert helped and any(e.use == Use.LEARN for e in helped) == any(e.reward["task"] > 0 for e in helped)
