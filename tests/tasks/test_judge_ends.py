"""The judge: how it starts and ends, and what it does under load."""

import asyncio
import os
import subprocess
import sys
import threading
import time

import pytest
from judging import RIGHT, TASK, WRONG, alive, score, until

from gruppo.tasks import Task, load_task
from gruppo.tasks.judge import Judge, Verdict

# ---- starting and ending -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wrong_names", r"\(task, texts\).*Write \(task, text\) for one answer"),
        ("one_argument", r"\(task\): it cannot be called"),
        ("three", r"\(task, text, more\): it cannot be called"),
        ("number", "int and cannot be called"),
        ("onne", "Did you mean 'one'"),
    ],
)
def test_scorers_that_cannot_work_are_refused_at_the_start(file: str, name: str, said: str) -> None:
    judge = Judge(f"{file}:{name}")
    with pytest.raises(ValueError, match="(?s)" + said):
        judge.start()
    with pytest.raises(ValueError, match="(?s)" + said):
        score(judge, "2")
    assert judge.restarts == 0


def test_import_paths_are_checked_at_once(tmp_path) -> None:
    with pytest.raises(ValueError, match="is no import path"):
        Judge("score")
    with pytest.raises(ValueError, match="seconds=0"):
        Judge("m:f", seconds=0)
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\ndef f(task, text): return 1\n")
    with pytest.raises(ValueError, match=r"not loaded within 0\.5 s"):
        Judge(f"{tmp_path}/slow.py:f", start_seconds=0.5).start()
    (tmp_path / "dies.py").write_text("import os\nos._exit(4)\n")
    with pytest.raises(ValueError, match="exit code 4"):
        Judge(f"{tmp_path}/dies.py:f").start()


def test_other_callables(file: str) -> None:
    for name, value in (("optional", 2.0), ("instance", 0.5)):
        with Judge(f"{file}:{name}") as judge:
            assert score(judge, "x") == [Verdict({"task": value})]


def test_a_scorer_that_cannot_be_loaded_again_is_an_error_and_not_the_end(tmp_path) -> None:
    path = tmp_path / "once.py"
    path.write_text("import os\ndef f(task, text):\n    return 1.0 if text == 'x' else os._exit(1)\n")
    with Judge(f"{path}:f") as judge:
        judge.start()
        path.write_text("raise OSError('disk is gone')\n")
        verdicts = score(judge, "x", "die", "x")
        assert [v.status for v in verdicts] == ["ok", "env_error", "env_error"]
        assert "disk is gone" in verdicts[2].error


def test_tasks_that_cannot_be_sent(judge: Judge) -> None:
    """Only they fail, wherever they are among the others."""
    odd = Task("t", "", "", 1, "own", meta={"f": lambda: 1})
    local = Task("t", "", "", 1, "own", meta={"f": OnlyHere()})
    for _ in range(2):
        for bad in (odd, local):
            items = [(TASK, "2")] * 9 + [(bad, "2")] + [(TASK, "3")] * 3
            verdicts = asyncio.run(judge.score(items))
            assert [v.status for v in verdicts] == ["ok"] * 9 + ["env_error"] + ["ok"] * 3
            assert "plain values in Task.meta" in verdicts[9].error and verdicts[12] == WRONG
    assert score(judge, "2") == [RIGHT]


class OnlyHere:
    """Pickles by a name that only this process knows."""


OnlyHere.__module__ = "a_module_of_this_test"
sys.modules["a_module_of_this_test"] = type(sys)("a_module_of_this_test")
sys.modules["a_module_of_this_test"].OnlyHere = OnlyHere


def test_no_process_stays(file: str) -> None:
    judge = Judge(f"{file}:one", seconds=5)
    (pid,) = score(judge, "pid")
    judge.close()
    judge.close()
    with pytest.raises(ProcessLookupError):  # not even a zombie
        os.kill(int(pid.components["task"]), 0)
    (pid,) = score(judge, "pid")  # a closed judge starts again
    del judge
    assert until(lambda: not alive(int(pid.components["task"])))


@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_worker_ends_with_its_parent_even_while_it_hangs(file: str, end: str) -> None:
    program = f"""
import asyncio, os, threading, time
from gruppo.tasks import Task
from gruppo.tasks.judge import Judge
judge = Judge("{file}:one", seconds=60)
task = Task("t", "", "2", 1, "own")
print(int(asyncio.run(judge.score([(task, "pid")]))[0].components["task"]), flush=True)
threading.Thread(target=lambda: asyncio.run(judge.score([(task, "spin")])), daemon=True).start()
time.sleep(0.3)
{end}
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=250)
    pid = int(done.stdout)
    assert until(lambda: not alive(pid)), done.stderr


def test_worker_is_light() -> None:
    program = (
        "import sys; import gruppo.tasks.worker, gruppo.tasks.countdown, gruppo.tasks.sorting; "
        "print([m for m in ('torch', 'numpy', 'gruppo.data') if m in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"


# ---- load ----------------------------------------------------------------------------------------


def test_big_batch(judge: Judge) -> None:
    texts = ["2", "3"] * 4000
    assert score(judge, *texts) == [RIGHT, WRONG] * 4000


def test_long_answers(judge: Judge) -> None:
    assert score(judge, "x" * 3_000_000, "2") == [WRONG, RIGHT]


def test_from_threads_and_two_judges_at_once(file: str) -> None:
    found: dict[int, list[Verdict]] = {}
    with Judge(f"{file}:one", seconds=5) as one, Judge(f"{file}:batch", seconds=5) as two:

        def work(n: int) -> None:
            judge, texts = (one, ["2", "3"]) if n % 2 else (two, ["=1.0", "=0.0"])
            found[n] = score(judge, *texts * 50)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert found == {n: [RIGHT, WRONG] * 50 for n in range(6)}


@pytest.mark.slow
def test_512_cheap_answers_in_20_ms() -> None:
    tasks = load_task("addition")
    items = [(t, t.answer) for t in tasks.train[:512]]
    with Judge(tasks.scorer) as judge:
        times = [1.0]
        while min(times) >= 0.020 and len(times) < 100:  # on a busy machine a moment of quiet may take a while
            begun = time.perf_counter()
            assert all(v == RIGHT for v in asyncio.run(judge.score(items)))
            times.append(time.perf_counter() - begun)
    assert min(times) < 0.020
