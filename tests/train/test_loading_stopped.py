"""A signal while a run loads: there is no step to be finished."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_at_once(number: signal.Signals) -> None:
    Path("slow.py").write_text(
        "import pathlib, time\npathlib.Path('loading').touch()\ntime.sleep(50)\ndef f(task, text): return 1.0\n"
    )
    command = [sys.executable, "-m", "gruppo", "train", "steps=1", "task.reward=./slow.py:f", "save.name=a"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.monotonic() + 60
    while not Path("loading").exists() and time.monotonic() < end:
        time.sleep(0.05)
    begun = time.monotonic()
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert time.monotonic() - begun < 20 and process.returncode == 130, said
    assert "no step has begun" in said and "finishing this step" not in said and "Traceback" not in said
