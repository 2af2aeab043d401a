"""What a program may do, how its end is named, and what is refused. That the host is as it was: test_host.py."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gruppo.cli import main
from gruppo.sandbox import NoIsolation, Ran, Sandbox, Tests
from gruppo.sandbox import doctor as doctor_module
from gruppo.sandbox import host as host_module
from gruppo.sandbox.attacks import ATTACKS, Attack


def ran(sandbox: Sandbox, code: str, **limits: Any) -> Ran:
    return asyncio.run(sandbox.run(code, **limits))


# ---- programs ------------------------------------------------------------------------------------


def test_output_value_and_input(sandbox: Sandbox) -> None:
    found = ran(sandbox, "import sys\nprint(input(), open('d/a.txt').read())\nprint('err', file=sys.stderr)\n6 * 7",
                stdin="one\ntwo", files={"d/a.txt": "content"})  # fmt: skip
    assert (found.status, found.stdout, found.stderr, found.value) == ("ok", "one content\n", "err\n", "42")
    assert 0 <= found.seconds < 5


@pytest.mark.parametrize(
    "code, status",
    [
        ("raise SystemExit", "ok"),
        ("import sys; sys.exit(0)", "ok"),
        ("import sys; sys.exit(3)", "error"),
        ("import sys; sys.exit('no')", "error"),
        ("import os; os._exit(0)", "ok"),
        ("1 / 0", "error"),
        ("def f(:", "error"),
        ("import ctypes; ctypes.string_at(0)", "killed"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed"),
        ("x = [0] * (1 << 40)", "memory"),
        ("def f(): f()\nf()", "error"),
        ("import time; time.sleep(60)", "timeout"),
        ("print('x' * 200_000)", "output"),
        ("import sys; sys.stdout.close()", "error"),
        ("import atexit; atexit.register(print, 'late')", "ok"),
    ],
)
def test_how_a_program_ends_has_a_name(sandbox: Sandbox, code: str, status: str) -> None:
    assert ran(sandbox, code, seconds=1.0 if status == "timeout" else 10.0).status == status


def test_a_traceback_shows_the_program_and_nothing_of_ours(sandbox: Sandbox) -> None:
    said = ran(sandbox, "def f(x):\n    return 1 / x\nf(0)").stderr
    assert "line 2, in f\n    return 1 / x" in said and "ZeroDivisionError" in said and "inside" not in said


def test_ordinary_programs_work(sandbox: Sandbox) -> None:
    """Modules that are loaded only now, threads, asyncio, files, dataclasses, temporary files, a database."""
    code = """
import asyncio, dataclasses, pathlib, pickle, shelve, sqlite3, tempfile, threading, wave, xml.etree.ElementTree, zipfile
from concurrent.futures import ThreadPoolExecutor

@dataclasses.dataclass
class Point:
    x: int

async def later(x):
    await asyncio.sleep(0.001)
    return x

async def main():
    return await asyncio.gather(*map(later, range(3)))

assert asyncio.run(main()) == [0, 1, 2]
assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
with ThreadPoolExecutor(4) as pool:
    assert list(pool.map(abs, [-1, -2])) == [1, 2]
pathlib.Path("a").mkdir(); pathlib.Path("a/b").write_text("x"); pathlib.Path("a/b").rename("c")
assert pathlib.Path("c").read_text() == "x"
sqlite3.connect("base.db").execute("create table t (x)")
if __name__ == "__main__":
    print("all is well")
"""
    found = ran(sandbox, code)
    assert (found.status, found.stdout) == ("ok", "all is well\n"), found


def test_sets_have_the_same_order_in_every_sandbox(sandbox: Sandbox) -> None:
    code = "print(list({'a', 'b', 'c', 'd', 'e', 'f', 'g'}))"
    with Sandbox(sandbox.wanted) as other:
        assert ran(sandbox, code).stdout == ran(other, code).stdout


def test_several_processes_where_they_can_be_counted() -> None:
    code = """
import os
pids = []
for n in range(3):
    pid = os.fork()
    if pid == 0:
        os._exit(n)
    pids.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids])
