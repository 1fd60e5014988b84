"""A proxy before the search engine that holds bulk requests, limits their size, or answers for some of their items."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
from aiohttp import web

from bulklane.stack import free_port
from tests.support.waiting import until

# an item's status and error type instead of the engine's answer, by its document's id; None lets it through
Spoil = Callable[[str], tuple[int, str] | None]


class SearchProxy:
    """One proxy. `requests`: sizes of the bulk bodies that came; `too_large`: how many of them were turned away."""

    def __init__(self, target: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.limit: int | None = None
        self.spoil: Spoil | None = None
        self.requests: list[int] = []
        self.too_large = 0
        self.held = 0
        self.target = target
        self._let_through = threading.Event()
        self._let_through.set()

    def hold(self) -> None:
        """Keep bulk requests from now on; even when their sender has given up."""
        self._let_through.clear()

    def release(self) -> None:
        """Let go what is held."""
        self._let_through.set()

    async def handle(self, request: web.Request) -> web.Response:
        """One request."""
        body = await request.read()
        if not request.path.endswith("_bulk"):
            return await self._forward(request, body)
        self.requests.append(len(body))
        if self.limit is not None and len(body) > self.limit:
            self.too_large += 1
            return web.Response(status=413, text="<html>Request Entity Too Large</html>", content_type="text/html")
        if not self._let_through.is_set():
            # in a task of its own: a sender that gives up takes nothing back that is already under way
            return await asyncio.shield(asyncio.create_task(self._later(request, body)))
        return await (self._forward(request, body) if self.spoil is None else self._spoiled(request, body, self.spoil))

    async def _later(self, request: web.Request, body: bytes) -> web.Response:
        self.held += 1
        while not self._let_through.is_set():
            await asyncio.sleep(0.02)
        try:
            return await self._forward(request, body)
        finally:
            self.held -= 1

    async def _spoiled(self, request: web.Request, body: bytes, spoil: Spoil) -> web.Response:
        lines = body.split(b"\n")[:-1]
        pairs = [(lines[n], lines[n + 1]) for n in range(0, len(lines), 2)]
        verdicts = [spoil(json.loads(action)["index"]["_id"]) for action, _ in pairs]
        passed = b"".join(b"%s\n%s\n" % pair for pair, bad in zip(pairs, verdicts, strict=True) if bad is None)
        answered: Iterator[Any] = iter(())
        if passed:
            answered = iter(json.loads((await self._forward(request, passed)).body or b"")["items"])  # type: ignore[arg-type]
        items = [
            next(answered) if bad is None else {"index": {"status": bad[0], "error": {"type": bad[1]}}}
            for bad in verdicts
        ]
        return web.json_response({"took": 1, "errors": True, "items": items})

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name in ("Content-Type", "Accept")}
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, self.target + request.path_qs, data=body, headers=headers) as answer,
        ):
            return web.Response(
                status=answer.status, body=await answer.read(), content_type=answer.content_type, charset=None
            )


@contextmanager
def search_proxy(target: str) -> Iterator[SearchProxy]:
    """A running proxy before the engine at `target`."""
    proxy = SearchProxy(target)
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        application = web.Application(client_max_size=2**30)
        application.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(application, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", proxy.port).start()
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    until(ready.is_set, what="the proxy listens")
    try:
        yield proxy
    finally:
        proxy.release()
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
