"""The sandbox as the caller sees it: it starts the zygote, hands it programs, and reads what became of them."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from gruppo.sandbox.ran import Ran, Tests, request

Isolation = Literal["auto", "namespaces", "landlock"]
ISOLATIONS = ("namespaces", "landlock")  # the stronger one first

INSIDE = Path(__file__).parent / "inside"
BOOT = "import sys; sys.path.insert(0, sys.argv[1]); import zygote; zygote.boot(int(sys.argv[2]), sys.argv[3])"
START = 30.0  # seconds until the zygote must be ready
GRACE = 30.0  # seconds beyond its own limit until a supervisor must have replied
PROBE = "import wave, decimal; print(6 * 7)"  # wave is not loaded beforehand: the standard library must be readable


class NoIsolation(ValueError):
    """Nothing here can isolate a program, so none is run."""


class Zygote:
    """The process that forks for each program, until `close()`, or until this object or Python ends."""

    def __init__(self, isolation: str) -> None:
        ours, theirs = socket.socketpair()
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}  # Python may need it
        python = getattr(sys, "_base_executable", None) or sys.executable
        command = [python, "-sSPB", "-c", BOOT, str(INSIDE), str(theirs.fileno()), isolation]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**kept, "PYTHONHASHSEED": "0"},  # so that sets have the same order in every run
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd="/",
            )
        self._socket, self._lock = ours, threading.Lock()
        self.close = weakref.finalize(self, _stop, self._process, ours, os.getpid())
        self.facts = self._greeted(isolation)
        ran = self._probed()
        if not ran.ok or ran.stdout != "42\n":
            self.close()
            said = ran.why or ran.stderr.strip().rpartition("\n")[2] or ran.status
            raise NoIsolation(f"{isolation}: a first program did not run ({said})")

    def _greeted(self, isolation: str) -> dict[str, Any]:
        self._socket.settimeout(START)
        line = b""
        try:
            while not line.endswith(b"\n"):
                part = self._socket.recv(4096)
                if not part:
                    break
                line += part
            facts = json.loads(line or b"{}")
        except (OSError, ValueError) as error:
            facts = {"refused": f"no answer from its process: {error}"}
        self._socket.settimeout(None)
        if "isolation" not in facts:
            said = _last_line(self._process) if not facts else ""
            self.close()
            raise NoIsolation(f"{isolation}: {facts.get('refused') or said or 'its process died'}")
        return facts

    def _probed(self) -> Ran:
        """A first program: what the zygote can prepare for itself may still be refused to a program."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self.hand(theirs)
            theirs.close()
            ours.settimeout(START)
            try:
                ours.sendall(request(PROBE, 5.0, 256, 1024, 1, "", {}, None))
                with ours.makefile("rb") as file:
                    head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
                    return _ran(head, [file.read(n) for n in head["sizes"]])
            except (OSError, ValueError) as error:
                return Ran("failed", why=str(error))

    @property
    def alive(self) -> bool:
        return self.close.alive and self._process.poll() is None

    def hand(self, end: socket.socket) -> None:
        """Gives a new supervisor its end of a connection."""
        with self._lock:
            socket.send_fds(self._socket, [b"r"], [end.fileno()])


def _last_line(process: "subprocess.Popen[bytes]") -> str:
    with suppress(subprocess.TimeoutExpired, ValueError):
        _, said = process.communicate(timeout=1)
        return said.decode(errors="replace").strip().rpartition("\n")[2]
    return ""


def _stop(process: "subprocess.Popen[bytes]", ours: socket.socket, owner: int) -> None:
    """The zygote ends when its socket closes; the programs end with it."""
    ours.close()
    if os.getpid() != owner:  # a fork of the owner must not end its owner's zygote
        return
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stderr is not None:
        process.stderr.close()


