"""The command line, in this process, as a user types it."""

import json
from pathlib import Path
from typing import Any

import pytest

from gruppo.cli import main

SMALL = ("model=tiny-random", "prompts=2", "samples=4", "steps=2", "eval.prompts=2", "save.tensorboard=no")
EXAMPLES = Path(__file__).parents[2] / "examples"


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The sentence of a refusal: exit code 2, nothing on stdout, no traceback, nothing left behind."""
    before = sorted(Path().rglob("*"))
    capsys.readouterr()
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert err.startswith("gruppo: ") and "Traceback" not in err and not out
    left = [p for p in sorted(Path().rglob("*")) if p not in before and p.is_file() and "__pycache__" not in p.parts]
    assert left == []
    return err


def strict_json(text: str) -> Any:
    """JSON as other programs read it: there is no NaN in it."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def trained(name: str, *settings: str) -> Path:
    assert main(["train", *SMALL, f"save.name={name}", *settings]) == 0
    return Path("runs") / name


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
