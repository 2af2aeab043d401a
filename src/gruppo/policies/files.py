"""JSON files of a model folder, and the words of foreign exceptions."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """The content of a file; empty if there is none."""
    if not path.is_file():
        return {}
    again = "Download it again, or copy it from the original model."
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be read as JSON ({first_line(error)}), so nothing is loaded. {again}"
        ) from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, and it must be an object, {{…}}. {again}")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def first_line(error: Exception) -> str:
    """The message of a foreign exception, short enough to be quoted: its first line, and what a colon announces."""
    said = ""
    for line in str(error).strip().splitlines():
        said = f"{said} {line.strip()}".strip()
        if not said.endswith(":"):
            break
    return said.rstrip(".:") or type(error).__name__
