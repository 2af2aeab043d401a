"""The zygote: a small Python that has loaded the standard library, and forks for each program.

It never sees a program. A request is a socket, which it hands to a fork of itself; so nothing passes from one program
to the next. It runs without packages: `boot` is called in a plain interpreter with this folder on its path.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
from contextlib import suppress

from jail import JAILS, folders
from kernel import Refused, no_new_privileges
from supervise import serve

USUAL = (
    "abc argparse array ast asyncio base64 bisect calendar cmath collections contextlib copy csv "
    "dataclasses datetime decimal difflib enum fractions functools hashlib heapq inspect io itertools "
    "json math numbers operator os pprint queue random re secrets statistics string struct textwrap "
    "threading time traceback types typing unicodedata uuid zlib "
)
NOT = ("_tkinter", "_test", "xx", "_ctypes_test", "_curses", "readline", "nis", "ossaudiodev")


def boot(number: int, isolation: str) -> None:
    """Serves requests on this socket until its other end is closed."""
    channel = socket.socket(fileno=number)
    jail = JAILS[isolation]()
    try:
        no_new_privileges()
        load()
        real = map(os.path.realpath, sys.path)  # links to them do not exist inside
        sys.path[:] = [path for path in real if path.startswith(tuple(folders()))]
        base = memory()
        jail.prepare()
    except (Refused, OSError) as error:
        channel.sendall(json.dumps({"refused": str(error)}).encode() + b"\n")
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that have ended are not waited for
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the default of programs, too
    gc.collect()
    gc.freeze()
    facts = {"isolation": jail.name, "landlock": jail.landlock, "alone": jail.alone}
    channel.sendall(json.dumps(facts).encode() + b"\n")
    while True:
        _, fds, _, _ = socket.recv_fds(channel, 1, 1)
        if not fds:
            break
        try:
            pid = os.fork()
        except OSError:  # no more processes: the caller sees that its socket is closed
            os.close(fds[0])
            continue
        if pid == 0:
            channel.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                serve(socket.socket(fileno=fds[0]), jail, base)
            finally:
                os._exit(0)
        os.close(fds[0])
    with suppress(ChildProcessError):
        os.waitpid(-1, 0)
    jail.end()


def load() -> None:
    """What programs use often, and all extension modules, so that no folder of shared libraries must be visible."""
    with suppress(OSError):
        ctypes.CDLL("libgcc_s.so.1")  # libc loads it when a thread ends
    extensions = {
        name.partition(".")[0]
        for folder in sys.path
        if os.path.isdir(folder)
        for name in os.listdir(folder)
        if name.endswith(".so")
    }
    for name in [*USUAL.split(), *sorted(extensions)]:
        if not name.startswith(NOT):
            try:
                importlib.import_module(name)
            except Exception:  # it has a library that is not installed here
                continue


def memory() -> dict[str, int]:
    """Bytes that every program begins with, its limit is on top of them: of address space, and of memory itself."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            size, resident, shared, *_ = (int(n) * os.sysconf("SC_PAGE_SIZE") for n in file.read().split())
    except OSError:
        size = resident = shared = 0
    return {"base": size, "resident": resident - shared}
