"""Diseases on purpose: neutral values change no bit, runs go on exactly, and no room sees what was there before."""

import asyncio
import math
import shutil
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_source import run_of, taken
from train_runs import gruppo, metrics, refused, same_run, saved, train

from gruppo.cli import overrides
from gruppo.data import Episode, Turn, single_turn
from gruppo.engines.rough import rounded
from gruppo.lab.tabular.setup import UNUSED, setup_of
from gruppo.policies import learned_state
from gruppo.stages import Context, need
from gruppo.train.config import RunConfig
from gruppo.train.doctor import step_zero
from gruppo.train.metrics import known
from gruppo.train.optim import AdamW
from gruppo.train.regime import Flips, RegimeConfig

NOISY = ("regime.sampler_noise=0.1", "regime.sampler_bits=6")
BURSTS = ("regime.flip=0.5", "regime.flip_every=2", "regime.flip_chance=0.7")


def answer(uid: int, score: float | None = 1.0) -> Episode:
    reward = {} if score is None else {"task": score, "length": -2.0}
    return single_turn(uid, "t", "t", np.array([1]), np.array([5]), np.zeros(1), 0, reward=reward)


def flips(**settings: Any) -> Flips:
    return Flips(RegimeConfig(**settings))


# laws: neutral is nothing


def test_as_many_bits_as_the_weights_have_change_no_bit_of_a_run() -> None:
    settings = ("steps=2", "method=grpo_tis", "eval.prompts=2")
    assert train("a", *settings) == 0
    assert train("b", *settings, "regime.sampler_bits=24") == 0
    same_run("a", "b")


def test_bursts_that_never_come_change_no_weight() -> None:
    settings = ("steps=2", "eval.prompts=2")
    assert train("a", *settings) == 0 and train("b", *settings, "regime.flip=1", "regime.flip_every=3") == 0
    left, right = metrics("a"), metrics("b")
    assert [row.pop("corrupted", None) for row in right] == [None, 0.0, 0.0] and left == right
    both = [Path("runs") / name / "policy" / "model.safetensors" for name in "ab"]
    assert both[0].read_bytes() == both[1].read_bytes()


def test_without_a_regime_there_is_one_engine_and_no_note() -> None:
    run = run_of()
    assert run.plain is run.engine and RegimeConfig().words() == "" and not any("purpose" in w for w in run.words)  # type: ignore[attr-defined]
    [record] = taken(run, 1)
    assert not any(e.notes for e in record.drawn) and "corrupted" not in record.facts


# laws: what is on purpose is a function of the seed and the step


@pytest.mark.parametrize("ahead", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_with_regimes_goes_on_exactly(ahead: int) -> None:
    settings = (*NOISY, *BURSTS, f"ahead={ahead}", "steps=4", "method=grpo_tis", "save.checkpoint_every=2")
    assert train("a", *settings, "eval.prompts=2") == 0
    shutil.copytree("runs/a", "runs/b")
    shutil.rmtree("runs/b/checkpoints/step-000004")
    Path("runs/b/summary.json").unlink()
    assert saved("b") == ["step-000002"] and gruppo("train", "--resume", "runs/b") == 0
    same_run("a", "b")


def test_the_sampler_has_its_weights_and_the_trainer_has_its_own() -> None:
    run = run_of("regime.sampler_bits=5")
    first, second = taken(run, 2)
    theirs, ours = (learned_state(engine.models["policy"]) for engine in (run.engine, run.plain))
    assert all(torch.equal(theirs[name], rounded(w.detach(), 5)) for name, w in ours.items())
    assert all(ours[name] is w for name, w in learned_state(run.models["policy"]).items())
    assert run.plain.version == run.engine.version == 2
    for record in (first, second):
        assert 1e-3 < record.facts["sampler_gap"] < record.facts["sampler_gap_max"]
    batch = second.batch
    told = run.learner.read("old", batch, [need("logp", "old")])["logp_old_N"]
    assert float((told - batch.logp_gen_N).abs().max()) > 1e-3


def test_held_out_answers_are_those_of_the_weights_as_they_are() -> None:
    assert train("a", "steps=1", "eval.prompts=32") == 0
    assert train("b", "steps=1", "eval.prompts=32", "regime.sampler_noise=1", "regime.flip=1") == 0
    before = [{k: v for k, v in metrics(name)[0].items() if k.startswith("held_out")} for name in "ab"]
    assert before[0] == before[1] and "held_out" in before[0]
    assert metrics("a")[1]["entropy"] != metrics("b")[1]["entropy"], "answers to learn from are those of the noise"


def test_step_zero_says_that_the_gap_is_meant() -> None:
    run = run_of("regime.sampler_bits=4")
    try:
        gap = next(c for c in asyncio.run(step_zero(run)) if c.name == "sampler_gap")
    finally:
        run.close()
    assert gap.ok and gap.value > 1e-3 and "differ by regime.sampler_bits=4" in gap.found
    assert "on purpose: regime.sampler_bits=4 (docs/regimes.md)" in run.words  # type: ignore[attr-defined]


# laws of flips


def test_a_burst_flips_all_and_twice_is_never() -> None:
    ctx, some = Context(seed=1, step=3), [answer(i, i / 8) for i in range(9)]
    flips(flip=1.0, flip_every=4)(ctx, some)
    assert [e.reward for e in some] == [{"task": 1 - i / 8, "length": -2.0} for i in range(9)]
    assert all(e.notes["corrupted"].values.tolist() == [1.0] for e in some)
    flips(flip=1.0, flip_every=4)(Context(seed=1, step=2), [calm := answer(0)])
    assert calm.reward["task"] == 1 and calm.notes["corrupted"].values.tolist() == [0.0]


def test_which_scores_are_flipped_depends_on_the_episode_and_not_on_the_order() -> None:
    ctx, half = Context(seed=1, step=3), flips(flip=0.3)

    def hit(uids: Sequence[int], at: Context = ctx) -> dict[int, float]:
        some = [answer(uid) for uid in uids]
        half(at, some)
        return {e.uid: 1 - e.reward["task"] for e in some}

    every = hit(range(1000))
    assert hit(range(999, -1, -1)) == every and hit([17]) == {17: every[17]}
    assert sum(every.values()) / 1000 == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / 1000))
    assert hit(range(1000), Context(seed=2, step=3)) != every != hit(range(1000), Context(seed=1, step=4))


