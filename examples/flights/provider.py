"""A passenger-notice provider: an HTTP service of its own, with idempotency keys, a ledger, and faults on demand.

    python -m examples.flights.provider --port 0 --data provider.sqlite

A request meets, in this order: the limit, the answer stored under its key, the first fault in the list that fires.
A stored answer hides the faults that would be stored; those on the way (hang, reset, 429, HTML, ...) still happen to
it, but apply nothing a second time. Faults and limit are forgotten at a restart, ledger and stored answers are not.
"""

import argparse
import asyncio
import hashlib
import json
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from examples.flights.provider_store import (
    FAULTS,
    Answer,
    Bucket,
    Entry,
    Fault,
    Limit,
    Reply,
    Script,
    Store,
    error_text,
    json_text,
)


class Provider:
    """Decides what becomes of a request. No step waits, so requests of one key never interleave."""

    def __init__(self, store: Store, key_lifetime: float | None, seed: int) -> None:
        self.store = store
        self.script = Script(seed)
        self.bucket: Bucket | None = None
        self._key_lifetime = key_lifetime

    def receive(self, key: str, body: bytes, record: str | None, at: float) -> Reply:
        """Handle a notice: apply it or not, store what has to be, and return what the caller gets."""
        entry = self.store.find(key) or Entry(key, record=record, first_at=at)
        entry.calls += 1
        entry.last_at = at
        body_sha256 = hashlib.sha256(body).hexdigest()
        entry.body_sha256 = entry.body_sha256 or body_sha256
        reply = self._decide(entry, body_sha256, at)
        self.store.save(entry)
        return reply

    def remembers(self, entry: Entry, at: float) -> bool:
        """Whether a repeat of this key gets the stored answer."""
        if entry.answered_at is None:
            return False
        return self._key_lifetime is None or at < entry.answered_at + self._key_lifetime

    def can_look_up(self, entry: Entry, at: float) -> bool:
        """Whether a look-up finds this key; without idempotency it is no more than a reference, and never expires."""
        return self.remembers(entry, at) or (self._key_lifetime == 0 and entry.answered_at is not None)

    def _decide(self, entry: Entry, body_sha256: str, at: float) -> Reply:
        if self.bucket and not self.bucket.take(time.monotonic()):
            return Fault(kind="rate_limit", retry_after=self.bucket.limit.retry_after).reply(None)
        replay = self.remembers(entry, at)
        if replay and entry.body_sha256 != body_sha256:
            return Reply(Answer(422, error_text("key_reused", "this key came with another body before")))
        fault = self.script.next_fault(entry.key, entry.calls, replay)
        if not replay:
            entry.body_sha256 = body_sha256
            self._apply(entry, fault, at)
        return fault.reply(entry.answer) if fault else Reply(entry.answer)

    def _apply(self, entry: Entry, fault: Fault | None, at: float) -> None:
        if fault is None or fault.applies:
            self.store.notices += 1
            entry.applied += 1
            entry.keep(Answer(201, json_text({"status": "sent", "notice": self.store.notices})), at)
        if fault and fault.is_stored and fault.answer:
            entry.keep(fault.answer, at)


