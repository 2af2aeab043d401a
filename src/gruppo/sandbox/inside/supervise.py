"""The processes around one program: the supervisor, the keeper, and the program itself.

The supervisor measures, collects output, kills and reports; the program cannot reach it. The keeper prepares the
scratch folder, starts the program (and its tests), and waits. In a pid namespace it is process 1, so that
nothing outlives it.
"""

import base64
import json
import math
import os
import select
import signal
import socket
import time
from typing import Any, NoReturn

import kernel
import program
from jail import Jail

SET_UP = 20.0  # seconds until the program must have begun
LEAST = 0.001
SHARE = 0.2  # of a core, at most, for looks


def serve(connection: socket.socket, jail: Jail, base: dict[str, int]) -> None:
    """Reads one request, runs it, and replies. Leaves no process and no file."""
    request = {**json.loads(_received(connection)), **base}
    outcome: dict[str, Any]
    try:
        kernel.adopt_orphans()
        jail.enter()
        try:
            outcome = Supervisor(connection, jail, request).watched()
        finally:
            jail.leave()
    except (kernel.Refused, OSError) as error:
        outcome = {"status": "failed", "why": str(error)}
    texts = [outcome.pop(name, b"") for name in ("stdout", "stderr", "value")]
    head = json.dumps({**outcome, "sizes": [len(t) for t in texts]}).encode()
    connection.sendall(len(head).to_bytes(8, "little") + head + b"".join(texts))


