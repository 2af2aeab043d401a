"""The tools of docs/tools.md train."""

import asyncio
import json
from pathlib import Path

import pytest
from doc_blocks import blocks

from gruppo.cli import main
from gruppo.tools import load_tools


def test_the_tools_of_the_page_are_called_and_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [text] = blocks("tools.md", title="mine.py")
    Path("mine.py").write_text(text)
    box = load_tools("./mine.py:TOOLS,calculator")
    calls = [("price", {"name": "apple"}), ("total", '{"price": 3, "pieces": 2}'), ("price", {"name": "car"})]
    said = asyncio.run(box.calls(calls))
    assert [r.text for r in said[:2]] == ["3", "6"] and said[2].status == "error" and not said[2].ours
    rows = [{"question": f"{n} apple", "answer": str(3 * n)} for n in range(1, 11)]
    Path("questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    small = (
        "prompts=2",
        "samples=2",
        "steps=1",
        "eval.every=0",
        "eval.prompts=1",
        "threads=1",
        "sampling.max_tokens=6",
    )
    more = ("save.tensorboard=no", "accept=dead_groups,mask", "save.name=a")
    assert main(["train", "task=./questions.jsonl", "task.tools=./mine.py:TOOLS,calculator", *small, *more]) == 0
    assert json.loads(Path("runs/a/metrics.jsonl").read_text().splitlines()[-1])["turns"] >= 1
