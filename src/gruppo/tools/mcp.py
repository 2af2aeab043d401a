"""Tools of MCP servers, which are programs that speak the Model Context Protocol on their standard input and output.

A server that dies, hangs or never starts is a status of the call; the next call starts it again.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from gruppo.tasks.imports import library
from gruppo.tools.base import Invalid, Limits, Tool, ToolError

WHY = "gruppo.tools.mcp speaks to servers with it"
PING = 2.0  # seconds in which a server that has failed once must show that it lives
CLOSING = 15.0  # seconds for servers to end: they are asked, then told, then killed


class Server:
    """A program that offers tools. `async with Server(["python", "server.py"]) as server: await server.tools()`.

    It inherits few environment variables; `env` adds others. `prefix` is put before the names of its tools.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        limits: Limits | None = None,
        start_seconds: float = 30.0,
        prefix: str = "",
    ) -> None:
        if isinstance(command, str) or not command:
            raise ValueError(f"command={command!r}: no server could be started. Give a list: ['python', 'server.py'].")
        self._mcp = library("mcp", WHY, extra="mcp")
        self._parameters = self._mcp.StdioServerParameters(
            command=command[0], args=list(command[1:]), env=dict(env) if env else None, cwd=cwd
        )
        self.command, self.limits, self.start_seconds, self.prefix = list(command), limits, start_seconds, prefix
        self.starts = 0
        self._live: _Connection | None = None
        self._old: set[asyncio.Task[None]] = set()  # connections that are ending
        self._starting = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def tools(self) -> list[Tool]:
        """The tools that it offers; a ValueError says why there are none."""
        try:
            async with asyncio.timeout(self.start_seconds):
                live, found, cursor = await self.connected(), [], None
                while True:
                    params = live.types.PaginatedRequestParams(cursor=cursor) if cursor else None
                    page = await live.session.list_tools(params=params)
                    found += page.tools
                    cursor = page.next_cursor
                    if not cursor:
                        break
        except TimeoutError:
            raise ValueError(
                f"{self} did not list its tools within {self.start_seconds:g} s. Start it by hand."
            ) from None
        except Exception as error:
            raise ValueError(f"{self} did not list its tools: {error}") from None
        return [RemoteTool(self, one, self.limits or Limits(seconds=30.0)) for one in found]

    async def connected(self) -> "_Connection":
        """The connection; a new one if there is none, or if the last call failed and the server no longer answers."""
        self._begin_in(asyncio.get_running_loop())
        async with self._starting:
            live = self._live
            if live is not None and live.suspect and not await live.answers():
                self._drop()
                live = None
            if live is None or live.task.done():
                self.starts += 1
                live = _Connection(self._mcp, self._parameters)
                try:
                    async with asyncio.timeout(self.start_seconds):
                        await live.ready()
                except BaseException:
                    self._end(live)
                    raise
                self._live = live
            return live

    def _begin_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """A connection belongs to its loop. One that was left, because a tool blocks it, ends it when it goes on."""
        if self._loop is not None and self._loop is not loop:
            if self._live is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._live.stop.set)
            self._live, self._starting = None, asyncio.Lock()
        self._loop = loop

    def _drop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            self._end(live)

    def _end(self, live: "_Connection") -> None:
        live.stop.set()
        self._old.add(live.task)
        live.task.add_done_callback(self._old.discard)

    async def close(self) -> None:
        """Ends the server, whatever it does."""
        self._begin_in(asyncio.get_running_loop())
        self._drop()
        if self._old:
            _, late = await asyncio.wait(self._old, timeout=CLOSING)
            for task in late:
                task.cancel()

    async def __aenter__(self) -> "Server":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __str__(self) -> str:
        return f"the MCP server {' '.join(self.command)}"


class _Connection:
    """A running server. One task opens and closes it, because the library's contexts belong to a task."""

    def __init__(self, mcp: Any, parameters: Any) -> None:
        self.mcp, self.types = mcp, mcp.types
        self.stop, self.suspect = asyncio.Event(), False
        self._opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._parameters = parameters
        self.task = asyncio.create_task(self._hold())

    async def ready(self) -> None:
        self.session = await asyncio.shield(self._opened)

    async def _hold(self) -> None:
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            try:
                client = self.mcp.stdio_client(self._parameters, errlog=log)
                async with client as (reading, writing), self.mcp.ClientSession(reading, writing) as session:
                    opening = asyncio.create_task(session.initialize())
                    stopping = asyncio.create_task(self.stop.wait())
                    await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    if opening.done():
                        opening.result()
                        self._opened.set_result(session)
                        await stopping
                    opening.cancel()
                    stopping.cancel()
            except Exception as error:  # it cannot be started, or it died
                if not self._opened.done():
                    self._opened.set_exception(RuntimeError(_why(error, log)))
                    self._opened.exception()  # seen, even if nobody waits any more
            finally:
                if not self._opened.done():
                    self._opened.cancel()

    async def answers(self) -> bool:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(PING):
                await self.session.send_ping()
            self.suspect = False
            return True
        return False


def _why(error: BaseException, log: Any) -> str:
    """The innermost error, and the last line that the server wrote."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    log.seek(0)
    last = log.read()[-2000:].strip().rpartition("\n")[2]
    return f"{error}{f' ({last})' if last else ''}"


class RemoteTool(Tool):
    """A tool of a server."""

    def __init__(self, server: Server, found: Any, limits: Limits) -> None:
        super().__init__(server.prefix + found.name, found.description or found.name, found.input_schema, limits)
        self.server, self.remote = server, found.name
        schemas = library("jsonschema", WHY, extra="mcp")
        cls = schemas.validators.validator_for(self.parameters, default=schemas.Draft202012Validator)
        # With an empty registry, a reference to the network is an error and not a download.
        self._validator = cls(self.parameters, registry=library("referencing", WHY, extra="mcp").Registry())

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        for error in self._validator.iter_errors(arguments):
            where = ".".join(str(part) for part in error.absolute_path)
            known = ", ".join(self.arguments) or "nothing"
            said = error.message if len(error.message) <= 300 else error.message[:297] + "..."
            raise Invalid(f"{f'the argument {where!r}: ' if where else ''}{said}. It takes: {known}.")
        return arguments

    async def invoke(self, arguments: dict[str, Any]) -> Any:
        live = await self.server.connected()
        try:
            result = await live.session.call_tool(self.remote, arguments)
        except BaseException:  # also if the limit has passed
            live.suspect = True
            raise
        text = "\n".join(getattr(part, "text", f"({part.type})") for part in result.content)
        if result.is_error:
            raise ToolError(text)
        return text
