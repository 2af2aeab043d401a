"""The command line, in this process, as a user types it."""

import atexit
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
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
    assert err.startswith("gruppo: ") and "Traceback" not in err and not out, err + out
    left = [p for p in sorted(Path().rglob("*")) if p not in before and p.is_file() and "__pycache__" not in p.parts]
    assert left == []
    return err


def strict_json(text: str) -> Any:
    """JSON as other programs read it: there is no NaN in it."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def trained(name: str, *settings: str) -> Path:
    assert main(["train", *SMALL, f"save.name={name}", *settings]) == 0
    return Path("runs") / name


_KEPT: dict[tuple[str, ...], Path] = {}


def kept(make: Callable[..., Path], kind: str, name: str, *settings: str) -> Path:
    """The run that `make(name, *settings)` makes, a copy for each test: it is trained once, in a folder of its own.

    Not for a run that needs a file of the test's folder.
    """
    key = (kind, name, *settings)
    if key not in _KEPT:
        before, folder = Path.cwd(), Path(mkdtemp(prefix="gruppo-kept-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.chdir(folder)
        try:
            _KEPT[key] = folder / make(name, *settings)
        finally:
            os.chdir(before)
    run = Path("runs") / name
    shutil.copytree(_KEPT[key], run)
    return run


def finished(name: str, *settings: str) -> Path:
    """`trained`, for a test that begins with a run."""
    return kept(trained, "finished", name, *settings)


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
