"""Several trained writers in a run: who writes, who learns, what is saved, and how it goes on."""

import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_runs import SMALL, contents, gruppo, metrics, refused, same_run, saved, train

import gruppo as api
from gruppo.api import configured as api_configured
from gruppo.cli import overrides
from gruppo.data import Batch, Episode
from gruppo.methods import method
from gruppo.stages import Method, need
from gruppo.stages.writers import cast_of, written_S
from gruppo.train import cast as casting
from gruppo.train import learner as learning
from gruppo.train import trainer
from gruppo.train.config import RunConfig
from gruppo.train.doctor import refuse, step_zero
from gruppo.train.loop import train_step
from gruppo.train.run import Run
from gruppo.train.waiting import waited

TINY = ("task=verify", "prompts=2", "samples=3", "eval.prompts=2", "eval.every=0", "save.episodes_every=2")
TWO = (*TINY, "method=drmas", "method.writers.verifier=verifier")


def run_of(*settings: str) -> Run:
    config = overrides.apply(RunConfig(), ["threads=1", "model.dtype=float64", "model=tiny-agent", *settings])
    return Run(config, say=lambda words: None)


def drawn(run: Run) -> list[Episode]:
    try:
        return waited(run.walk.collected(run.context(0)))[0]
    finally:
        run.close()


def weights(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def moved(run: Run, role: str) -> None:
    """The role with weights of its own."""
    with torch.no_grad():
        for i, p in enumerate(run.models[role].parameters()):
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(i), dtype=p.dtype))


# laws


def test_writers_that_are_all_the_policy_are_no_writers(here: Path) -> None:
    settings = (*TINY, "method=drmas", "steps=1", "save.episodes_every=1")
    assert train("a", *settings) == 0
    assert train("b", *settings, "method.writers.verifier=policy", "method.writers.solver=policy") == 0
    same_run("a", "b")


def test_writers_with_equal_weights_sample_what_the_shared_policy_samples() -> None:
    shared, own = (drawn(run_of(*TINY, "method=drmas", *more)) for more in ((), ("method.writers.verifier=v",)))
    assert {t.agent for e in own for t in e.turns} == {"solver", "verifier"}
    for a, b in zip(shared, own, strict=True):
        assert (a.uid, a.text, a.reward) == (b.uid, b.text, b.reward)
        for x, y in zip(a.sequences, b.sequences, strict=True):
            assert x.ids.tolist() == y.ids.tolist()
            np.testing.assert_allclose(x.logp, y.logp, atol=1e-6)


def test_every_row_is_sampled_and_read_by_its_own_role() -> None:
    """The log-probabilities of every row are those of the role that wrote it, in the sampler and in the trainer."""
    run = run_of(*TWO, "method.penalties=grpo")
    try:
        moved(run, "verifier")
        ctx = run.context(0)
        batch = run.packed(waited(run.walk.collected(ctx))[1])
        read = run.learner.read("old", batch, [need("logp", "old")])["logp_old_N"]
        ref = run.learner.read("ref", batch, [need("logp", "ref")])["logp_ref_N"]
        assert float((read - batch.logp_gen_N).abs().max()) < 1e-5  # stored in float32
        mine_N = batch.spread(written_S(run.method, batch, "verifier"), "S", "N")
        assert bool(mine_N.any()) and bool((~mine_N).any())
        assert float((ref - read)[mine_N].abs().max()) > 1e-2 and float((ref - read)[~mine_N].abs().max()) < 1e-9
    finally:
        run.close()


