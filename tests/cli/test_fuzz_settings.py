"""scripts/fuzz_settings.py: a tenth of it, and that it would find an offender."""

import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz_settings.py"


def script() -> Any:
    spec = importlib.util.spec_from_file_location("fuzz_settings", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzz = script()
EVERY = list(fuzz.cases())


def test_a_tenth_of_all_settings_and_wrong_values_is_taken_or_refused_with_a_sentence() -> None:
    counts, offenders = fuzz.fuzz(random.Random(0).sample(EVERY, len(EVERY) // 10))
    assert not offenders, "\n".join(offenders[:20])
    assert counts.total() > 5000


@pytest.mark.slow
def test_all_of_them() -> None:
    _, offenders = fuzz.fuzz(EVERY)
    assert not offenders, "\n".join(offenders[:20])


def test_every_kind_of_wrong_value_is_refused_somewhere_and_every_method_is_there() -> None:
    """Numbers that are no numbers are taken by fields of text alone."""
    assert len(fuzz.WRONG) >= 10 and len({c.method for c in EVERY}) == len(fuzz.all_methods())
    numbers = [c for c in EVERY if c.path in ("method.update.epochs", "optim.beta1", "steps") and c.method == "grpo"]
    refused = {(c.path, c.kind) for c in numbers if fuzz.outcome(c) == "refused"}
    for path in ("method.update.epochs", "optim.beta1", "steps"):
        assert {(path, k) for k in ("text", "empty", "nan", "inf", "-1", "1e300", "list", "truth value")} <= refused


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (lambda *_, **__: {}["x"], "KeyError: 'x'"),
        (lambda *_, **__: TypeAdapter(int).validate_python("many"), "words of a library: "),
        (lambda *_, **__: float("many"), "no sentence: "),
    ],
)
def test_an_offender_is_found(fault: Any, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = fuzz.Case("grpo", "steps", "text", "many")
    assert fuzz.outcome(case) == "refused"
    monkeypatch.setattr(fuzz, "check", fault)
    taken = fuzz.Case("grpo", "steps", "0", "7")
    assert fuzz.outcome(taken).startswith(found)
    counts, offenders = fuzz.fuzz([taken])
    assert list(counts) == ["0              OFFENDER"] and len(offenders) == 1


def test_a_setting_that_takes_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "SECONDS", 0.0)
    assert fuzz.outcome(fuzz.Case("grpo", "steps", "0", "7")).endswith(" s")


def test_one_step_at_an_edge() -> None:
    """What is taken trains a step with finite numbers, or ends with a sentence."""
    edges = list(fuzz.edges())
    assert {c.method for c in edges} == {"grpo", "ppo", "dapo"} and len(edges) > 100
    assert fuzz.one_step(fuzz.Case("grpo", "method.credit.eps", "edge", "0")) == "trained"
    assert fuzz.one_step(fuzz.Case("grpo", "optim.weight_decay", "edge", "1e30")) == "ended"
