"""Runs one worker process: connect, check, serve until SIGTERM or SIGINT, drain."""

import asyncio
import contextlib
import logging
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import stamina
import structlog
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError

from bulklane.contracts.search_attribute import SEARCH_ATTRIBUTES
from bulklane.workers.build import SPARE_CONNECTIONS, Parts, build_parts, build_workers, connect_senders
from bulklane.workers.control_loop import ControlLoop
from bulklane.workers.deleted_documents import DeletedDocuments
from bulklane.workers.health import health_endpoint, note_draining
from bulklane.workers.roles import Role
from bulklane.workers.settings import WorkerSettings

CONNECT_SECONDS = 60.0

log = structlog.get_logger("bulklane.workers")


async def serve(role: Role, settings: WorkerSettings) -> None:
    """Serve the role until told to stop. Raises what `build_parts` and `connect_senders` raise."""
    configure_log(settings.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # deliveries ask the database in threads: as many as there are connections
    loop.set_default_executor(ThreadPoolExecutor(settings.slots + SPARE_CONNECTIONS, thread_name_prefix="database"))
    parts = build_parts(role, settings)
    connect_senders(parts)
    try:
        await _serve(parts, stop)
    finally:
        for sender in parts.senders.values():
            await sender.close()
        for executor in parts.executors:
            executor.shutdown(wait=False, cancel_futures=True)
        parts.engine.dispose()


async def _serve(parts: Parts, stop: asyncio.Event) -> None:
    client = await connect_client()
    search_attributes = await has_search_attributes(client)
    if not search_attributes:
        log.warning("search attributes missing", needed=sorted(SEARCH_ATTRIBUTES))
    workers = build_workers(parts, client, search_attributes=search_attributes)
    async with contextlib.AsyncExitStack() as running:
        await running.enter_async_context(
            health_endpoint(parts.settings.health_port, role=parts.role.name, process=parts.process)
        )
        for worker in workers:
            await running.enter_async_context(worker)
        tasks = []
        if parts.role.control_loop:
            control_loop = ControlLoop(parts.engine, client, parts.timing, parts.process)
            tasks.append(asyncio.create_task(control_loop.run()))
        if (purging := DeletedDocuments.of(parts)) is not None:
            tasks.append(asyncio.create_task(purging.run()))
        log.info("serving", role=parts.role.name, process=parts.process)
        await _until_stopped(stop, tasks)
        log.info("draining", role=parts.role.name)
        note_draining(parts.role.name, parts.process)
        for task in tasks:
            task.cancel()
    log.info("stopped", role=parts.role.name)


async def _until_stopped(stop: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    waiting = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    for task in done - {waiting}:
        # the loop never ends by itself: what ended it is a bug, and the process with it
        await task


async def connect_client() -> Client:
    """A client by Temporal's environment configuration; tries for a minute, since servers start side by side."""
    options = ClientConfig.load_client_connect_config()
    async for attempt in stamina.retry_context(on=(RuntimeError, RPCError), timeout=CONNECT_SECONDS, attempts=None):
        with attempt:
            return await Client.connect(**options)
    raise AssertionError("unreachable")


async def has_search_attributes(client: Client) -> bool:
    """Whether the namespace knows ours; an unregistered one would hang every start that names it."""
    request = ListSearchAttributesRequest(namespace=client.namespace)
    try:
        answer = await client.operator_service.list_search_attributes(request)
    except RPCError:
        return False
    return set(answer.custom_attributes) >= set(SEARCH_ATTRIBUTES)


def configure_log(level: str) -> None:
    """JSON lines on standard error: ids, counters and states only."""
    logging.basicConfig(level=level, format="%(message)s")
    for chatty in ("httpx", "opensearch", "opensearchpy", "alembic"):
        # one line a call, with addresses: neither wanted nor safe in a log
        logging.getLogger(chatty).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping().get(level, logging.INFO)),
    )
