"""Tries the attacks: bait on the host for them, and what has become of it."""

import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

from gruppo.sandbox.attacks import Attack
from gruppo.sandbox.host import Sandbox
from gruppo.sandbox.ran import Ran

SECRET = "gruppo-bait-5d1f"  # what bait holds, and a program must never see
MARK = f"bait{os.getpid()}"  # the name of processes that an attack of ours leaves behind; at most 15 letters

HEAD = """
import os
def attempt(what, action):
    try:
        got = action()
    except BaseException as error:
        print("held", what, type(error).__name__)
    else:
        print("ESCAPED", what, repr(got)[:200])
def syscall(name, *values):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 0, "aarch64": 1}[os.uname().machine]
    result = libc.syscall(ctypes.c_long(NUMBERS[name][number]), *values)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result
def together(number, hold):
    import time
    told, tell = os.pipe()
    try:
        for which in range(number):
            if os.fork() == 0:
                hold(lambda: os.write(tell, b"x"), which)
        for _ in range(number):
            os.read(told, 1)
        time.sleep(3)
        print("ESCAPED", number)
    except OSError:
        print("held")
NUMBERS = {"unshare": (272, 97), "mount": (165, 40), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "pidfd_open": (434, 434), "io_uring_setup": (425, 425), "bpf": (321, 280), "keyctl": (250, 219),
    "memfd_create": (319, 279), "setns": (308, 268), "userfaultfd": (323, 282), "perf_event_open": (298, 241),
    "execve": (59, 221), "open_by_handle_at": (304, 265), "shmget": (29, 194), "chroot": (161, 51),
    "setpriority": (141, 140), "inotify_init1": (294, 26), "clone3": (435, 435), "personality": (135, 92),
    "exit": (60, 93)}
"""


class Bait:
    """Things on the host that no program may reach: a secret, a folder, listeners. Removed at the end."""

    def __enter__(self) -> "Bait":
        home = Path.home()
        self.folders = [tempfile.mkdtemp(prefix=".gruppo-bait-", dir=home if os.access(home, os.W_OK) else None)]
        self.folders.append(tempfile.mkdtemp(prefix="gruppo-bait-"))
        secret, self.kept = Path(self.folders[0], "secret"), Path(self.folders[1], "kept")
        for file in (secret, self.kept):
            file.write_text(SECRET)
            file.chmod(0o666)
        os.chmod(self.folders[1], 0o777)
        self.before = self._state()
        unix, self.abstract = str(Path(self.folders[0], "socket")), Path(self.folders[1]).name
        self.listeners = [socket.socket(f) for f in (socket.AF_INET, socket.AF_UNIX, socket.AF_UNIX)]
        for one, address in zip(self.listeners, (("127.0.0.1", 0), unix, "\0" + self.abstract), strict=True):
            one.bind(address)
            one.listen()
            one.setblocking(False)
        self.facts = {
            "secret": str(secret),
            "outside": self.folders[1],
            "unix": unix,
            "abstract": self.abstract,
            "port": self.listeners[0].getsockname()[1],
            "pid": os.getpid(),
            "mark": MARK,
            "temporary": tempfile.gettempdir(),
            "packages": str(Path(os.__file__).parent / "site-packages"),
            "package": __file__,
            "python": shutil.which("python3") or "/usr/bin/python3",
        }
        return self

    def program(self, attack: Attack, processes: int = 1) -> str:
        return f"{HEAD}\nbait = { ({**self.facts, 'processes': processes})!r}\n{attack.code}"

    def _state(self) -> tuple[Any, ...]:
        found = self.kept.stat()
        return self.kept.read_text(), found.st_mode, found.st_mtime, found.st_nlink, sorted(os.listdir(self.folders[1]))

    def harm(self) -> list[str]:
        """What has happened on the host."""
        found = []
        if not self.kept.exists() or self._state() != self.before:
            found.append(f"{self.folders[1]} was changed")
        for one in self.listeners:
            try:
                one.accept()[0].close()
                found.append("a socket was reached")
            except BlockingIOError:
                pass
        return found + [f"process {pid} was left behind" for pid in left_behind()]

    def __exit__(self, *exception: object) -> None:
        for one in self.listeners:
            one.close()
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


def left_behind() -> list[int]:
    """Processes with the name of an attack's."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "comm").read_text().strip() == MARK:
                found.append(int(folder.name))
        except OSError:  # it has ended
            continue
    return found


async def tried(sandbox: Sandbox, attack: Attack, bait: Bait) -> tuple[Ran, list[str]]:
    """Runs an attack; what became of it, and what it has reached, which must be nothing."""
    many = 1 if sandbox.alone else attack.many
    ran = await sandbox.run(bait.program(attack, many), **{"seconds": 10.0, "processes": many, **attack.limits})
    wrong = [line for line in ran.stdout.splitlines() if line.startswith("ESCAPED")]
    if SECRET in ran.stdout + ran.stderr + ran.value:
        wrong.append("the secret was read")
    if ran.status not in attack.ends:
        wrong.append(f"it ended with status {ran.status}: {ran.why or ran.stderr.strip()[-200:]}")
    return ran, wrong + bait.harm()