def test_a_step_of_one_writer_leaves_the_others_alone() -> None:
    run = run_of(*TWO)
    try:
        ctx = run.context(0)
        run.learner.begin(ctx)
        episodes, kept = waited(run.walk.collected(ctx))
        batch = run.walk.batch_of(ctx, episodes, kept)
        assert batch is not None
        batch = run.walk.credited(ctx, batch)
        before = {role: weights(run.models[role]) for role in ("policy", "verifier")}
        run.learner.step("verifier", batch.with_columns(adv_N=torch.ones_like(batch.adv_N)))
        assert torch.equal(before["policy"], weights(run.models["policy"]))
        assert not torch.equal(before["verifier"], weights(run.models["verifier"]))
        assert not run.learner.optimisers["policy"].state
        solver = [e for e in kept if {t.agent for t in e.turns} == {"solver"}]
        alone = run.packed([part_of(e, "solver") for e in solver or kept])
        now = weights(run.models["verifier"])
        run.learner.begin(ctx)
        run.learner.step("verifier", alone.with_columns(adv_N=torch.ones_like(alone.logp_gen_N)))
        assert torch.equal(now, weights(run.models["verifier"]))  # it wrote nothing of this
        assert "grad_norm_verifier" not in run.learner.tally.sums
    finally:
        run.close()


def part_of(e: Episode, agent: str) -> Episode:
    """The episode with the context of one agent alone."""
    at = next(t.sequence for t in e.turns if t.agent == agent)
    turns = [replace(t, sequence=0) for t in e.turns if t.agent == agent]
    return replace(e, sequences=[e.sequences[at]], turns=turns)


def one_for_all(method: Method, batch: Batch) -> Sequence[tuple[str, Batch]]:
    return [("policy", batch)]


def test_step_zero_sees_rows_that_the_wrong_role_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(*TWO)
    try:
        moved(run, "verifier")
        refuse(waited(step_zero(run)))
        monkeypatch.setattr(learning, "by_writer", one_for_all)
        with pytest.raises(ValueError, match="step zero, sampler_gap"):
            refuse(waited(step_zero(run)))
    finally:
        run.close()


def test_step_zero_looks_at_the_gradient_of_every_writer() -> None:
    run, times = run_of(*TWO), iter(range(1, 1000))
    try:
        next(run.models["verifier"].parameters()).register_hook(lambda g: g * next(times))
        with pytest.raises(ValueError, match="step zero, micro_batches"):
            refuse(waited(step_zero(run)))
    finally:
        run.close()


# references


def test_a_reference_is_of_the_role_that_wrote() -> None:
    """One that never moves is shared by writers that start as the policy; one that follows is followed by each."""
    shared = run_of(*TWO, "method.penalties=grpo")
    own = run_of(*TWO, "method.penalties=grpo", "method.cast.ref.refresh=ema")
    try:
        assert set(shared.models) == {"policy", "ref", "verifier"}
        assert set(own.models) == {"policy", "ref", "verifier", "ref@verifier"}
        assert cast_of(own.models, "verifier")["ref"] is own.models["ref@verifier"]
        assert cast_of(own.models, "verifier")["old"] is own.models["verifier"]
        moved(own, "verifier")
        start = weights(own.models["ref"])
        assert torch.equal(start, weights(own.models["ref@verifier"]))
        waited(train_step(own, 0))
        for ref, role in (("ref", "policy"), ("ref@verifier", "verifier")):
            torch.testing.assert_close(weights(own.models[ref]), start.lerp(weights(own.models[role]), 0.1))
    finally:
        shared.close()
        own.close()


# what a run leaves, and how it goes on


