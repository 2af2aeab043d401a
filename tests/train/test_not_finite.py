"""Training that stops being finite ends with a sentence, and what is saved is finite."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from train_runs import train

from gruppo.engines import NativeEngine, Request, complete
from gruppo.engines.base import NotFinite
from gruppo.policies import load_policy
from gruppo.train.learner import LARGEST_NORM, Learner

FEW = ("model=tiny", "steps=5", "eval.every=0", "eval.prompts=2")


def saved() -> list[Path]:
    return sorted(Path("runs/a/checkpoints").glob("step-*"))


def all_finite(folder: Path) -> bool:
    tensors = [t for file in folder.rglob("*.safetensors") for t in load_file(file).values()]
    assert tensors
    return all(bool(torch.isfinite(t).all()) for t in tensors if t.is_floating_point())


def poisoned(monkeypatch: pytest.MonkeyPatch, at: int, value: float) -> None:
    """The optimiser step number `at` writes a value into a weight."""
    step, taken = Learner.apply, []

    def apply(self: Learner, role: str, lr: float | None = None) -> None:
        step(self, role, lr)
        taken.append(role)
        if len(taken) == at:
            with torch.no_grad():
                next(iter(self.models[role].parameters())).view(-1)[3] = value

    monkeypatch.setattr(Learner, "apply", apply)


# Weights are looked at in one place, whatever is wrong with them, and before any checkpoint: half of the pairs here.
BROKEN = [
    pytest.param(value, every, marks=() if (value != value) == (every == 1) else pytest.mark.slow)
    for value in (float("nan"), float("inf"), 2 * LARGEST_NORM)
    for every in (1, 2)
]


@pytest.mark.parametrize(("value", "every"), BROKEN)
def test_broken_weights_end_the_run_at_their_step(
    value: float, every: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    poisoned(monkeypatch, 4, value)
    assert train("a", *FEW, f"save.checkpoint_every={every}") == 2
    said = capsys.readouterr().err
    assert "gruppo: step 4: the weights of policy have left the range of numbers" in said and "Traceback" not in said
    for words in ("optim.lr (it was 0.0001 here)", "optim.clip_norm (1)", f"Step {3 if every == 1 else 2} is saved"):
        assert words in said, said
    assert saved()[-1].name == ("step-000003" if every == 1 else "step-000002")
    assert all(all_finite(folder) for folder in saved())


def test_a_weight_that_is_merely_large_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned(monkeypatch, 4, 1e3)
    assert train("a", *FEW) == 0


def test_by_settings_that_are_legal(capsys: pytest.CaptureFixture[str]) -> None:
    """The first step is lost: nothing is saved, and the words say so."""
    assert train("a", *FEW, "optim.weight_decay=1e30", "save.checkpoint_every=1") == 2
    said = capsys.readouterr().err
    assert "step 1: the weights of policy" in said and "optim.weight_decay (1e+30)" in said
    assert "No step is saved yet" in said and not saved()


def test_logits_that_overflow_end_the_run_and_are_not_saved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights may be finite and their logits not: then the next sampling notices, and the weights are not saved."""
    monkeypatch.setattr(Learner, "refuse_broken", lambda _: None)
    poisoned(monkeypatch, 2, float("nan"))
    assert train("a", *FEW, "save.checkpoint_every=0") == 2
    said = capsys.readouterr().err
    assert "gruppo: step 3: the logits of " in said and "are not finite, so no token can be drawn" in said
    assert "optim.lr" in said and "No step is saved yet" in said and not saved()


def test_a_gradient_that_is_not_finite_is_skipped_and_three_in_a_row_end_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def sick(wrong: set[int]) -> Any:
        grad, seen = Learner.grad, []

        def changed(self: Learner, role: str, *args: Any, **options: Any) -> None:
            grad(self, role, *args, **options)
            if options.get("report", True):  # of training, not of the checks of step zero
                seen.append(role)
                if len(seen) in wrong:
                    self._params(role)[0].grad.fill_(float("nan"))

        return changed

    plain = Learner.grad
    monkeypatch.setattr(Learner, "grad", sick({1, 2, 4, 5}))
    assert train("a", *FEW, "save.checkpoint_every=1") == 0
    assert [s.name for s in saved()] == ["step-000003", "step-000005"] and all(map(all_finite, saved()))
    monkeypatch.setattr(Learner, "grad", plain)
    monkeypatch.setattr(Learner, "grad", sick({2, 3, 4}))
    assert train("b", *FEW, "save.checkpoint_every=1") == 2
    said = capsys.readouterr().err
    assert "gruppo: step 4: gradient norm of policy is nan for the third step in a row" in said
    assert "optim.lr, optim.clip_norm" in said and "Step 1 is saved" in said


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("how", [{}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5}])
def test_the_engine_says_that_logits_are_not_finite(value: float, how: dict[str, Any]) -> None:
    policy = load_policy("tiny-random")
    with torch.no_grad():
        for p in policy.parameters():
            p.fill_(value)
    requests = [Request(np.array([1, 5]), 4, key=i, **how) for i in range(3)]
    with pytest.raises(NotFinite, match=r"logits of 3 of 3 answers are not finite.*Lower optim\.lr"):
        asyncio.run(complete(NativeEngine({"policy": policy}), requests))
