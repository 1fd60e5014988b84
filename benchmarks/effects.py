"""Effects: recorded provider calls against the same client recording nothing; documents against raw `_bulk`.

    python -m benchmarks.effects [--rounds N] [--only 'CONTENDER;...']

Real PostgreSQL with fsync, the provider as a process of its own (20 ms a call), real OpenSearch. The delivery activity
runs as in a worker, without Temporal around it: one job's deliveries are one activity.
"""

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from uuid import uuid4

import typer
from sqlalchemy import Engine
from temporalio.testing import ActivityEnvironment

from benchmarks import effects_operation as made
from benchmarks import effects_stack
from benchmarks.measure import Ceiling, Goal, Rounds, console, report
from bulklane.activities.deliver import Deliver
from bulklane.activities.index_delivery import CHUNKS_AT_ONCE
from bulklane.contracts.effect import DeliverRequest
from bulklane.database.engine import connect_engine
from bulklane.database.job import Job
from bulklane.database.migrate import migrate
from bulklane.operations.channel import Endpoint
from bulklane.operations.operation import Registry
from bulklane.operations.registry import load_registry
from bulklane.operations.sender import Call, CallSender, Document, Done, IndexSender
from bulklane.operations.senders.index_line import cut, document_line
from bulklane.operations.senders.index_reader import create_index
from bulklane.operations.senders.search_index import MOST_BYTES, connect_search
from bulklane.stack import Stack, free_port
from bulklane.stack.processes import ChildProcess, child_environment
from bulklane.starter.settings import StackSettings
from tests.database.jobs import accepted, look, opened, walk

CALLS = {10: 1500, 50: 5000}
DOCUMENTS = 20_000
# as the delivery sends them: a chunk a request
REQUEST, AT_ONCE = 1000, CHUNKS_AT_ONCE
LATENCY_MS = 20
MOST_LATENCY_MS, MOST_UNRELATED = 100.0, 1.2
MODULE = made.__name__


class Bench:
    """The servers, and one contender after another."""

    def __init__(self, engine: Engine, provider_url: str, search_url: str) -> None:
        self._engine = engine
        self._provider, self._search = Endpoint(provider_url), Endpoint(search_url)
        self._tenants = itertools.count(1)

    def contenders(self) -> dict[str, Callable[[], float]]:
        """By name."""
        found: dict[str, Callable[[], float]] = {}
        for concurrency in CALLS:
            found[f"nothing recorded, {concurrency}"] = lambda at=concurrency: asyncio.run(self._bare(at))  # type: ignore[misc]
            found[f"recorded, {concurrency}"] = lambda at=concurrency: self._recorded(at)  # type: ignore[misc]
        found["raw _bulk"] = lambda: asyncio.run(self._raw())
        found["documents"] = self._documents
        return found

    async def _bare(self, concurrency: int) -> float:
        """As many senders, one call after another each."""
        sender = made.PROVIDER.connect(self._provider, concurrency)
        calls = iter([Call(f"bare/{uuid4()}", '{"record":1,"n":1}') for _ in range(CALLS[concurrency])])
        began = time.monotonic()

        async def send() -> None:
            for call in calls:
                assert isinstance(await sender.send(call), Done)

        await asyncio.gather(*(send() for _ in range(concurrency)))
        took = time.monotonic() - began
        await sender.close()
        return CALLS[concurrency] / took

    def _recorded(self, concurrency: int) -> float:
        registry = load_registry([MODULE])
        channel = replace(registry.channels["bench_calls"], concurrency=concurrency)
        registry = replace(registry, channels={**registry.channels, "bench_calls": channel})
        job = self._owing(registry, "bench_call", CALLS[concurrency])
        took = asyncio.run(
            self._deliver(registry, job, "bench_calls", lambda: made.PROVIDER.connect(self._provider, concurrency))
        )
        return CALLS[concurrency] / took

    async def _raw(self) -> float:
        """A good loop by hand: the same client and lines, bodies made before, as many requests at once; only errors
        are looked for."""
        documents = [Document(str(n), "raw", n + 1, {"n": n, "note": "x" * 100}) for n in range(DOCUMENTS)]
        lines = [document_line(one) for one in documents]
        bodies = iter([b"".join(run) for run in cut(lines, MOST_BYTES, REQUEST)])
        client = connect_search(self._search, made.INDEX.request_seconds)
        began = time.monotonic()

        async def send() -> None:
            for body in bodies:
                answer = await client.bulk(body=body, index=made.INDEX.alias, params={"require_alias": "true"})
                assert not answer["errors"], "raw _bulk failed"

        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
        took = time.monotonic() - began
        await client.close()
        return DOCUMENTS / took

    def _documents(self) -> float:
        registry = load_registry([MODULE])
        job = self._owing(registry, "bench_index", DOCUMENTS)
        took = asyncio.run(self._deliver(registry, job, "bench_index", lambda: made.INDEX.connect_index(self._search)))
        return DOCUMENTS / took

    def _owing(self, registry: Registry, operation: str, count: int) -> Job:
        """A job of a new tenant that has walked so many rows and is released."""
        tenant = f"tenant-{next(self._tenants)}"
        with self._engine.begin() as connection:
            connection.execute(made.FILL, {"of_tenant": tenant, "many": count})
        job = opened(
            self._engine, accepted(self._engine, registry=registry, small=DOCUMENTS, operation=operation, tenant=tenant)
        )
        walk(self._engine, job, registry=registry)
        return look(self._engine, job)

    async def _deliver(
        self, registry: Registry, job: Job, channel: str, connect: Callable[[], CallSender | IndexSender]
    ) -> float:
        sender = connect()
        activity = Deliver(self._engine, registry, {channel: sender}, "benchmark")
        began = time.monotonic()
        await ActivityEnvironment().run(activity.deliver, DeliverRequest(job.job_no, channel, 600.0))
        took = time.monotonic() - began
        await sender.close()
        return took


