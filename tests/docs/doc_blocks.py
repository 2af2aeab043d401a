"""Python blocks of the documentation, and the script that generates its other parts."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def blocks(page: str, title: str = "") -> list[str]:
    """The fenced Python blocks of a page, in order; with a title, only those that carry it."""
    head = f'python title="{title}"' if title else "python"
    return re.findall(rf"^```{re.escape(head)}\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)


def run(page: str) -> dict[str, Any]:
    """Runs the untitled blocks of a page in one namespace, as a reader would; returns it."""
    names: dict[str, Any] = {"__name__": "docs"}
    for number, block in enumerate(blocks(page)):
        exec(compile(block, f"{page}, block {number + 1}", "exec"), names)
    return names


def make_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts" / "make_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