class Handlers:
    """The HTTP side of the provider."""

    def __init__(self, provider: Provider, latency: float, offers_look_up: bool) -> None:
        self._provider = provider
        self._latency = latency
        self._offers_look_up = offers_look_up

    def application(self) -> web.Application:
        """Return the routes."""
        application = web.Application()
        application.add_routes(
            [
                web.post("/notices", self.post_notice),
                web.get("/notices/by-key/{key:.+}", self.look_up),
                web.get("/ledger", self.get_ledger),
                web.get("/calls", self.get_calls),
                web.put("/faults", self.put_faults),
                web.delete("/faults", self.delete_faults),
                web.put("/limit", self.put_limit),
                web.delete("/limit", self.delete_limit),
                web.get("/healthz", self.get_health),
            ]
        )
        return application

    async def post_notice(self, request: web.Request) -> web.StreamResponse:
        """Send a notice, once per key."""
        body = await request.read()
        at, key = time.time(), request.headers.get("Idempotency-Key")
        refusal, record = _read_notice(key, body)
        reply = Reply(refusal) if refusal or not key else self._provider.receive(key, body, record, at)
        self._provider.store.log("POST", at, key, reply.status, _peer(request))
        await self._provider.store.committed()
        await asyncio.sleep(self._latency + reply.silence)
        return _response(reply.answer) if reply.answer else _reset(request)

    async def look_up(self, request: web.Request) -> web.Response:
        """Say what became of a key."""
        if not self._offers_look_up:
            return _response(Answer(501, error_text("no_look_up", "this provider offers no look-up")))
        at, key = time.time(), request.match_info["key"]
        entry = self._provider.store.find(key)
        if entry and entry.answer and self._provider.can_look_up(entry, at):
            status = "applied" if entry.applied else "not_applied"
            told = {"status": status, "applied": entry.applied, "answer": json.loads(entry.answer.text)}
            answer = Answer(200, json_text(told))
        else:
            answer = Answer(404, error_text("unknown_key", "no notice is known under this key"))
        self._provider.store.log("GET", at, key, answer.status, _peer(request))
        await self._provider.store.committed()
        return _response(answer)

    async def get_ledger(self, request: web.Request) -> web.StreamResponse:
        """Stream what was applied, per key."""
        return await _stream(request, self._provider.store.ledger(request.query.get("prefix", "")))

    async def get_calls(self, request: web.Request) -> web.StreamResponse:
        """Stream the notices asked for, or with `method=GET` the look-ups."""
        prefix, method = request.query.get("prefix", ""), request.query.get("method", "POST")
        return await _stream(request, self._provider.store.calls(prefix, method))

    async def put_faults(self, request: web.Request) -> web.Response:
        """Put other faults in force; `times` counts from here."""
        try:
            faults = FAULTS.validate_json(await request.read())
        except ValidationError as error:
            return _response(Answer(400, error_text("bad_faults", str(error))))
        self._provider.script = Script(self._provider.script.seed, faults)
        return web.Response(status=204)

    async def delete_faults(self, _request: web.Request) -> web.Response:
        """Behave."""
        self._provider.script = Script(self._provider.script.seed)
        return web.Response(status=204)

    async def put_limit(self, request: web.Request) -> web.Response:
        """Put a limit in force, with a full bucket."""
        try:
            limit = Limit.model_validate_json(await request.read())
        except ValidationError as error:
            return _response(Answer(400, error_text("bad_limit", str(error))))
        self._provider.bucket = Bucket(limit, limit.burst, time.monotonic())
        return web.Response(status=204)

    async def delete_limit(self, _request: web.Request) -> web.Response:
        """Take everything that comes."""
        self._provider.bucket = None
        return web.Response(status=204)

    async def get_health(self, _request: web.Request) -> web.Response:
        """Say that the provider is there."""
        return _response(Answer(200, json_text({"status": "ok", "notices": self._provider.store.notices})))


def _read_notice(key: str | None, body: bytes) -> tuple[Answer | None, str | None]:
    if not key or not key.isprintable():
        return Answer(400, error_text("no_key", "the header Idempotency-Key is required")), None
    try:
        notice = json.loads(body)
    except ValueError:
        notice = None
    if not isinstance(notice, dict):
        return Answer(400, error_text("bad_body", "the body must be a JSON object")), None
    return None, json_text(notice["record"]) if "record" in notice else None


def _response(answer: Answer) -> web.Response:
    headers = {} if answer.retry_after is None else {"Retry-After": answer.retry_after}
    return web.Response(status=answer.status, text=answer.text, content_type=answer.content_type, headers=headers)


def _reset(request: web.Request) -> web.Response:
    if request.transport is not None:
        # Lingering for no time turns the close into a TCP reset, which no client takes for an empty answer.
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
    return web.Response()


async def _stream(request: web.Request, pages: Iterator[list[dict[str, Any]]]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    for page in pages:
        await response.write("".join(json_text(line) + "\n" for line in page).encode())
    await response.write_eof()
    return response


def _peer(request: web.Request) -> str:
    address = request.transport.get_extra_info("peername") if request.transport else None
    return f"{address[0]}:{address[1]}" if address else ""


async def serve(options: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    store = Store(options.data)
    handlers = Handlers(
        Provider(store, options.key_lifetime, options.seed), options.latency_ms / 1000, not options.no_look_up
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(handlers.application(), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, options.host, options.port, backlog=1024).start()
    sys.stdout.write(f"listening on http://{options.host}:{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await stop.wait()
    await runner.cleanup()
    store.close()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights.provider", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8090, help="0: any free port")
    parser.add_argument("--data", type=Path, required=True, help="the SQLite file that holds ledger and answers")
    parser.add_argument("--key-lifetime", type=float, help="seconds; 0: no idempotency at all; default: for ever")
    parser.add_argument("--no-look-up", action="store_true", help="answer look-ups with 501")
    parser.add_argument("--latency-ms", type=float, default=0, help="time between applying and answering")
    parser.add_argument("--seed", type=int, default=0, help="what `share` of the faults draws from")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
