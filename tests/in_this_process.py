"""Runs of a comparison in this process: a start of Python takes longer than a small run."""

import pytest

from gruppo.cli import main
from gruppo.lab.compare import processes
from gruppo.lab.compare.processes import Planned


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Returns what was started."""
    started: list[list[str]] = []

    class Done:
        def __init__(self, words: list[str]) -> None:
            self.returncode = main(words)

        def poll(self) -> int:
            return self.returncode

    def start(run: Planned, jobs: int, lock: tuple[int, ...]) -> Done:
        run.log.parent.mkdir(parents=True, exist_ok=True)
        run.log.write_text("gruppo: it broke. Fix it.\n")
        started.append(run.words())
        return Done(run.words())

    monkeypatch.setattr(processes, "_started", start)
    monkeypatch.setattr(processes, "_LOOK", 0.0)
    return started
