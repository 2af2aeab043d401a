"""The page about Python runs, in a running event loop; what it says about settings and functions is so."""

import asyncio
import inspect
import linecache
import re
from pathlib import Path

import pytest
from doc_blocks import ROOT, blocks

import gruppo
from gruppo.train.callbacks import Callback
from gruppo.train.loggers import LOGGERS, SAMPLES

PAGE = (ROOT / "docs" / "python.md").read_text()


def test_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}

    async def notebook() -> None:
        for number, code in enumerate(blocks("python.md")):
            cell = f"<python.md, block {number + 1}>"
            linecache.cache[cell] = (len(code), None, code.splitlines(keepends=True), cell)  # as a notebook does
            exec(compile(code, cell, "exec"), names)

    asyncio.run(notebook())
    written = {p.name.rpartition("_")[0] for p in Path("runs/from_python").iterdir() if p.name != "__pycache__"}
    assert written == {"short", "halved", "rows"}


def test_every_function_and_every_moment_of_a_callback_is_named() -> None:
    for name in ("train", "steps", "resume", "load", "evaluate", "compare", "configured", "method"):
        assert f"| `gruppo.{name}(" in PAGE and callable(getattr(gruppo, name))
    for name, _ in inspect.getmembers(Callback, inspect.isfunction):
        assert re.search(rf"`{name}\b|def {name}\(", PAGE), name


def test_the_loggers_are_those_that_there_are() -> None:
    assert re.findall(r"^\| `(wandb|mlflow|trackio)` \|", PAGE, re.M) == list(LOGGERS)
    assert f"`save.log={','.join(LOGGERS)}`" in PAGE and SAMPLES == 8 and "a table of eight held-out" in PAGE


def test_the_readme_shows_what_exists() -> None:
    [code] = re.findall(r"^```python\nimport gruppo\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    compile(code, "README.md", "exec")
    for name in re.findall(r"gruppo\.(\w+)", code):
        assert name in gruppo._WHERE  # type: ignore[attr-defined]
    for name in re.findall(r"run\.(\w+)", code):
        assert hasattr(gruppo.SavedRun, name)
