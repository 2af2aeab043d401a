"""benchmarks/RESULTS.md is made, not written: no number in it that no benchmark measured."""

import importlib.util
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "benchmarks"


def report() -> Any:
    spec = importlib.util.spec_from_file_location("benchmarks_report", FOLDER / "report.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_from_the_results() -> None:
    results = json.loads((FOLDER / "results.json").read_text())
    assert (FOLDER / "RESULTS.md").read_text() == report().page(results)


def test_a_missed_goal_is_said() -> None:
    """Worked by hand: 2.0 / 1.5 s is 1.33 x, below the 2 x asked for; 300 MiB are more than 200."""
    side = {"seconds": 1.5, "seconds_range": [1.5, 1.5], "tokens_per_second": 10, "peak_mib": 300.0, "parts": {}}
    found = {
        "model": "tiny",
        "parameters": 1_800_000,
        "prompts": 2,
        "prompt_tokens": 7,
        "samples": 8,
        "new_tokens": 8,
        "threads": 2,
        "turns": 1,
        "steps_a_turn": 1,
        "load": [9.0, 9.0],
        "ratio": 2.0 / 1.5,
        "ratio_range": [2.0 / 1.5, 2.0 / 1.5],
        "sides": {"gruppo": side, "trl": {**side, "seconds": 2.0, "peak_mib": 200.0}},
    }
    text = report().describe(found)
    assert "1.33 x as fast as trl" in text and "1.50 x its memory" in text and "loaded machine" in text
    assert "2 x the speed, **missed**; no more memory, **missed**" in text
