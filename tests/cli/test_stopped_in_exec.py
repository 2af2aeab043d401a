"""An interrupt within `exec`, as of a dataclass being made, leaves a mark by which `python -m` dies of SIGINT."""

import subprocess
import sys
from pathlib import Path

import pytest

MAIN = """
import gruppo.cli as cli

def arguments(argv):
    exec("import os, signal\\nos.kill(os.getpid(), signal.{signal})\\nfor _ in range(9): pass")

cli.arguments = arguments
raise SystemExit(cli.main())
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_the_code_is_that_of_the_signal(name: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "started.py").write_text(MAIN.format(signal=name))
    ended = subprocess.run([sys.executable, "-m", "started"], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (code, "gruppo: stopped at once.\n")