def _received(connection: socket.socket) -> bytes:
    def exactly(size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = connection.recv(min(size - len(parts), 1 << 20))
            if not part:
                raise SystemExit  # nobody waits for a reply
            parts += part
        return bytes(parts)

    return exactly(int.from_bytes(exactly(8), "little"))


class Supervisor:
    def __init__(self, connection: socket.socket, jail: Jail, request: dict[str, Any]) -> None:
        self.connection, self.jail, self.request = connection, jail, request
        pipes = {name: os.pipe() for name in ("control", "stdout", "stderr", "value")}
        self.keeper = os.fork()
        if self.keeper == 0:
            connection.close()
            _keep(jail, request, {name: ends[1] for name, ends in pipes.items()})
        for _, end in pipes.values():
            os.close(end)
        self.fds = {name: ends[0] for name, ends in pipes.items()}
        self.names = {fd: name for name, fd in self.fds.items()}
        self.got = {name: bytearray() for name in self.fds}
        self.status = self.why = ""
        self.pids: list[int] = []
        self.begun = 0.0

    def watched(self) -> dict[str, Any]:
        """Waits until the program ends or must end; then nothing of it is left."""
        for fd in self.fds.values():
            os.set_blocking(fd, False)
        open_fds = {*self.fds.values(), self.connection.fileno()}
        deadline, look, pause = time.monotonic() + SET_UP, math.inf, self.jail.pause(self.request)
        limited = False
        while not self.status:
            now = time.monotonic()
            left = deadline - now
            if left <= 0:
                self.status = "timeout" if self.begun else "failed"
                self.why = "" if self.begun else f"the isolation was not ready after {SET_UP:g} s"
                break
            poll = select.poll()
            for fd in open_fds:
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(1000 * max(LEAST, min(left, look - now))):
                if fd == self.connection.fileno():
                    self.status = "cancelled"
                elif not self._read(fd):
                    open_fds.discard(fd)
            if self.begun and not limited:
                limited, deadline = True, self.begun + self.request["seconds"]
                look = self.begun + pause if pause else math.inf
            if not self.status and time.monotonic() >= look:
                look = time.monotonic() + max(pause, self._looked() / SHARE)
        return self._ended()

    def _looked(self) -> float:
        """Ends the program if it exceeds what the kernel does not limit; the processor seconds that this took."""
        begun = time.process_time()
        try:
            self.status, self.why = self.jail.excess(self.request, self.keeper, self.pids)
        except OSError as error:  # what cannot be counted must not run
            self.status, self.why = "failed", f"what the program uses could not be read: {error}"
        return time.process_time() - begun

    def _read(self, fd: int) -> bool:
        """Takes what is there; False at the end. Too much output ends the program."""
        name = self.names[fd]
        try:
            part = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        got, most = self.got[name], self.request["output_bytes"]
        got += part
        if name == "control":
            self._told(bool(part))
        elif len(got) > most:
            del got[most:]
            if name != "value" and self.status in ("", "ok", "error"):  # however fast the program ended
                self.status = "output"
        return bool(part)

    def _told(self, more: bool) -> None:
        """Looks at what the keeper has said: that it began, how the program ended, or why it did not begin."""
        lines = bytes(self.got["control"]).split(b"\n")[:-1]
        if not self.begun and len(lines) > 1 and lines[1].startswith(b"ready"):
            _, begun, *pids = lines[1].split()
            self.begun, self.pids = float(begun), [int(pid) for pid in pids]
        word, _, content = (lines or [b""])[-1].partition(b" ")
        if word == b"failed":
            self.status, self.why = "failed", content.decode(errors="replace")
        elif word == b"exit":
            self.status = _named(int(content))
        elif not more:
            self.status, self.why = ("killed", "") if self.begun else ("failed", "the keeper died")

    def _ended(self) -> dict[str, Any]:
        """Kills whatever is left, collects the rest of the output, and says how it was."""
        seconds = time.monotonic() - self.begun if self.begun else 0.0
        os.kill(self.keeper, signal.SIGKILL)
        try:
            while True:
                os.waitpid(-1, 0)  # the orphans are ours, too
        except ChildProcessError:
            pass
        for name in ("stdout", "stderr", "value"):
            while self._more(name) and self._read(self.fds[name]):
                pass
        texts = {name: bytes(self.got[name]) for name in ("stdout", "stderr", "value")}
        return {"status": self.status, "why": self.why, "seconds": seconds, **texts}

    def _more(self, name: str) -> bool:
        return bool(select.select([self.fds[name]], [], [], 0)[0])


def _named(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "timeout" if os.WTERMSIG(status) == signal.SIGXCPU else "killed"
    code = os.WEXITSTATUS(status)
    return {0: "ok", program.OUT_OF_MEMORY: "memory"}.get(code, "error")


def _keep(jail: Jail, request: dict[str, Any], ends: dict[str, int]) -> NoReturn:
    """In the keeper: never returns."""
    control = ends["control"]
    try:
        kernel.die_with_parent()
        os.setsid()
        os.write(control, b"hello\n")  # fails, and ends us, if the supervisor died before the line above it
        scratch = jail.scratch()
        os.chdir(scratch)
        given = _laid_out(request)
        started = [_started(jail, scratch, request, ends, given, part) for part in _parts(request)]
        for fd in (given, *(end for name, end in ends.items() if name != "control")):
            os.close(fd)
        for link in request.pop("links", ()):
            os.close(link)
        for _, ready in started:
            if os.read(ready, 1) != b"r":
                os.write(control, b"failed " + (os.read(ready, 1000) or b"the process died") + b"\n")
                os._exit(1)
        pids = [pid for pid, _ in started]
        os.write(control, f"ready {time.monotonic()} {' '.join(map(str, pids))}\n".encode())
        for _, ready in started:
            os.close(ready)
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == pids[-1]:
                os.write(control, f"exit {status}\n".encode())
                break
    except (kernel.Refused, OSError) as error:
        os.write(control, f"failed {error}".replace("\n", " ").encode() + b"\n")
    finally:
        os._exit(0)
    raise AssertionError


def _parts(request: dict[str, Any]) -> list[str]:
    """Which processes there are; how the last one ends is the outcome."""
    if request.get("tests") is None:
        return ["program"]
    request["links"] = [*os.pipe(), *os.pipe()]
    return ["offer", "tests"]


def _laid_out(request: dict[str, Any]) -> int:
    """Writes the files and the standard input into the scratch folder; returns a descriptor of the input."""
    name = ".stdin"
    while name in request["files"]:
        name += "_"
    for path, content in {**request["files"], name: request["stdin"]}.items():
        if os.path.dirname(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(content))
    fd = os.open(name, os.O_RDONLY)
    os.unlink(name)
    return fd


def _started(
    jail: Jail, scratch: str, request: dict[str, Any], ends: dict[str, int], given: int, part: str
) -> tuple[int, int]:
    """Starts a process of the program; its number, and a pipe on which it says `r` once it is locked."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell)
        return pid, told
    try:
        for fd, place in ((given, 0), (ends["stdout"], 1), (ends["stderr"], 2)):
            os.dup2(fd, place)
        *kept, tell = _gathered([*_kept(request, ends, part), tell])
        program.standard_streams()
        os.environ.clear()
        jail.lock(scratch, request, len(_names(request)))
        os.write(tell, b"r")
        os.close(tell)
    except BaseException as error:
        os.write(tell, f"f{error}".encode()[:900])
        os._exit(1)
    _begin(request, part, kept)


def _names(request: dict[str, Any]) -> tuple[str, ...]:
    return ("offer", "tests") if request.get("tests") is not None else ("program",)


def _kept(request: dict[str, Any], ends: dict[str, int], part: str) -> list[int]:
    """The descriptors beside 0 to 2 that this process has."""
    if part == "program":
        return [ends["value"]]
    calls_out, calls_in, replies_out, replies_in = request["links"]
    return [calls_out, replies_in] if part == "offer" else [calls_in, replies_out]


def _gathered(fds: list[int]) -> list[int]:
    """Moves them to 3, 4, … and closes every other one."""
    high = 200
    for place, fd in enumerate(fds):
        os.dup2(fd, high + place)
    for place in range(len(fds)):
        os.dup2(high + place, 3 + place)
    os.closerange(3 + len(fds), 1 << 20)
    return list(range(3, 3 + len(fds)))


def _begin(request: dict[str, Any], part: str, fds: list[int]) -> NoReturn:
    code = request["code"]
    if part == "program":
        program.run(code, fds[0], request["output_bytes"])
    if part == "offer":
        program.offer(code, *fds)
    program.test(request["prelude"], request["tests"], request["calls"], *fds)