def test_bursts_come_with_their_chance_at_every_so_many_steps() -> None:
    some = flips(flip=1.0, flip_every=3, flip_chance=0.4)
    steps = [s for s in range(3000) if some.burst(Context(seed=5, step=s))]
    assert all((s + 1) % 3 == 0 for s in steps) and len(steps) / 1000 == pytest.approx(0.4, abs=0.06)
    assert [s for s in range(7) if flips(flip=1.0, flip_every=3).burst(Context(step=s))] == [2, 5]


def test_where_turns_are_paid_the_return_is_flipped() -> None:
    e = answer(3, None)
    e.turns = [Turn(1, 2, reward={"task": 0.25, "tool": 5.0}), Turn(1, 2, reward={"task": 0.5}), Turn(1, 2)]
    flips(flip=1.0)(Context(), [e])
    assert e.score == 0.25 and [t.reward for t in e.turns] == [{"task": 0.25, "tool": 5.0}, {"task": 0.0}, {}]
    e.reward["task"] = 0.25
    flips(flip=1.0)(Context(), [e])
    assert e.score == 0.5 and e.reward == {"task": 0.25}  # 0.5 becomes 0.5


def test_what_has_no_score_has_none() -> None:
    flips(flip=1.0)(Context(), [e := answer(0, None)])
    assert e.reward == {} and not e.notes


