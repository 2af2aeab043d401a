"""Runs the agent of a user for one episode: a Python function in a forked process, or a program by its command line."""

import asyncio
import os
import pickle
import shlex
import shutil
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from gruppo.serve.client import Client, task_json
from gruppo.serve.outcome import Row, printed
from gruppo.tasks.channel import INSIDE, Channel, Died, Hung
from gruppo.tasks.imports import is_file, no_file, split_path

KEPT = 1 << 16  # bytes of a program's output: the last ones
CLOSING = 1.0  # seconds for the rest of a program's output after its end


class Programs(Protocol):
    def start(self) -> None:
        """Refuses an agent that cannot be run."""
        ...

    async def run(self, task: Any, client: Client) -> Row:
        """One episode. If it is cancelled, the program is killed with its children."""
        ...

    def close(self) -> None: ...


def programs_of(agent: str, start_seconds: float = 60.0) -> "Programs":
    """The agent of `task.agent`: ./mine.py:agent or package.module:agent is a function, anything else a command."""
    words = shlex_split(agent)
    where, colon, name = agent.rpartition(":")
    if colon and name.isidentifier() and (len(words) == 1 or Path(where).is_file()):
        return Functions(agent, start_seconds)
    if len(words) == 1 and agent.endswith(".py"):
        raise ValueError(
            f"task.agent={agent} names a file and no function in it. Write {agent}:agent for a function "
            f'(task, client), or "python {agent}" for a program.'
        )
    return Commands(words)


def shlex_split(agent: str) -> list[str]:
    try:
        return shlex.split(agent)
    except ValueError as error:
        raise ValueError(f"task.agent={agent!r} is no command line ({error}). Close its quotes.") from None


class Functions:
    """A function `(task, client) -> reward`, plain or `async def`."""

    def __init__(self, path: str, start_seconds: float = 60.0) -> None:
        if not hasattr(os, "fork"):
            raise ValueError(
                f"task.agent={path}: a function is run in forks of a process, and this system has none. Use a command "
                'line: task.agent="python mine.py".'
            )
        where, name = split_path(path)
        self.path, self.seconds = f"{where}:{name}", start_seconds
        self._channel: Channel | None = None
        self._ended: dict[str, Callable[[Row], None]] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            if self._channel is None or not self._channel.alive:
                self._start()

    def _start(self) -> None:
        channel = Channel("gruppo.serve.zygote", {**os.environ, INSIDE: "1"})
        try:
            channel.send(pickle.dumps(self.path))
            kind, said = channel.read(self.seconds)
        except Hung:
            channel.close()
            raise ValueError(
                f"task.agent={self.path} was not loaded within task.start_seconds={self.seconds:g}. Raise it, or put "
                "what starts work under  if __name__ == '__main__':"
            ) from None
        except Died as error:
            raise ValueError(f"task.agent={self.path}: its process ended while it was loaded ({error}).") from None
        if kind == "refused":
            channel.close()
            raise ValueError(said)
        self._channel = channel
        threading.Thread(target=self._listen, args=(channel,), daemon=True).start()

    def _listen(self, channel: Channel) -> None:
        """In a thread: hands each reply to the loop that waits for it."""
        while True:
            try:
                kind, content = channel.read(3600.0)
            except Hung:
                continue
            except Died as error:
                said = f"The process that starts agents ended ({error}), so the episode has no reward."
                for key in list(self._ended):
                    self._tell(key, ({}, "env_error", said))
                return
            if kind == "ended":
                self._tell(content[0], content[1])

    def _tell(self, key: str, row: Any) -> None:
        if (tell := self._ended.pop(key, None)) is not None:
            tell((row[0], row[1], row[2]))

    async def run(self, task: Any, client: Client) -> Row:
        await asyncio.to_thread(self.start)  # if it has died since
        loop, ended = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def tell(row: Row) -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(lambda: ended.done() or ended.set_result(row))

        self._ended[client.key] = tell
        try:
            self._send("run", client.key, pickle.dumps((task, client)))
            return await asyncio.shield(ended)
        except Died as error:
            return {}, "env_error", f"The process that starts agents ended ({error}), so the episode has no reward."
        except asyncio.CancelledError:
            with suppress(Died):
                self._send("kill", client.key, b"")
                await asyncio.wait({ended}, timeout=CLOSING)  # until it is dead
            raise
        finally:
            self._ended.pop(client.key, None)

    def _send(self, *request: Any) -> None:
        with self._lock:
            if self._channel is None:
                raise Died("it was closed")
            self._channel.send(pickle.dumps(request))

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


class Commands:
    """A program, which finds the policy and its task in environment variables, and prints the reward at the end."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def start(self) -> None:
        if not self.words:
            raise ValueError("task.agent is a command without words. Write ./mine.py:agent, or a command line.")
        first = self.words[0]
        if shutil.which(first) is None:
            found = is_file(first) and Path(first).exists()
            why = f"{first} cannot be run. Make it executable." if found else no_file(Path(first), "program")
            raise ValueError(f"task.agent={shlex.join(self.words)}: {why}")

    async def run(self, task: Any, client: Client) -> Row:
        environment = {**os.environ, **client.environment, INSIDE: "1", "GRUPPO_TASK": task_json(task)}
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self.words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:  # such as a task that is too long for a variable
            return {}, "env_error", f"The agent could not be started: {error}. Is its task too long for a variable?"
        tails = [asyncio.create_task(_tail(s)) for s in (process.stdout, process.stderr)]
        try:
            code = await process.wait()
        finally:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # it, and what it has started
            await asyncio.wait(tails, timeout=CLOSING)
            for t in tails:
                t.cancel()
            await process.wait()
        output, errors = (t.result() if t.done() and not t.cancelled() else "" for t in tails)
        return printed(output, code, errors)

    def close(self) -> None:
        """Programs end with their episodes."""


async def _tail(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    kept = b""
    while more := await stream.read(1 << 16):
        kept = (kept + more)[-KEPT:]
    return kept.decode(errors="replace")