class Sandbox:
    """Runs programs that nobody has read, each in its own isolated process; see docs/sandbox.md.

    `isolation` is namespaces, landlock (Landlock and seccomp alone), or auto: the first of them that works here. If
    none does, `start` and `run` raise. `workers` programs run at once (0: one per core, at least 2); others wait.
    """

    def __init__(self, isolation: Isolation = "auto", workers: int = 0) -> None:
        if isolation not in ("auto", *ISOLATIONS):
            raise ValueError(
                f"isolation={isolation!r}: no such isolation, so nothing is run. Use auto, {' or '.join(ISOLATIONS)}."
            )
        if workers < 0:
            raise ValueError(f"workers={workers}: no program would ever start. Use 0 (one per core) or more.")
        self.wanted = isolation
        self.workers = workers or max(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
        self.refused: dict[str, str] = {}  # isolations that do not work here, and why
        self._zygote: Zygote | None = None
        self._owner = os.getpid()
        self._starting = threading.Lock()
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._turns = weakref.WeakKeyDictionary()

    @property
    def isolation(self) -> str:
        """The one that is active; starts the sandbox."""
        return self.start().facts["isolation"]

    @property
    def landlock(self) -> int:
        """The version of Landlock that is used; 0 for none."""
        return self.start().facts["landlock"]

    @property
    def alone(self) -> str:
        """Why a program cannot have several processes here; empty if it can."""
        return self.start().facts["alone"]

    def start(self) -> Zygote:
        """Starts the zygote if it does not run; raises `NoIsolation` with the remedy."""
        with self._starting:
            if self._zygote is not None and self._owner == os.getpid() and self._zygote.alive:
                return self._zygote
            self._owner, self._zygote = os.getpid(), self._started()
            return self._zygote

    def _started(self) -> Zygote:
        if sys.platform != "linux":
            raise NoIsolation(_remedy({"Linux": f"required, and this is {sys.platform}"}))
        for name in ISOLATIONS if self.wanted == "auto" else (self.wanted,):
            try:
                return Zygote(name)
            except NoIsolation as error:
                self.refused[name] = str(error)
        raise NoIsolation(_remedy(self.refused))

    async def run(
        self,
        code: str,
        *,
        seconds: float = 5.0,
        memory_mb: int = 256,
        output_bytes: int = 65_536,
        processes: int = 1,
        stdin: str | bytes = "",
        files: Mapping[str, str | bytes] | None = None,
        tests: Tests | None = None,
    ) -> Ran:
        """Runs a program until it ends or exceeds a limit. Never raises because of the program."""
        message = request(code, seconds, memory_mb, output_bytes, processes, stdin, files or {}, tests)
        turns = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.workers))
        async with turns:
            zygote = self._zygote
            if zygote is None or self._owner != os.getpid() or not zygote.alive:
                zygote = await asyncio.to_thread(self.start)
            if processes > 1 and (why := zygote.facts["alone"]):
                raise ValueError(
                    f"processes={processes}: {why}. Use processes=1, or allow what is missing (gruppo doctor "
                    "--sandbox says which isolation there is)."
                )
            try:
                return await asyncio.wait_for(_handed(zygote, message), seconds + GRACE)
            except TimeoutError:
                return Ran("failed", why=f"no reply {GRACE:g} s after the limit of {seconds:g} s")
            except (OSError, EOFError, ValueError) as error:
                return Ran("failed", why=f"the process of the sandbox ended: {error}")

    def close(self) -> None:
        """Ends the zygote and all programs. A later call starts a new one."""
        if self._zygote is not None and self._owner == os.getpid():
            self._zygote.close()
        self._zygote = None

    def __enter__(self) -> "Sandbox":
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


async def _handed(zygote: Zygote, message: bytes) -> Ran:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            zygote.hand(theirs)
        except BaseException:
            ours.close()
            raise
    reader, writer = await asyncio.open_connection(sock=ours)
    try:
        writer.write(message)
        size = int.from_bytes(await reader.readexactly(8), "little")
        head = json.loads(await reader.readexactly(size))
        return _ran(head, [await reader.readexactly(n) for n in head["sizes"]])
    finally:
        writer.close()  # also when this call is cancelled: the supervisor sees it, and kills the program


def _ran(head: dict[str, Any], texts: list[bytes]) -> Ran:
    stdout, stderr, value = (text.decode(errors="replace") for text in texts)
    return Ran(head["status"], stdout, stderr, value, head.get("seconds", 0.0), head["why"])


def _remedy(refused: Mapping[str, str]) -> str:
    tried = "; ".join(f"{name}: {why}" if name not in why else why for name, why in refused.items())
    return (
        f"no program was run, because nothing here can isolate one ({tried}). Use Linux with user namespaces "
        "(sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces above 0; on Ubuntu "
        "kernel.apparmor_restrict_unprivileged_userns=0; in a container, a seccomp profile that allows unshare), or "
        "with Landlock (Linux 6.2 or newer, lsm=landlock). See gruppo doctor --sandbox."
    )


_shared: Sandbox | None = None


def shared() -> Sandbox:
    """The sandbox of this process."""
    global _shared
    if _shared is None:
        _shared = Sandbox()
    return _shared


async def run(code: str, **limits: Any) -> Ran:
    """`Sandbox.run` in the sandbox of this process."""
    return await shared().run(code, **limits)
