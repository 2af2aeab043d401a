"""examples/first_hour.ipynb runs from top to bottom, in a running event loop."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_hour.ipynb"
RUNNER = Path(__file__).with_name("run_notebook.py")
SRC = str(Path(__file__).parents[2] / "src")


def test_it_is_committed_without_outputs() -> None:
    table = json.loads(NOTEBOOK.read_text())
    for cell in table["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            ast.parse("".join(cell["source"]))


# Fewer prompts than a reader gets: the slow test below runs the notebook as it is.
SMALLER = {
    r"prompts=32, eval={\"prompts\": 100,": r"prompts=4, eval={\"prompts\": 8,",
    "prompts=200)": "prompts=8)",
}


def test_it_runs() -> None:
    pytest.importorskip("IPython")
    notebook = NOTEBOOK.read_text()
    for large, small in SMALLER.items():
        assert notebook.count(large) == 1
        notebook = notebook.replace(large, small)
    Path("smaller.ipynb").write_text(notebook)
    env = {**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1", "IPYTHONDIR": str(Path("ipython").resolve())}
    done = subprocess.run([sys.executable, str(RUNNER), "smaller.ipynb"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert 'shown ["image/png", "text/plain"]' in done.stdout  # the curves, inline
    assert "median on addition, 8 steps" in done.stdout  # resumed to its end
    [own] = Path("runs/from_python").glob("near_*.py")
    assert "BONUS = 0.2" in own.read_text() and "def near(task, text):" in own.read_text()


@pytest.mark.slow
def test_it_runs_in_a_kernel() -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=".")
    shown = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs if "data" in o]
    assert any("image/png" in o["data"] for o in shown)
