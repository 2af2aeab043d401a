"""Ranges belong to fields: one law for every occupant and every setting of a run, from what the fields say."""

import dataclasses
import math
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any, get_args

import pytest

import gruppo.stages
from gruppo.engines.base import LEAST_TEMPERATURE
from gruppo.fields import LARGEST_WHOLE, Checked, hints_of, outside
from gruppo.lab.tabular.setup import Setup
from gruppo.methods import all_methods
from gruppo.stages import Sampling, Schedule
from gruppo.stages.cast import Ema, Every
from gruppo.stages.credit import GroupNormalised
from gruppo.stages.penalties import EntropyBonus, ReferenceKL
from gruppo.stages.update import Passes
from gruppo.tasks import TaskConfig
from gruppo.train.config import EvalConfig, RunConfig
from gruppo.train.learner import OptimConfig

# Numbers that may have any finite value. A new field is put here on purpose, or gets bounds.
FREE = {
    "reward_low", "reward_high", "threshold", "top_reward", "success", "mean_low",  # rewards
    "cov_low", "cov_high", "min_adv", "blend_slope", "blend_entropy", "least",  # compared with numbers of either sign
    "kl_limit", "entropy_low", "zero_below", "full_from", "full_to", "zero_above", "target_margin", "clip_low_least",
    "branch_base", "branch_slope", "branch_bar",
    "entropy_coef",  # a negative bonus lowers the entropy
    "shift",
}  # fmt: skip


def descendants(cls: type) -> Iterator[type]:
    for sub in cls.__subclasses__():
        yield sub
        yield from descendants(sub)


def settings() -> Iterator[tuple[type, dataclasses.Field[Any], Any]]:
    """(class, field, type) of every number that can be set."""
    for module in pkgutil.iter_modules(gruppo.stages.__path__):
        import_module(f"gruppo.stages.{module.name}")
    all_methods()
    for cls in sorted(descendants(Checked), key=lambda c: f"{c.__module__}.{c.__name__}"):
        if cls.__module__.startswith("gruppo.") and dataclasses.is_dataclass(cls):
            for f in dataclasses.fields(cls):
                hint = hints_of(cls)[f.name]
                if hint in (int, float) or Schedule in get_args(hint) or f.name == "mean":
                    yield cls, f, hint


ALL = [pytest.param(c, f, h, id=f"{c.__name__}.{f.name}") for c, f, h in settings()]
BOUNDED = [p for p in ALL if {"low", "above", "high", "below"} & p.values[1].metadata.keys()]  # type: ignore[union-attr]


def refusal(cls: type, f: dataclasses.Field[Any], value: Any) -> str:
    """What making one with this value says about the value; "" if it is in range."""
    try:
        cls(**{f.name: value})
    except ValueError as error:
        return str(error) if str(error).startswith(f"{f.name}={value} is ") else ""  # else about a combination
    return ""


def test_there_are_many() -> None:
    assert len(ALL) > 230 and len(BOUNDED) > 200


@pytest.mark.parametrize(("cls", "f", "hint"), BOUNDED)
def test_a_bound_is_taken_and_what_lies_just_outside_is_refused(
    cls: type, f: dataclasses.Field[Any], hint: Any
) -> None:
    for name, sign in (("low", -1), ("above", -1), ("high", 1), ("below", 1)):
        if name not in f.metadata:
            continue
        bound = f.metadata[name]
        near = bound + sign if hint is int else math.nextafter(bound, sign * math.inf)
        inner = bound - sign if hint is int else math.nextafter(bound, -sign * math.inf)
        taken, refused = (bound, near) if name in ("low", "high") else (inner, bound)
        if refused != f.metadata.get("also"):
            assert f"{f.name}={refused} is out of range" in refusal(cls, f, refused)
        assert refusal(cls, f, taken) == ""
    if "also" in f.metadata:
        assert refusal(cls, f, f.metadata["also"]) == ""


@pytest.mark.parametrize(("cls", "f", "hint"), ALL)
def test_what_is_no_finite_number_is_refused(cls: type, f: dataclasses.Field[Any], hint: Any) -> None:
    assert f"{f.name}=nan is not a" in refusal(cls, f, math.nan)
    for value in (math.inf, -math.inf):
        taken = f.metadata.get("infinite", False) and value > 0
        assert (refusal(cls, f, value) == "") is taken
    if not f.metadata.get("infinite"):
        assert refusal(cls, f, LARGEST_WHOLE + 1 if hint is int else 1e300)


@pytest.mark.parametrize(("cls", "f", "hint"), ALL)
def test_a_number_has_bounds_or_is_free_on_purpose(cls: type, f: dataclasses.Field[Any], hint: Any) -> None:
    bounded = bool({"low", "above", "high", "below"} & f.metadata.keys())
    assert bounded != (f.name in FREE), f"{cls.__name__}.{f.name}"


