"""One limit of memory for all processes of a program: how it is counted; what cannot be counted does not run."""

import asyncio
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gruppo.sandbox import NoIsolation, Sandbox
from gruppo.sandbox import host as host_module

MB = 1 << 20


@pytest.fixture(scope="module")
def usage() -> Any:
    spec = importlib.util.spec_from_file_location("usage", host_module.INSIDE / "usage.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Proc = Callable[..., None]


@pytest.fixture
def proc(tmp_path: Path) -> Iterator[tuple[int, Proc]]:
    """A folder like /proc, open, and a function that puts a process into it."""

    def process(pid: int, children: str = "", whole: int = 0, share: int | None = None, swap: int = 0) -> None:
        task = tmp_path / f"{pid}/task/{pid}"
        task.mkdir(parents=True)
        (task / "children").write_text(children)
        (tmp_path / f"{pid}/statm").write_text(f"{whole << 8} {whole << 8} 0 0 0 0 0\n")
        (task / "statm").write_text(f"{whole << 8} {whole << 8} 0 0 0 0 0\n")
        (tmp_path / f"{pid}/status").write_text(f"Threads:\t1\nRssAnon:\t{whole << 10} kB\nVmSwap:\t{swap << 10} kB\n")
        if share is not None:
            pages = f"Pss: {(share + 99) << 10} kB\nPss_Anon: {share << 10} kB\nSwapPss: {swap << 10} kB\n"
            (tmp_path / f"{pid}/smaps_rollup").write_text(pages)

    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd, process
    os.close(fd)


def test_all_processes_below_one_are_found(usage: Any, proc: tuple[int, Proc]) -> None:
    fd, process = proc
    process(1, "2 3 ")
    process(2)
    process(3, "4 9 ")  # 9 has ended meanwhile
    process(4)
    process(5)  # somebody else's
    assert sorted(usage.below(fd, 1)) == [2, 3, 4, 9]
    assert usage.memory(fd, [9], MB) == 0
    with pytest.raises(FileNotFoundError):  # the one that is asked about cannot have gone: it is hidden
        usage.below(fd, 9)


def test_shared_pages_are_counted_once_and_only_where_it_matters(usage: Any, proc: tuple[int, Proc]) -> None:
    fd, process = proc
    process(1, whole=100, share=50)
    process(2, whole=100, share=50, swap=7)
    assert usage.memory(fd, [1, 2], 207 * MB) == 207 * MB
    assert usage.memory(fd, [1, 2], 206 * MB) == 107 * MB  # swapped memory is memory


def test_what_cannot_be_read_raises(usage: Any, proc: tuple[int, Proc], tmp_path: Path) -> None:
    fd, process = proc
    process(1, whole=100)
    (tmp_path / "1/smaps_rollup").mkdir()
    with pytest.raises(OSError):
        usage.memory(fd, [1], 10 * MB)
    (tmp_path / "1/task/1/children").unlink()
    (tmp_path / "1/task/1/children").mkdir()
    with pytest.raises(OSError):
        usage.below(fd, 1)


def test_a_proc_that_does_not_tell_is_named(usage: Any, proc: tuple[int, Proc], tmp_path: Path) -> None:
    fd, process = proc
    assert usage.cannot(fd).startswith("/proc/self: ")
    (tmp_path / "self").symlink_to("1")
    assert "other numbers of processes" in usage.cannot(fd)
    (tmp_path / "self").unlink()
    (tmp_path / "self").symlink_to(str(os.getpid()))
    assert usage.cannot(fd).startswith("/proc/thread-self/children: ")
    (tmp_path / "thread-self").mkdir()
    (tmp_path / "thread-self/children").write_text("")
    assert "does not say how much memory" in usage.cannot(fd)
    process(os.getpid(), whole=3, share=1)
    assert usage.cannot(fd) == ""


def test_files_without_a_name_are_counted(usage: Any, tmp_path: Path) -> None:
    """Of this process, in the real /proc; pytest has some, too. What is only mapped is an attack."""
    real, file = os.open("/proc", os.O_RDONLY), tmp_path / "file"

    def size() -> int:
        return usage.nameless(real, [os.getpid()], str(tmp_path), 64 * MB)

    before = size()
    with file.open("wb+") as held:
        held.write(bytes(MB))
        held.flush()
        assert size() == before
        file.unlink()
        assert before + MB <= size() < before + 2 * MB
    assert size() == before
    os.close(real)


CHILDREN = """
import os, time
kept = b"x" * (40 << 20)
told, tell = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        os.write(tell, bytes(kept[:1]))
        time.sleep(0.2)
        os._exit(0)
for _ in range(4):
    os.wait()
print("together")
"""


def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str) -> Sandbox:
    """A sandbox whose file usage.py ends with other lines."""
    for file in host_module.INSIDE.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text() + (more if file.name == "usage.py" else ""))
    monkeypatch.setattr(host_module, "INSIDE", tmp_path)
    box = Sandbox("namespaces")
    try:
        box.start()
    except NoIsolation as error:
        pytest.skip(str(error))
    return box


def test_children_may_share_what_their_parent_has() -> None:
    """Five processes with the same 40 MB have 40 MB, and not 200."""
    try:
        box = Sandbox("namespaces")
        box.start()
    except NoIsolation as error:
        pytest.skip(str(error))
    with box:
        ran = asyncio.run(box.run(CHILDREN, processes=5, memory_mb=64))
        assert (ran.status, ran.stdout) == ("ok", "together\n"), ran


def test_where_memory_cannot_be_summed_a_program_is_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with changed(tmp_path, monkeypatch, "\ndef cannot(proc):\n    return 'no /proc'\n") as box:
        with pytest.raises(ValueError, match=r"processes=2: nothing would sum.*no /proc.*Use processes=1"):
            asyncio.run(box.run("1", processes=2))
        assert asyncio.run(box.run("1")).ok


def test_a_look_that_fails_ends_the_program_and_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one process is not looked at: it would fail as well."""
    with changed(tmp_path, monkeypatch, "\ndef memory(proc, pids, most):\n    raise OSError('no')\n") as box:
        ran = asyncio.run(box.run("import time; time.sleep(9)", processes=2, seconds=20))
        assert ran.status == "failed" and "could not be read: no" in ran.why
        assert asyncio.run(box.run("import time; time.sleep(0.1)")).ok
