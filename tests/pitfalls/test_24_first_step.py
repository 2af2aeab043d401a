"""Pitfall 24: "dropout / train-eval mode, padding side, position ids, bf16 logits in log-softmax, lm_head fp32".
Rule: "first-step check: ratio==1, KL(ref)==0, lr=0 run stays fixed".

Every one of these bugs is planted into a policy; step zero must refuse it. If a bug came back for real, the same
check would stop the run before its first update.
"""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_runs import batch_of, drawn, flat, running, take_step
from torch import Tensor

from gruppo.data import pack, single_turn
from gruppo.engines.plain import Plain
from gruppo.methods import method
from gruppo.pieces.aggregate import weights
from gruppo.policies import TinyTransformer, load_policy, packed
from gruppo.stages import Sampling, need
from gruppo.stages.readouts import _log_probabilities
from gruppo.train.config import ModelConfig
from gruppo.train.doctor import step_zero
from gruppo.train.forward import serve
from gruppo.train.learner import OptimConfig


def failing(run: Any) -> set[str]:
    return {c.name for c in asyncio.run(step_zero(run)) if not c.ok}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_step_zero_holds(policy: Path, dtype: str) -> None:
    sampling = Sampling(8, temperature=0.7, top_p=0.9)
    with running(policy, model=ModelConfig(str(policy), dtype, "cpu"), sampling=sampling) as run:  # type: ignore[arg-type]
        assert failing(run) == set()


@pytest.mark.parametrize(
    ("size", "refused"), [(1.0, {"micro_batches"}), (1e-6, {"micro_batches"}), (1e-9, set[str]()), (0.0, set[str]())]
)
def test_a_gradient_that_depends_on_the_cut_is_refused_unless_it_is_rounding(
    policy: Path, monkeypatch: pytest.MonkeyPatch, size: float, refused: set[str]
) -> None:
    """Where advantages cancel, as on a first token that all answers share, rounding is all that is left of it."""
    with running(policy) as run:
        plain, parameters = run.learner.grad, [p for p in run.models["policy"].parameters() if p.requires_grad]

        def grad(*words: Any, **named: Any) -> Any:
            out = plain(*words, **named)
            for p in parameters:
                p.grad = size * torch.randn_like(p)
            return out

        monkeypatch.setattr(run.learner, "grad", grad)
        assert failing(run) == refused


