"""The process that has loaded the agent of a user, and forks for each episode: what it imports is imported once.

Its parent is `programs.Functions`. It has one thread. Requests are pickles of our own parent, replies are JSON. Each
episode is a process group of its own, so it can be killed with its children; when it ends, they are killed too.
"""

import asyncio
import ctypes
import inspect
import json
import os
import pickle
import random
import selectors
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

from gruppo.serve.client import Client
from gruppo.serve.outcome import Row, paid, raised
from gruppo.tasks.imports import load_object, misfit

LONGEST = 8000  # characters of an error; a reply must fit into a pipe that nobody reads yet


def main() -> None:
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # prints of agents
    try:
        agent = loaded(pickle.loads(_request(requests)))
    except ValueError as error:
        return _send(replies, "refused", str(error))
    _send(replies, "ready")
    Zygote(agent, requests, replies).serve()


def loaded(path: str) -> Any:
    agent = load_object(path)
    if not callable(agent):
        raise ValueError(f"task.agent={path} is {type(agent).__name__} and cannot be called. Name a function.")
    if trouble := misfit(agent, None, None):
        raise ValueError(
            f"task.agent={path} cannot be called with a task and a client ({trouble}). Write  def agent(task, client):"
        )
    return agent


class Zygote:
    def __init__(self, agent: Any, requests: int, replies: int) -> None:
        self.agent, self.requests, self.replies = agent, requests, replies
        self.running: dict[int, tuple[str, int]] = {}  # pid: (key of the episode, pipe with its reply)

    def serve(self) -> NoReturn:
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        ready = selectors.DefaultSelector()
        ready.register(self.requests, selectors.EVENT_READ)
        ready.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fd == woken:
                    with suppress(BlockingIOError):
                        os.read(woken, 4096)
                    self.reap()
                elif request := _request(self.requests):
                    self.obey(*pickle.loads(request))
                else:  # the parent has gone
                    for pid in self.running:
                        _kill(pid)
                    os._exit(0)

    def obey(self, what: str, key: str, given: bytes) -> None:
        if what == "kill":
            for pid, (known, _) in self.running.items():
                if known == key:
                    _kill(pid)
            return
        read, write = os.pipe()
        os.set_blocking(read, False)
        pid = os.fork()
        if pid == 0:
            self.become(given, write)
        os.close(write)
        with suppress(OSError):
            os.setpgid(pid, pid)  # here and there: whoever is first
        self.running[pid] = key, read

    def become(self, given: bytes, write: int) -> NoReturn:
        """In the process of an episode."""
        code = 1
        try:
            os.setpgid(0, 0)
            _end_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self.requests)
            os.close(self.replies)
            found, status, error = acted(self.agent, given)
            os.write(write, json.dumps([found, status, error[-LONGEST:]]).encode())
            code = 0
        finally:
            os._exit(code)

    def reap(self) -> None:
        """Episodes that have ended. What they have started is killed before their number is free again."""
        while self.running:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            _kill(pid)
            _, status = os.waitpid(pid, 0)
            if pid in self.running:
                key, read = self.running.pop(pid)
                _send(self.replies, "ended", [key, _reply(read, os.waitstatus_to_exitcode(status))])


def acted(agent: Any, given: bytes) -> Row:
    try:
        task, client = pickle.loads(given)
        assert isinstance(client, Client)
        os.environ.update(client.environment)
        random.seed(client.seed)  # all are forks of one process, and would draw the same numbers
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(client.seed % (1 << 32))
        value = agent(task, client)
        return paid(asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value)
    except BaseException as error:  # sys.exit in an agent is its failure too
        return raised(error, __file__)
    finally:
        with suppress(Exception):
            sys.stdout.flush()


async def _awaited(value: Any) -> Any:
    return await value


def _reply(read: int, code: int) -> Row:
    text = b""
    with suppress(BlockingIOError):
        while more := os.read(read, 1 << 16):
            text += more
    os.close(read)
    with suppress(ValueError):
        found, status, error = json.loads(text)
        return found, status, error
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return {}, "env_error", f"The process of the agent ended without a reward ({how}), so the episode has none."


def _kill(pid: int) -> None:
    """A process and its group."""
    for kill in (os.killpg, os.kill):
        with suppress(OSError):
            kill(pid, signal.SIGKILL)


def _end_with_parent() -> None:
    """On Linux, also if this process's parent is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _request(fd: int) -> bytes:
    """Empty at the end."""
    head = _exactly(fd, 8)
    return _exactly(fd, int.from_bytes(head, "little")) if len(head) == 8 else b""


def _exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := os.read(fd, size - len(data))):
        data += more
    return data


def _send(fd: int, kind: str, content: Any = None) -> None:
    data = json.dumps([kind, content]).encode() + b"\n"
    with suppress(BrokenPipeError):
        while data:
            data = data[os.write(fd, data) :]