def main(rounds: int = 5, only: str = "") -> None:
    """`only`: a look at some contenders, separated by ";", or `stack`; nothing is written then."""
    # as a worker of a channel has it
    measured = Rounds()
    if only != "stack":
        _run(measured, rounds, only)
    if only and only != "stack":
        raise typer.Exit
    stack = effects_stack.measure(rounds)
    latency = Ceiling("latency", stack.latency, MOST_LATENCY_MS)
    unrelated = Ceiling("unrelated", stack.unrelated, MOST_UNRELATED)
    if only:
        console.print(latency, unrelated)
        raise typer.Exit
    calls = [measured.ratio(f"recorded, {at}", f"nothing recorded, {at}") for at in CALLS]
    index = Goal("index", measured.ratio("documents", "raw _bulk"), 0.9)
    facts = {
        "provider_ratios": dict(zip(CALLS, calls, strict=True)),
        "latency_ms": LATENCY_MS,
        "calls": CALLS,
        "documents": DOCUMENTS,
        "over_the_stack_ms": asdict(stack),
    }
    goals = [Goal("provider", min(calls), 0.95), index, latency, unrelated]
    met = report("effects", measured, "nothing recorded, 10", goals, facts)
    raise typer.Exit(0 if met else 1)


def _run(measured: Rounds, rounds: int, only: str) -> None:
    with tempfile.TemporaryDirectory(prefix="bl-", dir="/tmp") as name, ExitStack() as ending:
        folder = Path(name)
        folder.chmod(0o755)
        stack = Stack(folder, without=("temporal",), cache=StackSettings(folder=folder).cache)
        ending.enter_context(stack)
        stack.start_servers()
        addresses = stack.addresses()
        engine = connect_engine(addresses.database_url, role="benchmark", pool_size=8)
        ending.callback(engine.dispose)
        migrate(engine)
        made.metadata.create_all(engine)
        create_index(
            addresses.opensearch_url, made.INDEX.alias, {"n": {"type": "integer"}, "note": {"type": "keyword"}}
        )
        contenders = Bench(engine, _provider(folder, ending), addresses.opensearch_url).contenders()
        chosen = only.split(";") if only else list(contenders)
        # once before, and not counted: the first requests of a fresh index are several times as slow
        for one in set(chosen) & {"raw _bulk", "documents"}:
            contenders[one]()
        measured.run({one: contenders[one] for one in chosen}, rounds)


def _provider(folder: Path, ending: ExitStack) -> str:
    port = free_port()
    command = [sys.executable, "-m", "examples.flights.provider", "--port", str(port)]
    command += ["--data", str(folder / "provider.sqlite"), "--latency-ms", str(LATENCY_MS)]
    process = ChildProcess("provider", command, folder / "provider.log", child_environment())
    process.start()
    ending.callback(process.kill)
    while "listening" not in process.tail_of_log():
        time.sleep(0.1)
        if not process.running:
            raise RuntimeError(process.tail_of_log())
    return f"http://127.0.0.1:{port}"


if __name__ == "__main__":
    typer.run(main)
