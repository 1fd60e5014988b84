"""A real HTTP server on this machine that answers as it is told, and remembers what it was asked."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus

LARGEST_HEAD = 64 * 1024


@dataclass(frozen=True)
class Reply:
    """An answer as it goes over the wire."""

    status: int
    body: str = ""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """All of its bytes."""
        body = self.body.encode()
        headers = {"Content-Type": self.content_type, "Content-Length": str(len(body)), **self.headers}
        lines = [f"HTTP/1.1 {self.status} {_phrase(self.status)}", *(f"{name}: {headers[name]}" for name in headers)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@dataclass(frozen=True)
class Silence:
    """No answer at all; the connection stays open."""


@dataclass(frozen=True)
class Cut:
    """These bytes, then the end of the connection: a TCP reset, or an orderly close."""

    sent: bytes = b""
    reset: bool = False


Reaction = Reply | Silence | Cut


@dataclass(frozen=True)
class Asked:
    """A request as it came. Header names are in small letters."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class ScriptedHttp:
    """The server's side: what it was asked, in the order of arrival."""

    def __init__(self, react: Callable[[Asked, int], Reaction]) -> None:
        self.asked: list[Asked] = []
        self.url = ""
        self._react = react
        self._open: set[asyncio.Task[None] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        task = asyncio.current_task()
        self._open.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._one(reader, writer):
                    pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        asked = await _read(reader)
        self.asked.append(asked)
        reaction = self._react(asked, len(self.asked))
        if isinstance(reaction, Silence):
            await asyncio.Event().wait()
        if isinstance(reaction, Cut):
            writer.write(reaction.sent)
            if reaction.reset:
                # lingering for no time turns the close into a reset
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            return False
        if isinstance(reaction, Reply):
            writer.write(reaction.encoded())
            await writer.drain()
        return True

    async def end(self) -> None:
        """No connection stays."""
        tasks = [task for task in self._open if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def scripted_http(react: Callable[[Asked, int], Reaction]) -> AsyncIterator[ScriptedHttp]:
    """A server on a free port. `react`: from a request and its number (from 1) to what becomes of it."""
    script = ScriptedHttp(react)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0, limit=LARGEST_HEAD)
    script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield script
    finally:
        server.close()
        await script.end()


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ", 2)
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return Asked(method, target, headers, await _read_chunks(reader))
    return Asked(method, target, headers, await reader.readexactly(int(headers.get("content-length", 0))))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")
    return body


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
