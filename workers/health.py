"""A worker process's health and metrics over HTTP; answered by the event loop, so that a blocked one shows."""

import contextlib
from collections.abc import AsyncIterator

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, Gauge, generate_latest

SERVING = Gauge("bulklane_worker_serving", "1 while the process takes work, 0 while it drains", ["role", "process"])


def note_draining(role: str, process: str) -> None:
    """The process takes no more work."""
    SERVING.labels(role, process).set(0)


@contextlib.asynccontextmanager
async def health_endpoint(port: int | None, *, role: str, process: str) -> AsyncIterator[None]:
    """`GET /healthz` and `GET /metrics` on the port, on all addresses; nothing where the port is None.

    Raises OSError where the port is taken.
    """
    if port is None:
        yield
        return
    SERVING.labels(role, process).set(1)

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"role": role, "process": process})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.add_routes([web.get("/healthz", healthz), web.get("/metrics", metrics)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()  # noqa: S104 (probes come from outside the container)
    try:
        yield
    finally:
        await runner.cleanup()
