"""Runs model-written Python, isolated, or not at all: `await run(code)`. See docs/sandbox.md."""

from gruppo.sandbox.host import ISOLATIONS, NoIsolation, Sandbox, run, shared
from gruppo.sandbox.ran import Ran, Tests

__all__ = ["ISOLATIONS", "NoIsolation", "Ran", "Sandbox", "Tests", "run", "shared"]
