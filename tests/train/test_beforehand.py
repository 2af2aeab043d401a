"""What cannot be held is refused before anything is drawn. Nothing here takes the memory that it is about."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from train_runs import SMALL, refused

from gruppo.cli import main
from gruppo.cli.overrides import apply
from gruppo.lab.exact.figures import lab
from gruppo.tasks.base import parse_levels
from gruppo.train import beforehand
from gruppo.train.beforehand import machine_memory, refuse_too_many, too_long, usual_rate
from gruppo.train.config import EvalConfig, RunConfig

GIB = 1 << 30


@pytest.fixture
def loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was to be refused before that")

    monkeypatch.setattr("gruppo.train.run.load_policy", loaded)


@pytest.mark.parametrize(
    ("setting", "most"), [("prompts", "1000000"), ("samples", "1000000"), ("task.train_size", "10000000")]
)
def test_a_billion_is_out_of_range(
    setting: str, most: str, loads_nothing: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = refused(capsys, "train", f"{setting}=1000000000")
    assert f"{setting}=1000000000 is out of range" in words and f"<= {most}." in words


def test_a_step_that_cannot_be_held_is_refused_before_anything_is_loaded(
    loads_nothing: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(beforehand, "machine_memory", lambda: 8.0 * GIB)
    for command in ("train", "doctor"):
        words = refused(capsys, command, "prompts=1000000", "samples=8")
        assert "prompts=1000000 x samples=8 are 8,000,000 answers, and a step holds all of its answers at once" in words
        assert "at least 91.6 GiB, and this machine has 8.0 GiB. Use fewer prompts or samples, 699,050 answers" in words
    words = refused(capsys, "train", *SMALL, "eval.prompts=1000000", "eval.samples=1000")
    assert "819 held-out prompts x eval.samples=1000 are" in words and "Use fewer eval.prompts or eval.samples" in words


def test_what_fits_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: Any = SimpleNamespace(held_out=range(100))
    monkeypatch.setattr(beforehand, "machine_memory", lambda: 512 * 8 * beforehand.ANSWER)
    refuse_too_many(RunConfig(prompts=512, samples=8, eval=EvalConfig(prompts=10**9, samples=40)), tasks)
    with pytest.raises(ValueError, match="prompts=513 x samples=8"):
        refuse_too_many(RunConfig(prompts=513, samples=8), tasks)


def test_long_answers_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = SimpleNamespace(config=RunConfig(), sampling=SimpleNamespace(max_tokens=32_768))
    monkeypatch.setattr(beforehand, "machine_memory", lambda: 2.0 * GIB)
    assert "samples=8 answers of up to sampling.max_tokens=32768 tokens would need about 1.0 GiB" not in too_long(run)
    monkeypatch.setattr(beforehand, "machine_memory", lambda: 1.0 * GIB)
    assert "sampling.max_tokens=32768 tokens would need about 1.0 GiB, and this machine has 1.0 GiB" in too_long(run)


def test_the_memory_of_this_machine_is_known() -> None:
    assert GIB / 4 < machine_memory() < math.inf


def test_an_endless_mixture_of_levels_is_no_memory_error() -> None:
    with pytest.raises(ValueError, match="levels 1 to 3, so there is no such problem"):
        parse_levels("lake", "1-100000000000", (1, 2, 3))
    with pytest.raises(ValueError, match="levels 1 to 3, so there is no such problem"):
        parse_levels("lake", "100000000000", (1, 2, 3))
    assert parse_levels("lake", "1-3", (1, 2, 3)) == (1, 2, 3)


@pytest.mark.parametrize("name", ["steps", "warm"])
def test_the_laboratory_has_an_end(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=1000000000: each step is computed and kept"):
        lab([], **{name: 1_000_000_000})


def test_a_billion_seeds_are_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "grpo", "rloo", "--seeds", "1000000000"]) == 2
    assert "--seeds 1000000000 is how many seeds" in capsys.readouterr().err


def test_the_default_rate_is_a_warning_where_a_pretrained_model_is_trained_in_full() -> None:
    def said(numbers: int, **settings: object) -> str:
        config = apply(RunConfig(), ["model=smollm2", *(f"{k.replace('_', '.')}={v}" for k, v in settings.items())])
        policy = torch.nn.Module()
        policy.weight = torch.nn.Parameter(torch.empty(numbers, device="meta"))
        run: Any = SimpleNamespace(config=config, models={"policy": policy})
        return usual_rate(run)

    words = said(134_515_008)
    assert words.startswith("optim.lr=0.0001 is the default, for the built-in policies of less than a million weights")
    assert "all 135 million weights of smollm2 are trained with it" in words and "Use optim.lr=1e-5" in words
    assert said(134_515_008, optim_lr="1e-5") == said(134_515_008, optim_lr="linear(1e-4, 0, steps=9)") == ""
    assert said(870_000) == said(134_515_008, model_lora_rank=16) == ""