@pytest.mark.parametrize(("cls", "f", "hint"), ALL)
def test_defaults_and_witnesses_are_within(cls: type, f: dataclasses.Field[Any], hint: Any) -> None:
    for value in (f.default, *f.metadata.get("witness", ())):
        assert outside("", value, f, hint) == ""


# worked examples


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: GroupNormalised(eps=-1), "eps=-1 is out of range: use a number >= 0."),
        (lambda: ReferenceKL(kl_coef=-3), "kl_coef=-3 is out of range: use a number >= 0."),
        (lambda: Passes(epochs=0), "epochs=0 is out of range: use a whole number >= 1."),
        (lambda: Passes(epochs=1.5), "epochs=1.5 is not a whole number: use a whole number >= 1."),  # type: ignore[arg-type]
        (lambda: Sampling(temperature=1e-300), "temperature=1e-300 is out of range: use 0, or a number >= 1e-06."),
        (lambda: OptimConfig(beta1=2), "beta1=2 is out of range: use a number >= 0 and < 1."),
        (
            lambda: OptimConfig(lr=1e30),
            "lr=1e+30 is out of range, because AdamW moves every weight by about lr in each step: use a number >= 0 "
            "and <= 1.",
        ),
        (lambda: OptimConfig(weight_decay=math.inf), "weight_decay=inf is not finite: use a number >= 0."),
        (
            lambda: OptimConfig(weight_decay=1e39),
            "weight_decay=1e+39 is out of range, because float32 ends at 3e38: use a number >= 0.",
        ),
        (
            lambda: RunConfig(steps=10**30),
            f"steps={10**30} is out of range, because it has more than 64 bits: use a whole number >= 1.",
        ),
        (lambda: RunConfig(max_failures=1.01), "max_failures=1.01 is out of range: use a number >= 0 and <= 1."),
        (lambda: Ema(tau=1.5), "tau=1.5 is out of range: use a number >= 0 and <= 1."),
        (lambda: Every(steps=0), "steps=0 is out of range: use a whole number >= 1."),
    ],
)
def test_sentences(make: Any, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value) == said


def test_a_whole_number_that_is_written_as_a_float_is_one() -> None:
    for made in (Passes(epochs=2.0).epochs, RunConfig(steps=1e3).steps):  # type: ignore[arg-type]
        assert type(made) is int and made in (2, 1000)


def test_the_values_of_a_schedule_are_within_too() -> None:
    for text in ("linear(0.1, -0.1, steps=9)", "cosine(-1, 0, 5)", "warmup(-0.5, 3)", "steps({0: 0.1, 5: -2.0})"):
        with pytest.raises(ValueError, match=r"kl_coef=.* reaches -[\d.]+, which is out of range: use a number >= 0"):
            ReferenceKL(kl_coef=Schedule(text))
        assert EntropyBonus(entropy_coef=Schedule(text))
    with pytest.raises(ValueError, match="reaches -1, which"):
        ReferenceKL(kl_coef=Schedule("switch(at=3, first=0.1, then=-1)"))
    with pytest.raises(ValueError, match="reaches inf, which is not finite"):
        EntropyBonus(entropy_coef=Schedule("memory('x', 1e999)"))
    assert ReferenceKL(kl_coef=Schedule("memory('x', 0.5)"))  # what memory will hold is not known
    assert Schedule("linear(0.1, 0.0, steps=100)").extremes() == (0.1, 0.0)


def test_infinity_where_it_means_something() -> None:
    assert OptimConfig(clip_norm=math.inf).clip_norm == math.inf


def test_the_smallest_temperature_is_that_of_the_engine() -> None:
    for cls in (Sampling, EvalConfig):
        [f] = [f for f in dataclasses.fields(cls) if f.name == "temperature"]
        assert (f.metadata["low"], f.metadata["also"]) == (LEAST_TEMPERATURE, 0)


def clips() -> list[Any]:
    return [p for p in ALL if p.values[1].name in ("clip_low", "clip_dual")]  # type: ignore[union-attr]


@pytest.mark.parametrize(("cls", "f", "hint"), clips())
def test_a_clip_is_no_nonsense(cls: type, f: dataclasses.Field[Any], hint: Any) -> None:
    """The lower bound is 1 − clip_low, and no ratio is below 0. A dual clip up to 1 would stop every wrong answer."""
    wrong = (2, 1.5, 1e9) if f.name == "clip_low" else (0.5, 1, -1)
    assert all(refusal(cls, f, value) for value in wrong)
    assert refusal(cls, f, 1 if f.name == "clip_low" else 0) == ""


def test_all_of_them_are_looked_at() -> None:
    assert len(clips()) >= 12


@pytest.mark.parametrize("cls", [RunConfig, TaskConfig, Setup])
def test_seeds_are_counted_from_0(cls: type) -> None:
    with pytest.raises(ValueError, match="seed=-1 is out of range"):
        cls(seed=-1)