"""
    for isolation in ("namespaces", "landlock"):
        try:
            box = Sandbox(isolation)
            box.start()
        except NoIsolation:
            continue
        with box:
            if isolation == "namespaces":
                assert ran(box, code, processes=4).stdout == "[0, 1, 2]\n"
            else:
                with pytest.raises(ValueError, match=r"processes=4.*one process.*processes=1"):
                    ran(box, code, processes=4)


# ---- tests of a program --------------------------------------------------------------------------

ADD = "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize(
    "code, status",
    [
        (ADD, "ok"),
        (ADD.replace("+", "-"), "error"),
        ("", "error"),
        ("import os\nos._exit(0)", "error"),
        (ADD + "raise SystemExit(0)", "error"),
        ("def add(a, b):\n    raise SystemExit(0)", "error"),
        ("def add(a, b):\n    import os\n    os._exit(0)", "error"),
        # An object that equals everything, and a class that claims to be a number.
        ("class Any:\n    __eq__ = lambda s, o: True\ndef add(a, b):\n    return Any()", "error"),
        ("class One(int):\n    __eq__ = lambda s, o: True\ndef add(a, b):\n    return One()", "error"),
        # Built-ins of its own process are not those of the tests.
        ("import builtins\nbuiltins.AssertionError = Warning\ndef add(a, b):\n    return 0", "error"),
        # It writes to every descriptor it has, and looks for the tests in its memory.
        (
            "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'exit 0\\n' * 9)\n"
            "    except OSError:\n        pass\ndef add(a, b):\n    return 0",
            "error",
        ),
        ("import gc\ndef add(a, b):\n    return max(o for o in gc.get_objects() if type(o) is int)", "error"),
    ],
)
def test_only_right_results_pass_tests(sandbox: Sandbox, code: str, status: str) -> None:
    tests = Tests("assert add(2, 3) == 5\nassert add(10, -4) == 6")
    assert ran(sandbox, code, tests=tests).status == status


def test_a_program_cannot_cut_a_loop_of_the_tests_short(sandbox: Sandbox) -> None:
    """A StopIteration ends `map`, and `all` of nothing is true."""
    code = "def right(x):\n    raise StopIteration\n"
    assert ran(sandbox, code, tests=Tests("assert all(map(right, [1, 2]))")).status == "error"
    assert ran(sandbox, "def right(x): return True", tests=Tests("assert all(map(right, [1, 2]))")).ok


def test_values_and_exceptions_pass_to_the_tests(sandbox: Sandbox) -> None:
    code = """
from collections import Counter, namedtuple
def same(x): return x
def count(text): return Counter(text)
def fail(x): raise KeyError(x)
"""
    tests = """
import math
for value in (None, True, 1, 1.5, 2 + 3j, "é", b"x", [1, [2]], (1, 2), {1: {2, 3}}, frozenset([1]), float("inf")):
    got = same(value)
    assert got == value and type(got) is type(value), value
assert math.isnan(same(float("nan")))
assert count("aab") == {"a": 2, "b": 1}
try:
    fail("k")
except KeyError as error:
    assert "k" in str(error)
else:
    raise AssertionError
"""
    found = ran(sandbox, code, tests=Tests(tests))
    assert found.ok and not found.stderr, found


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits, said",
    [
        ({"seconds": 0}, r"seconds=0.*a number from"),
        ({"seconds": float("nan")}, r"seconds=nan"),
        ({"memory_mb": 1}, r"memory_mb=1.*from 16"),
        ({"memory_mb": 64.5}, r"memory_mb=64.5.*whole number"),
        ({"processes": 0}, r"processes=0"),
        ({"output_bytes": -1}, r"output_bytes=-1"),
        ({"files": {"../x": ""}}, r"'../x' would be outside.*relative name"),
        ({"stdin": "x" * 40_000_000}, r"40,000,000 bytes.*Give it less"),
        ({"files": {"/x": ""}}, r"'/x' would be outside"),
    ],
)
def test_bad_limits_are_refused(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ran(Sandbox(), "1", **limits)


def test_an_unknown_isolation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"isolation='none'.*auto, namespaces or landlock"):
        Sandbox("none")  # type: ignore[arg-type]


def test_without_isolation_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The zygote is told of a kernel that has neither; no program is run, and the remedy is named."""
    inside = tmp_path / "inside"
    inside.mkdir()
    for file in host_module.INSIDE.glob("*.py"):
        text = file.read_text()
        if file.name == "kernel.py":
            text += "\ndef unshare(flags):\n    raise Refused('no namespaces')\ndef landlock_version():\n    return 0\n"
        (inside / file.name).write_text(text)
    monkeypatch.setattr(host_module, "INSIDE", inside)
    with pytest.raises(NoIsolation, match=r"no program was run.*no namespaces.*there is none.*Linux 6.2"):
        ran(Sandbox(), f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert not (tmp_path / "ran").exists()


def test_without_seccomp_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The zygote starts, and its first program is refused."""
    inside = tmp_path / "inside"
    inside.mkdir()
    for file in host_module.INSIDE.glob("*.py"):
        text = file.read_text()
        if file.name == "seccomp.py":
            text += "\ndef install(processes, modes):\n    raise Refused('no seccomp')\n"
        (inside / file.name).write_text(text)
    monkeypatch.setattr(host_module, "INSIDE", inside)
    with pytest.raises(NoIsolation, match=r"a first program did not run \(no seccomp\)"):
        Sandbox().start()


def test_on_another_system_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NoIsolation, match=r"Linux: required, and this is darwin"):
        ran(Sandbox(), "1")


def test_the_doctor_names_the_isolation(
    sandbox: Sandbox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an attack that gets through, here one that only says so, is an exit code of 1."""
    few = {name: ATTACKS[name] for name in ("fork bomb", "sockets")}
    monkeypatch.setattr(doctor_module, "ATTACKS", few)
    for module in (host_module, doctor_module):
        monkeypatch.setattr(module, "ISOLATIONS", (sandbox.wanted,))
    assert main(["doctor", "--sandbox"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"isolation: {sandbox.wanted}") and "held    fork bomb" in said and "0 of 2 attacks" in said
    few["liar"] = Attack("liar", "print('ESCAPED')")
    assert main(["doctor", "--sandbox", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["attacks"] == {"fork bomb": [], "sockets": [], "liar": ["ESCAPED"]}
    assert main(["doctor", "--sandbox", "method=grpo"]) == 2
    assert "has no meaning there" in capsys.readouterr().err
