"""As much of HTTP/1.1 as clients of chat completions use, on the standard library's asyncio; on this machine only."""

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import Context as Blank
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, urlsplit

HOST = "127.0.0.1"
LONGEST_HEAD, LONGEST_BODY = 1 << 16, 1 << 25  # bytes
IDLE = 300.0  # seconds that a connection is kept open without a request
LOOK = 0.25  # seconds between two looks whether the client is still there


class Refusal(Exception):
    """An error in the format of OpenAI: a status, a sentence, and a code for programs."""

    def __init__(self, status: int, message: str, code: str = "", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    @property
    def table(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code or None}}


@dataclass(frozen=True)
class Call:
    """A request as it came."""

    method: str
    path: str  # without the query
    headers: Mapping[str, str]  # names in small letters
    body: bytes = b""

    def json(self) -> dict[str, Any]:
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise Refusal(400, f"the body of the request is no JSON ({error}). Send a JSON object.") from None
        if not isinstance(found, dict):
            raise Refusal(400, f"the body of the request is a JSON {type(found).__name__}. Send an object.")
        return found


@dataclass(frozen=True)
class Reply:
    """JSON, or as a stream: one event for each of `events`."""

    table: Mapping[str, Any] = field(default_factory=dict[str, Any])
    events: tuple[Mapping[str, Any], ...] = ()


Handler = Callable[[Call], Awaitable[Reply]]


def is_loopback(host: str) -> bool:
    """Whether a name or number, with or without a port, means this machine."""
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.rpartition(":")[0] or name
    with suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost"


class Server:
    """Calls the handler for each request until it is closed. A client that goes away cancels its call."""

    def __init__(self, handler: Handler) -> None:
        self.handler, self.port = handler, 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> "Server":
        """Port 0: one that is free."""
        try:
            self._server = await asyncio.start_server(self._connected, HOST, port, limit=LONGEST_HEAD)
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"port {port} cannot be used ({error}), so nothing is served. Use another one, or 0: any that is free."
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # In a blank context: whoever started the server may be a caller of an engine, and its clients are not.
        task = asyncio.get_running_loop().create_task(self._served(reader, writer), context=Blank())
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, EOFError, TimeoutError):  # the client has gone away
            pass
        finally:
            with suppress(Exception):
                writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its reply; whether another may follow on this connection."""
        call, keep = None, False
        try:
            call = await read_call(reader, writer)
            keep = call.headers.get("connection", "").lower() != "close"
            refuse_strangers(call)
            reply = await _while_connected(self.handler(call), reader)
        except Refusal as refusal:
            writer.write(_message(refusal.status, refusal.table, keep))
        except (OSError, EOFError):  # the client has gone away
            raise
        except Exception as error:  # a fault of ours: the client is told, or it would only try again
            told = {"message": "a request to the endpoint failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)
            said = (
                f"the endpoint failed ({type(error).__name__}: {error}). This is a fault of gruppo: please report it."
            )
            writer.write(_message(500, Refusal(500, said).table, keep))
        else:
            writer.write(_stream(reply.events) if reply.events else _message(200, reply.table, keep))
            keep = keep and not reply.events
        await writer.drain()
        return keep


async def _while_connected(work: Awaitable[Reply], reader: asyncio.StreamReader) -> Reply:
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=LOOK))[0]:
            if reader.at_eof():
                raise EOFError
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


def refuse_strangers(call: Call) -> None:
    """A web page that a browser shows must not talk to us, also if its name leads to this machine."""
    host, origin = call.headers.get("host", ""), call.headers.get("origin", "")
    if not is_loopback(host):
        raise Refusal(403, f"Host {host!r} is not this machine, so the request is refused. Use http://{HOST}.")
    if origin and not is_loopback(urlsplit(origin).netloc):
        raise Refusal(403, f"Origin {origin!r} is another site, so the request is refused. Call from a program.")


async def read_call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Call:
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), IDLE)
    except asyncio.LimitOverrunError:
        raise Refusal(431, f"the head of the request is longer than {LONGEST_HEAD:,} bytes. Send less.") from None
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise Refusal(400, f"{first[:80]!r} is no request line of HTTP/1.1. Use http, not https.")
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await asyncio.wait_for(_body(reader, headers), IDLE)
    return Call(words[0].upper(), unquote(urlsplit(words[1]).path), headers, body)


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        parts = list[bytes]()
        while size := _length((await reader.readline()).split(b";")[0].decode("latin-1"), 16, sum(map(len, parts))):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        while (await reader.readline()).strip():  # trailers
            pass
        return b"".join(parts)
    return await reader.readexactly(_length(headers.get("content-length", "0"), 10, 0))


def _length(text: str, base: int, before: int) -> int:
    try:
        size = int(text.strip(), base)
    except ValueError:
        size = -1
    if size < 0:
        raise Refusal(400, f"{text.strip()[:40]!r} is no length of a body. Send Content-Length.")
    if before + size > LONGEST_BODY:
        raise Refusal(413, f"the body of the request is longer than {LONGEST_BODY:,} bytes. Send less.")
    return size


def _message(status: int, table: Mapping[str, Any], keep: bool) -> bytes:
    body = json.dumps(table).encode()
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    return head.encode() + body


def _stream(events: tuple[Mapping[str, Any], ...]) -> bytes:
    """Events of the server, up to the end of the connection."""
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nConnection: close\r\n\r\n"
    kinds = [f"event: {event['type']}\n" if "type" in event else "" for event in events]
    lines = [f"{kind}data: {json.dumps(event)}\n\n" for kind, event in zip(kinds, events, strict=True)]
    return (head + "".join(lines) + "data: [DONE]\n\n").encode()
