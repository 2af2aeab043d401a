"""Every attack, once with namespaces and once with Landlock and seccomp alone; and that the attacks are real."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gruppo.sandbox import Sandbox
from gruppo.sandbox.attacks import ATTACKS
from gruppo.sandbox.bait import MARK, SECRET, Bait, left_behind, tried

# Those that do no harm where nothing holds them.
HARMLESS = ("sockets", "home and environment", "writing outside", "symlinks", "proc")
# Several processes that have too much memory together, and none of them alone.
TOGETHER = [name for name, attack in ATTACKS.items() if attack.ends == ("memory", "ok")]


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_reaches_nothing(sandbox: Sandbox, bait: Bait, name: str) -> None:
    ran, reached = asyncio.run(tried(sandbox, ATTACKS[name], bait))
    assert reached == []
    if name in TOGETHER:  # where a program is one process, no second one begins
        assert ran.status == ("ok" if sandbox.alone else "memory") and ("held" in ran.stdout) == bool(sandbox.alone)
        assert sandbox.alone or "processes and their files had" in ran.why


@pytest.mark.parametrize("name", HARMLESS)
def test_without_a_sandbox_the_attack_succeeds(name: str, tmp_path: Path) -> None:
    """Else an attack that cannot work anywhere would count as held."""
    with Bait() as bait:
        ran = subprocess.run(
            [sys.executable, "-c", bait.program(ATTACKS[name])],
            cwd=tmp_path,
            env={"BAIT": SECRET},
            capture_output=True,
            text=True,
        )
        assert "ESCAPED" in ran.stdout
        assert name != "writing outside" or bait.harm()
        assert name != "sockets" or "a socket was reached" in bait.harm()
    Path("/tmp/gruppo-escaped").unlink(missing_ok=True)


def test_a_process_that_is_left_behind_would_be_seen() -> None:
    code = f"import ctypes; ctypes.CDLL(None).prctl(15, {MARK.encode()!r}); print(1, flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as left:
        assert left.stdout is not None
        left.stdout.readline()
        assert left.pid in left_behind()
        left.kill()


def test_no_program_sees_another(sandbox: Sandbox) -> None:
    """Builtins, modules, files, environment, working folder, limits: every program starts from the same state."""
    spoil = """
import builtins, json, os, resource, sys
builtins.len = lambda x: 42
json.dumps = None
sys.modules["math"] = None
sys.path.insert(0, "/scratch")
os.environ["LEFT"] = "1"
open("left", "w").write("x")
os.mkdir("folder"); os.chdir("folder")
os.umask(0o777)
resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))
"""
    look = """
import json, math, os, resource, sys
print(len([1]), json.dumps(1), math.floor(2.5), "/scratch" in sys.path, dict(os.environ), os.listdir("."))
print(oct(os.umask(0)), resource.getrlimit(resource.RLIMIT_NOFILE), os.path.basename(os.getcwd()) != "folder")
"""

    async def both() -> None:
        fresh = await sandbox.run(look)
        assert fresh.ok and fresh.stdout.startswith("1 1 2 False {} []"), fresh
        assert (await sandbox.run(spoil)).ok
        assert (await sandbox.run(look)).stdout == fresh.stdout

    asyncio.run(both())


def test_programs_at_the_same_time_do_not_meet(sandbox: Sandbox) -> None:
    """Each looks for the files of the other one, in its own folder and beside it."""
    code = """
import os, time
open("mine", "w").write("x")
time.sleep(0.3)
found = [f for f in os.listdir(".")]
try:
    found += os.listdir("..")
except OSError:
    pass
print(found)
"""

    async def both() -> list[str]:
        return [r.stdout for r in await asyncio.gather(sandbox.run(code), sandbox.run(code))]

    first, second = asyncio.run(both())
    assert first == second == "['mine']\n"


def test_a_cancelled_call_ends_its_program(sandbox: Sandbox) -> None:
    code = f"import ctypes, time; ctypes.CDLL(None).prctl(15, {MARK.encode()!r}); time.sleep(60)"

    async def cancelled() -> bool:
        call = asyncio.create_task(sandbox.run(code, seconds=60))
        while not left_behind():  # it has begun
            await asyncio.sleep(0.02)
        call.cancel()
        await asyncio.wait({call})
        for _ in range(250):
            if not left_behind():
                return True
            await asyncio.sleep(0.02)
        return False

    assert asyncio.run(asyncio.wait_for(cancelled(), 20))


def test_a_supervisor_that_dies_takes_the_program_along_and_is_a_failure(sandbox: Sandbox) -> None:
    """What happened to the program is not known, so it is no verdict about it. The next call works."""
    code = f"import ctypes, time; ctypes.CDLL(None).prctl(15, {MARK.encode()!r}); time.sleep(60)"

    async def killed() -> str:
        call = asyncio.create_task(sandbox.run(code, seconds=60))
        while not (found := left_behind()):
            await asyncio.sleep(0.02)
        keeper = _parent(found[0])
        os.kill(_parent(keeper), 9)  # the supervisor
        return (await call).status

    assert asyncio.run(asyncio.wait_for(killed(), 20)) == "failed"
    assert asyncio.run(_gone())
    assert asyncio.run(sandbox.run("print(1)")).stdout == "1\n"


async def _gone() -> bool:
    for _ in range(250):
        if not left_behind():
            return True
        await asyncio.sleep(0.02)
    return False


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