def test_a_run_goes_on_bit_for_bit_and_leaves_all_its_writers(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (*TWO, "method.penalties=grpo", "method.cast.ref.refresh=ema", "method.update.minibatches=2", "steps=3")
    settings = (*settings, "save.best=true", "save.checkpoint_every=2")
    assert train("a", *settings) == 0
    plain = trainer.train_step

    async def interrupted(run: Any, step: int) -> Any:
        if step == 1:
            signal.raise_signal(signal.SIGINT)
        return await plain(run, step)

    monkeypatch.setattr(trainer, "train_step", interrupted)
    assert train("b", *settings) == 0
    monkeypatch.setattr(trainer, "train_step", plain)
    assert saved("b")[-1] == "step-000002"
    assert gruppo("train", "--resume", "runs/b") == 0
    same_run("a", "b")
    left, right = (contents(Path("runs") / run / "writers") for run in "ab")
    assert left == right and "verifier/policy/model.safetensors" in left
    held = contents(Path("runs/a/checkpoints/step-000003"))
    assert {"verifier.safetensors", "optimiser-verifier.safetensors", "ref@verifier.safetensors"} <= held.keys()
    assert Path("runs/a/best/writers/verifier/policy/config.json").is_file()
    row = metrics("a")[-1]
    assert row["grad_norm_verifier"] > 0 and "writer/verifier/kl_ref" in row and "kl_ref" in row
    for_transformers()
    as_saved(row, capsys)


def as_saved(row: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Evaluated from its folders, the run plays as it did at its end."""
    capsys.readouterr()
    assert api.load("runs/a").writers == {"verifier": Path("runs/a/writers/verifier/policy")}
    found = api.evaluate("runs/a")
    assert found.accuracy == row["held_out"] and found.by_agent["verifier"] == row["held_out/return/verifier"]
    assert "verifier is written by runs/a/writers/verifier/policy" in capsys.readouterr().err
    shutil.copytree("runs/a/policy", "alone")
    assert api.evaluate("alone", task="verify", prompts=2).entropy != found.entropy
    assert api.evaluate("runs/a/writers/verifier/policy").by_agent  # alone, on the task of its run
    Path("runs/a/writers/verifier/policy").rename("elsewhere")
    with pytest.raises(ValueError, match=r"was trained beside the role 'verifier', and .* is gone"):
        api.evaluate("runs/a")


def for_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    folders = ("runs/a/policy", "runs/a/writers/verifier/policy")
    a, b = (weights(transformers.AutoModelForCausalLM.from_pretrained(folder)) for folder in folders)
    assert a.shape == b.shape and not torch.equal(a, b)


def test_python_takes_writers_as_the_command_line_does() -> None:
    by_method = api_configured(method("drmas").but(writers={"verifier": "v"}), task="verify")
    by_setting = api_configured("drmas", task="verify", **{"method.writers.verifier": "v"})
    assert by_method == by_setting and dict(by_method.method.writers) == {"verifier": "v"}


# what is refused


def test_a_role_without_room_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(casting, "clone", full)
    with pytest.raises(ValueError, match="out of memory for the weights of role 'verifier', beside those of policy"):
        run_of(*TWO)


REFUSED = {
    "method.writers.verifer=v": r"task=verify has no agent 'verifer' \(nearest: verifier\)",
    "method.writers.verifier=ref": "which is not trained, so nobody would learn from what it writes",
    "method.writers.verifier=old": "which is every writer at the start of the step",
    "method.writers.verifier=a/b": "which is no agent with a role",
    "method.writers=own": "the writers are one role for each agent",
    "method.writers.verifier.x=v": "that is no role for an agent",
    "method.writers.verifier+=v": "that is no role for an agent",
    "method.writers.verifier=v method.writers.solver=s": "no agent of task=verify is left to the policy",
    "method.writers.verifier=v task=calculator": "it has one agent",
    "method.writers.verifier=v task=addition": "it has one agent",
    "method.writers.verifier=critic method=ppo": "which has a value head and writes no tokens",
    "method.writers.verifier=v method=archer": "critic_then_actor in update trains roles that it names",
    "method.writers.verifier=v method.cast.v.refresh=ema": "which is overwritten with Ema",
    "method.writers.verifier=v method.cast.v.start=tiny": "has another tokenizer than the policy",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_what_makes_no_sense_is_refused(settings: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = refused(capsys, "train", *SMALL, *TINY, "method=drmas", *settings.split())
    assert re.search(REFUSED[settings], words), words
