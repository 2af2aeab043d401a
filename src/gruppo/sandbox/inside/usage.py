"""What a program uses, read from /proc by its supervisor: memory of all its processes, files that have no name.

What has ended uses nothing. Whatever else cannot be read raises, so that nothing runs uncounted. `proc` is the folder
/proc, open; a place is a name in it, of a process (`12`) or of one of its threads (`12/task/13`).
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager


def read(proc: int, place: str, name: str) -> bytes:
    """A file of a process or thread; empty if that has ended."""
    parts: list[bytes] = []
    with _may_end(proc, place):
        fd = os.open(f"{place}/{name}", os.O_RDONLY, dir_fd=proc)
        try:
            while part := os.read(fd, 1 << 16):
                parts.append(part)
        finally:
            os.close(fd)
    return b"".join(parts)


def listed(proc: int, place: str, name: str) -> list[str]:
    """The names in a folder of a process or thread; none if that has ended."""
    with _may_end(proc, place):
        fd = os.open(f"{place}/{name}", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)
    return []


@contextmanager
def _may_end(proc: int, place: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, ProcessLookupError):
        return
    except PermissionError:  # what is ending belongs to root, until it is waited for
        if _has_memory(proc, place):
            raise


def _has_memory(proc: int, place: str) -> bool:
    """False of a thread that has ended. One that has not cannot be without."""
    try:
        fd = os.open(f"{place}/statm", os.O_RDONLY, dir_fd=proc)
    except (FileNotFoundError, ProcessLookupError):
        return False
    try:
        return os.read(fd, 100).split(b" ")[0] != b"0"
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)


def field(text: bytes, name: bytes) -> int | None:
    """A number of a file with lines such as `RssAnon:  12 kB`; None if there is no such line."""
    for line in text.splitlines():
        if line.startswith(name + b":"):
            return int(line.split()[1])
    return None


def threads(proc: int, pid: int) -> list[str]:
    """The places of all threads of a process. The first may have ended, and the others go on."""
    return [f"{pid}/task/{thread}" for thread in listed(proc, str(pid), "task")]


def cannot(proc: int) -> str:
    """Why the memory of several processes cannot be summed here; empty if it can."""
    try:
        if os.readlink("self", dir_fd=proc) != str(os.getpid()):
            return "/proc has other numbers of processes than this process sees"
        os.close(os.open("thread-self/children", os.O_RDONLY, dir_fd=proc))
        if not _whole(proc, os.getpid()) or not _by_share(proc, os.getpid()):
            return "/proc does not say how much memory a process has"
    except OSError as error:
        return f"/proc/{error.filename}: {error.strerror}"
    return ""


def below(proc: int, root: int) -> list[int]:
    """All processes below a child of ours. Looked at until nothing new is found, since they fork and end meanwhile."""
    if not threads(proc, root):
        raise FileNotFoundError(errno.ENOENT, "hidden", f"{root}/task")
    found = set[int]()
    while True:
        waiting, seen = [root], {root}
        while waiting:
            for place in threads(proc, waiting.pop()):
                children = {int(child) for child in read(proc, place, "children").split()} - seen
                seen |= children
                waiting += children
        if seen - {root} <= found:
            return sorted(found)
        found |= seen - {root}


def memory(proc: int, pids: list[int], most: int) -> int:
    """Bytes of memory that these processes have together, without files.

    First what each has is added up, which is fast but counts a page that n processes share n times. Only if that is
    more than `most`, every page is counted once.
    """
    whole = sum(_whole(proc, pid) for pid in pids)
    return whole if whole <= most else sum(_by_share(proc, pid) for pid in pids)


def _whole(proc: int, pid: int) -> int:
    text = _of_living(proc, pid, "status", b"RssAnon")
    return ((field(text, b"RssAnon") or 0) + (field(text, b"VmSwap") or 0)) << 10


def _by_share(proc: int, pid: int) -> int:
    """A page that n processes have counts 1/n."""
    text = _of_living(proc, pid, "smaps_rollup", b"Pss")
    anonymous = field(text, b"Pss_Anon")
    if anonymous is None:  # before Linux 5.3: files as well, which is too much
        anonymous = field(text, b"Pss") or 0
    return (anonymous + (field(text, b"SwapPss") or 0)) << 10


def _of_living(proc: int, pid: int, name: str, wanted: bytes) -> bytes:
    """The file of the first thread in which the wanted line is; empty if all have ended."""
    text = read(proc, str(pid), name)
    if field(text, wanted) is not None:
        return text
    for place in threads(proc, pid):
        text = read(proc, place, name)
        if field(text, wanted) is not None:
            return text
        if _has_memory(proc, place):
            raise OSError(errno.ENODATA, f"no {wanted.decode()}", f"{place}/{name}")
    return b""


def nameless(proc: int, pids: list[int], folder: str, largest: int) -> int:
    """Bytes of files that were in this folder, have no name any more, and are held by these processes.

    The size of one that is mapped and not open cannot be asked for, so it counts as the `largest` that a file can be.
    """
    opened, mapped = dict[int, int](), set[int]()
    for place in (place for pid in pids for place in threads(proc, pid)):  # a thread may have descriptors of its own
        for name in listed(proc, place, "fd"):
            with _may_end(proc, place):
                found = os.stat(f"{place}/fd/{name}", dir_fd=proc)
                if stat.S_ISREG(found.st_mode) and not found.st_nlink:
                    opened[found.st_ino] = found.st_blocks * 512
    for pid in pids:
        for line in _maps(proc, pid).splitlines():
            if line.endswith(b" (deleted)"):
                *_, inode, path = line.split(None, 5)
                if path.startswith(os.fsencode(folder)):
                    mapped.add(int(inode))
    return sum(opened.values()) + largest * len(mapped - opened.keys())


def _maps(proc: int, pid: int) -> bytes:
    """All threads have the same; one that has ended has none."""
    return next((text for place in threads(proc, pid) if (text := read(proc, place, "maps"))), b"")
