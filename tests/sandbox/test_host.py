"""The host is as it was: no process, folder or descriptor of a sandbox is left, whoever ends."""

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gruppo.sandbox import NoIsolation, Sandbox


def below(pid: int) -> list[int]:
    """All processes below one, by the tree of parents."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def scratch(sandbox: Sandbox) -> Path | None:
    """The folder on the host that holds those of this sandbox's programs. Others have theirs beside it."""
    own = Path(asyncio.run(sandbox.run("import os; print(os.getcwd())")).stdout.strip())
    return None if sandbox.wanted == "namespaces" else own.parent


def state(zygote: int, base: Path | None) -> tuple[int, int, list[int], list[str]]:
    """Our descriptors, those of the zygote, its children, and the folders of its programs."""
    folders = os.listdir(base) if base else []
    return len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{zygote}/fd")), below(zygote), folders


def quick_calls(sandbox: Sandbox, number: int) -> float:
    """Runs short programs, some of which fail; the host is as it was. Returns programs per second."""
    zygote = sandbox.start()._process.pid
    codes = ["print(1)", "1 / 0", "open('f', 'w').write('x')", "import os; os._exit(7)"]
    wanted = ["ok", "error", "ok", "error"]

    async def many(number: int) -> tuple[float, list[str]]:
        begun = time.monotonic()
        found = await asyncio.gather(*(sandbox.run(codes[i % 4]) for i in range(number)))
        return time.monotonic() - begun, [r.status for r in found]

    asyncio.run(many(4))  # what the first calls of a loop open once
    base = scratch(sandbox)
    gc.collect()  # descriptors that other tests left to the collector are not counted
    waited(lambda: below(zygote) == [])
    before = state(zygote, base)
    seconds, statuses = asyncio.run(many(number))
    assert statuses == [wanted[i % 4] for i in range(number)]
    waited(lambda: state(zygote, base)[1:] == before[1:])  # the supervisors end after their reply
    assert state(zygote, base)[0] <= before[0] and before[2:] == ([], [])
    return number / seconds


def test_many_quick_calls_leave_nothing(sandbox: Sandbox) -> None:
    assert quick_calls(sandbox, 40) > 3  # 50 and more on two quiet cores; this one may be very busy


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_quick_calls(sandbox: Sandbox) -> None:
    rate = quick_calls(sandbox, 10_000)
    print(f"{sandbox.isolation}: {rate:.0f} programs/s")
    assert rate > 5


def test_closing_ends_everything(sandbox: Sandbox) -> None:
    other = Sandbox(sandbox.wanted)
    zygote = other.start()._process
    folder = scratch(other)
    assert folder is None or folder.exists()
    other.close()
    assert zygote.poll() is not None
    assert folder is None or not folder.exists()
    assert asyncio.run(other.run("print(2)")).stdout == "2\n"  # and starts again
    other.close()


def test_a_zygote_that_was_killed_is_replaced() -> None:
    try:
        box = Sandbox()
        zygote = box.start()._process
    except NoIsolation as error:
        pytest.skip(str(error))
    zygote.kill()
    zygote.wait()
    assert asyncio.run(box.run("print(3)")).stdout == "3\n"
    box.close()


# A program that gives its process a name, by which others see that it runs, and goes on.
NAMED = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'goes on'); time.sleep(60)"


def test_a_caller_that_is_killed_leaves_nothing(sandbox: Sandbox) -> None:
    """Neither its programs nor its folders."""
    code = f"""
import asyncio
from gruppo.sandbox import Sandbox
box = Sandbox({sandbox.wanted!r})
print(box.start()._process.pid, flush=True)
asyncio.run(box.run({NAMED!r}, seconds=60))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        zygote = int(caller.stdout.readline())
        try:
            waited(lambda: "goes on" in map(name_of, below(zygote)))
            processes = [zygote, *below(zygote)]
            folders = scratch_of(processes)
        finally:
            caller.kill()
    assert len(processes) >= 4  # zygote, supervisor, keeper and program
    assert folders or sandbox.wanted == "namespaces"
    waited(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))
    waited(lambda: not any(folder.exists() for folder in folders))


def name_of(pid: int) -> str:
    """The name of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def scratch_of(processes: list[int]) -> list[Path]:
    """The folders of sandboxes that processes are in."""
    where: list[Path] = []
    for pid in processes:
        with suppress(OSError):  # one that only helped another to start has ended
            where.append(Path(os.readlink(f"/proc/{pid}/cwd")))
    return [folder.parent for folder in where if folder.parent.name.startswith("gruppo-sandbox-")]


def waited(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not done():
        assert time.monotonic() < end, "it did not happen within 120 s"
        time.sleep(0.02)
