"""A mail server on this machine that answers each step as it is told, and remembers the messages."""

import asyncio
import base64
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

SILENCE, CLOSE, RESET = "silence", "close", "reset"
GREETING, LOGIN, SENDER, RECIPIENT, DATA, MESSAGE = "greeting", "AUTH", "MAIL", "RCPT", "DATA", "message"
_GOOD = {
    GREETING: "220 conformance ESMTP",
    LOGIN: "235 2.7.0 accepted",
    SENDER: "250 OK",
    RECIPIENT: "250 OK",
    DATA: "354 go on",
    MESSAGE: "250 OK",
}


class ScriptedSmtp:
    """The server's side. `answers`: by step, a reply, or SILENCE, CLOSE or RESET; else the step goes well."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self.messages: list[bytes] = []
        self.port = 0
        self._answers = {**_GOOD, **answers}
        self._open: set[asyncio.Task[None] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        task = asyncio.current_task()
        self._open.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                if await self._say(writer, GREETING):
                    while await self._command(reader, writer):
                        pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _command(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line = (await reader.readuntil(b"\n")).decode("latin-1").strip()
        verb = line[:4].upper()
        match verb:
            case "EHLO":
                writer.write(b"250-conformance\r\n250-AUTH PLAIN LOGIN\r\n250 8BITMIME\r\n")
            case "AUTH":
                return await self._login(reader, writer, line)
            case "MAIL" | "RCPT":
                return await self._say(writer, verb)
            case "DATA":
                return await self._data(reader, writer)
            case "QUIT":
                writer.write(b"221 bye\r\n")
                return False
            case _:
                writer.write(b"250 OK\r\n")
        return True

    async def _login(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: str) -> bool:
        # whatever is still to be said: PLAIN in one line or two, LOGIN in three
        given = len(line.split()) - 2
        asked = 1 if "PLAIN" in line.upper() else 2
        for word in ("Username:", "Password:")[given if asked == 2 else 1 + given :]:
            writer.write(b"334 " + base64.b64encode(word.encode()) + b"\r\n")
            await reader.readuntil(b"\n")
        return await self._say(writer, LOGIN)

    async def _data(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if not await self._say(writer, DATA):
            return False
        if not self._answers[DATA].startswith("354"):
            return True
        self.messages.append(await reader.readuntil(b"\r\n.\r\n"))
        return await self._say(writer, MESSAGE)

    async def _say(self, writer: asyncio.StreamWriter, step: str) -> bool:
        answer = self._answers[step]
        if answer == SILENCE:
            await asyncio.Event().wait()
        if answer == RESET:
            # lingering for no time turns the close into a reset
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        if answer in (CLOSE, RESET):
            return False
        writer.write(answer.encode() + b"\r\n")
        await writer.drain()
        return True

    async def end(self) -> None:
        """No connection stays."""
        tasks = [task for task in self._open if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def scripted_smtp(answers: Mapping[str, str]) -> AsyncIterator[ScriptedSmtp]:
    """A server on a free port."""
    script = ScriptedSmtp(answers)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.port = server.sockets[0].getsockname()[1]
    try:
        yield script
    finally:
        server.close()
        await script.end()
