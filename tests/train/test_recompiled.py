"""A run with changing lengths compiles its kernels in the first steps, and none later."""

from typing import Any

import pytest

import gruppo


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["grpo", "dapo"])
def test_nothing_is_compiled_after_step_3(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton").knobs
    compiled: list[Any] = []
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", lambda **given: compiled.append(given) or False)
    small = {"prompts": 16, "samples": 8, "steps": 10, "eval": {"prompts": 8}, "model": {"device": "cuda"}}
    counts = [len(compiled) for _ in gruppo.steps(method, task="addition", quiet=True, **small)]
    assert counts[2] == counts[-1], f"{counts} after each step: {[str(c.get('fn')) for c in compiled]}"