def test_dropout_is_refused(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = TinyTransformer.forward

    def dropping(self: TinyTransformer, *args: Any, **kept: Any) -> Any:
        h, layers = forward(self, *args, **kept)
        return F.dropout(h, 0.1, self.training), layers

    with running(policy) as run:
        monkeypatch.setattr(TinyTransformer, "forward", dropping)
        assert "ratio" in failing(run)
        run.models["policy"].eval()
        assert failing(run) == set()


def test_the_sampler_never_drops(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It evaluates, and gives the trainer its mode back."""
    seen: list[bool] = []

    def watch(of: type[Any]) -> None:
        decode = of.decode

        def watched(self: Any, *arguments: Any) -> Tensor:
            seen.append(run.models["policy"].training)
            return decode(self, *arguments)

        monkeypatch.setattr(of, "decode", watched)

    with running(policy) as run:
        for of in (TinyTransformer, Plain):
            watch(of)
        run.models["policy"].train()
        drawn(run)
        assert seen and not any(seen) and run.models["policy"].training


def test_shifted_positions_are_refused(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that run on through a packed batch, instead of starting anew in each sequence."""
    rotary = TinyTransformer._rotary

    def running_on(self: TinyTransformer, pos_X: Tensor) -> Any:
        inside = torch.arange(len(pos_X)) % self.context if len(pos_X) > 40 else pos_X
        return rotary(self, inside)

    with running(policy) as run:
        monkeypatch.setattr(TinyTransformer, "_rotary", running_on)
        assert "sampler_gap" in failing(run)


def test_a_reference_that_is_another_is_refused(policy: Path) -> None:
    with running(policy) as run:
        with torch.no_grad():
            run.models["ref"].model.embed_tokens.weight[5] += 0.5
        assert "reference_kl" in failing(run)


def test_neighbours_in_a_batch_do_not_matter(policy: Path) -> None:
    """No padding side to get wrong: a sequence alone, first, last, beside longer and shorter ones."""
    model, rng = load_policy(policy, torch.float64), np.random.default_rng(0)
    short, middle, long = (rng.integers(3, 99, n) for n in (2, 7, 40))
    alone, _ = model(packed([middle]))
    for others, start in (([short, middle, long], 2), ([long, middle], 40), ([middle, long, short], 0)):
        both, _ = model(packed(others))
        assert torch.allclose(both[start : start + 7], alone, atol=1e-12)


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_with_a_learning_rate_of_0_nothing_moves(policy: Path, name: str) -> None:
    with running(policy, name, optim=OptimConfig(lr=0.0, weight_decay=0.1)) as run:
        before = {role: flat(m) for role, m in run.models.items()}
        facts = [take_step(run, step).facts for step in range(3)]
        assert all(torch.equal(before[role], flat(m)) for role, m in run.models.items())
    assert facts[0]["grad_norm"] > 0
    for f in facts:
        assert f["clip_fraction"] == 0.0 and f["sampler_gap_max"] < 1e-4 and abs(f.get("kl_ref", 0.0)) < 1e-9


# bfloat16


@pytest.fixture
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's bfloat16 kernels end the process on virtual machines that promise instructions and do not have them."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


def test_logits_and_log_softmax_are_float32(policy: Path, plain_kernels: None) -> None:
    model = load_policy(policy, torch.bfloat16)
    inputs = packed([np.array([1, 25, 27, 15, 26])])
    with torch.no_grad():
        h, _ = model(inputs)
        logits, rounded = model.head(h), F.linear(h, model.model.embed_tokens.weight)  # the bug: a head in bfloat16
    assert h.dtype == torch.bfloat16 and logits.dtype == torch.float32
    off = (torch.log_softmax(rounded.float(), -1) - torch.log_softmax(logits, -1)).abs().max()
    assert float(off) > 1e-3
    assert abs(float(torch.log_softmax(logits, -1)[0].exp().sum()) - 1) < 1e-5
    assert abs(float(torch.log_softmax(rounded, -1)[0].float().exp().sum()) - 1) > 1e-4


def test_counts_weights_and_log_probabilities_are_not_bfloat16(policy: Path, plain_kernels: None) -> None:
    """bfloat16 cannot count beyond 256: a group of 300 tokens would weigh more than one of 200."""
    with running(policy, samples=24, prompts=4, sampling=Sampling(40, temperature=0.7)) as run:
        run.dtype = torch.bfloat16  # as on a GPU; on a CPU a run refuses it
        run.models["policy"].to(run.dtype)
        batch = batch_of(run, drawn(run))
        now = serve(run.models["policy"], batch, [need("logp", "old")])["logp_old_N"]
    assert int(batch.gather(batch.learn_N, "N", "G", "count").max()) > 300
    assert batch.logp_gen_N.dtype == batch.weight_N.dtype == now.dtype == torch.float32
    assert float(batch.temperature_N[0]) == pytest.approx(0.7, abs=1e-7)
    for mean in ("token", "sequence", "group"):
        assert float(weights(batch, "N", batch.learn_N, mean).sum()) == pytest.approx(1.0, abs=1e-4)
    low = batch.with_columns(weight_N=batch.weight_N.bfloat16())  # the bug: columns in the dtype of the weights
    assert abs(float(weights(low, "N", low.learn_N, "group").float().sum()) - 1.0) > 0.05


def test_temperature_divides_in_float32(policy: Path, plain_kernels: None) -> None:
    """0.7 in bfloat16 is 0.6992: the trainer would be colder than the sampler."""
    e = single_turn(1, "t", "g", np.array([1]), np.array([25, 27]), np.zeros(2), 0, temperature=0.7)
    model = load_policy(policy, torch.bfloat16)
    seen: list[Tensor] = []

    def watched(scores: Tensor, chunk: Any, T: float | None) -> Tensor:
        seen.append(chunk.temperature_C)
        return _log_probabilities(scores, chunk, T)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gruppo.stages.readouts._log_probabilities", watched)
        serve(model, pack([e]), [need("logp", "old")])
    assert seen[0].tolist() == pytest.approx([0.7, 0.7], abs=1e-7)
    assert abs(float(torch.tensor(0.7).bfloat16()) - 0.7) > 5e-4


def test_old_is_computed_as_logp_is(policy: Path) -> None:
    """With several optimiser steps old has its own forward: before the first step the ratio is exactly 1."""
    with running(policy, method("ppo")) as run:
        batch = batch_of(run, drawn(run))
        now = serve(run.models["policy"], batch, [need("logp", when="step")], grad=True)["logp_N"]
        assert float((now.detach() - batch.logp_old_N).abs().max()) < 1e-6