@pytest.mark.parametrize("task", ["task=addition", "task=household"])
def test_no_room_sees_a_score_before_it_is_flipped(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every episode passes once: at its end in a world, with its verdict elsewhere; before the rollout has it."""
    once: list[int] = []
    plain = Flips.__call__
    monkeypatch.setattr(Flips, "__call__", lambda s, c, es: (once.extend(e.uid for e in es), plain(s, c, es))[0])
    seen: list[float] = []

    async def rollout(ctx: Context, prompts: Any) -> list[Episode]:
        played = await ctx.play(prompts)
        seen.extend(e.score for e in played)
        return played

    runs = [run_of(task, "prompts=2", f"regime.flip={flip}") for flip in (1, 1e-9)]
    scores: list[list[float]] = []
    for run in runs:
        ctx = run.context(0)
        asks = run.method.curriculum(ctx, run.tasks.train)
        try:
            drawn = asyncio.run(run.walk.drawn(ctx, asks, rollout))
        finally:
            run.close()
        assert sorted(once) == sorted(e.uid for e in drawn) and seen == [e.score for e in drawn]
        scores.append([seen.copy(), once.clear(), seen.clear()][0])  # type: ignore[func-returns-value]
    assert scores[0] == [1 - s for s in scores[1]] and len(scores[0]) == 6


# what is refused


def test_scores_without_an_opposite_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the score 2 of t is not between 0 and 1.*regime.flip=0"):
        flips(flip=0.1, flip_every=100)(Context(), [answer(0, 2.0)])
    game = answer(0)
    game.turns = [Turn(1, 2, agent="x"), Turn(1, 2, agent="o")]
    with pytest.raises(ValueError, match=r"t is played by several agents.*regime.flip=0"):
        flips(flip=0.1)(Context(), [game])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["regime.flip_every=4"], "regime.flip_every=4 says when scores are flipped, and none are"),
        (["regime.sampler_bits=4", "engine=vllm"], "regime.sampler_bits=4 with engine=vllm"),
        (["regime.sampler_noise=2"], "regime.sampler_noise=2 is out of range: use a number >= 0 and <= 1"),
        (["regime.flip=1", "task=tictactoe"], "several agents"),
        (["regime.flips=1"], "nearest: flip"),
    ],
)
def test_what_cannot_be_is_refused(settings: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused(capsys, "train", "prompts=2", "samples=2", "threads=1", *settings)


def test_a_cluster_gets_the_weights_as_they_are() -> None:
    with pytest.raises(ValueError, match=r"regime.sampler_noise=0.1 with scale.samplers: that sampler gets"):
        overrides.apply(RunConfig(), ["scale.address=local", "scale.samplers=1", "regime.sampler_noise=0.1"])


# diseases that other settings bring


@pytest.mark.parametrize("limit", ["inf", "0.01"])
def test_without_a_limit_the_gradient_is_taken_as_it_is(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []

    def step(self: AdamW, closure: Any = None) -> None:
        norms.append(float(torch.cat([p.grad.flatten() for g in self.param_groups for p in g["params"]]).norm()))

    monkeypatch.setattr(AdamW, "step", step)
    [record] = taken(run_of(f"optim.clip_norm={limit}"), 1)
    assert norms == [pytest.approx(min(record.facts["grad_norm"], float(limit)), rel=1e-3)]
    assert record.facts["grad_norm"] > 0.1


def test_a_pool_has_its_prompts_and_no_others() -> None:
    records = taken(run_of("task.train_size=2"), 3)
    tasks = [{e.task for e in r.drawn} for r in records]
    assert tasks[0] == tasks[1] == tasks[2] and len(tasks[0]) == 2
    assert [r.facts["drawn_groups"] for r in records] == [2.0] * 3, "a problem that comes twice has a larger group"
    assert sorted(len({e.uid for e in r.drawn}) for r in records) == [9] * 3


def test_sources_have_their_shares_and_their_accuracies() -> None:
    [record] = taken(run_of("task=mix:3*addition@1+chain", "task.train_size=4", "prompts=4"), 1)
    facts, at = record.facts, ("addition/1", "chain/2")
    assert [facts[f"drawn/{domain}"] for domain in at] == [0.75, 0.25]
    assert sum(facts[f"drawn/{d}"] * facts[f"accuracy/{d}"] for d in at) == pytest.approx(facts["accuracy"])
    wanted = np.mean([e.score for e in record.drawn if e.domain == "addition/1"])
    assert facts["accuracy/addition/1"] == wanted and all(map(known, facts))
    [alone] = taken(run_of("task=addition"), 1)
    assert not any(name.startswith(("accuracy/", "drawn/")) for name in alone.facts)


def test_answers_that_come_with_their_reward_keep_it() -> None:
    run = run_of("method=dpo", "task=preference", "regime.flip=1")
    [record] = taken(run, 1)
    told = {a["text"]: a["reward"] for e in record.drawn for a in run.walk.task_of(e).meta["answers"]}
    assert len(set(told.values())) > 1 and all(e.reward["task"] == told[e.text] for e in record.drawn)
    assert "corrupted" not in record.facts


def test_an_exact_world_has_no_regime_but_lag() -> None:
    exact = "task=gruppo.lab.tabular:exact"
    for setting in ("turns_a_step=3", "regime.flip=1", "scale.ranks=2", "budget_tokens=99"):
        with pytest.raises(ValueError, match="has no effect in an exact world"):
            setup_of(overrides.apply(RunConfig(), [exact, setting]))
    assert setup_of(overrides.apply(RunConfig(), [exact, "ahead=2"])).lag == 2


def test_every_setting_of_a_run_is_taken_or_refused_in_an_exact_world() -> None:
    """A new one has to say which: without this `turns_a_step` was taken in silence."""
    taken = {"method", "task", "optim", "eval", "steps", "prompts", "samples", "seed", "ahead"}
    outside = {"save", "max_failures", "accept", "threads", "deterministic", "show"}  # they change no number
    assert taken | outside | set(UNUSED) == {f.name for f in fields(RunConfig)}
