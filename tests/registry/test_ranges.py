"""The range of every field of an occupant is locked, in ranges.toml: a law that reads a range cannot miss it.

If a change is meant: `python tests/registry/test_ranges.py` writes the file.
"""

import dataclasses
import pkgutil
import tomllib
from importlib import import_module
from pathlib import Path

import tomli_w

import gruppo.stages
from gruppo.fields import BOUNDS, Checked
from gruppo.methods import all_methods

STORED = Path(__file__).with_name("ranges.toml")
LOCKED = (*BOUNDS, "also", "infinite", "neutral")
HEAD = "# The range of every field of an occupant. Written by tests/registry/test_ranges.py; do not edit.\n\n"


def ranges() -> dict[str, dict[str, str]]:
    """{class: {field: "low=0 high=1"}} of the stages and methods."""
    for module in pkgutil.iter_modules(gruppo.stages.__path__):
        import_module(f"gruppo.stages.{module.name}")
    all_methods()
    todo, out = [Checked], dict[str, dict[str, str]]()
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        folder, _, file = cls.__module__.removeprefix("gruppo.").partition(".")
        if folder in ("stages", "methods") and dataclasses.is_dataclass(cls):
            said = {
                f.name: " ".join(f"{k}={f.metadata[k]}" for k in LOCKED if k in f.metadata)
                for f in dataclasses.fields(cls)
            }
            out[f"{folder}.{file}.{cls.__name__}"] = {k: v for k, v in said.items() if v}
    return {k: v for k, v in sorted(out.items()) if v}


def test_ranges_are_the_ones_that_are_stored() -> None:
    stored, found = tomllib.loads(STORED.read_text(encoding="utf-8")), ranges()
    changed = [k for k in sorted(stored.keys() | found.keys()) if stored.get(k) != found.get(k)]
    assert changed == [], "if it is meant, run python tests/registry/test_ranges.py"


if __name__ == "__main__":
    STORED.write_text(HEAD + tomli_w.dumps(ranges()), encoding="utf-8")
