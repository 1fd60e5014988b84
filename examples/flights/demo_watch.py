"""What the demo looks at from outside: the database's sessions, Temporal's attempts and histories, memory."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from sqlalchemy import Engine, text
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHistory
from temporalio.envconfig import ClientConfig

from examples.flights.dataset import read_flights

MEGABYTE = 1024 * 1024


@dataclass(frozen=True)
class BulkBackend:
    """A transaction of a bulk worker: which, how old in seconds, and of which process."""

    transaction: str
    seconds: float
    worker_pid: int


_BACKENDS = text(
    """SELECT pid::text || ' ' || xact_start AS transaction,
              extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds,
              application_name
       FROM pg_stat_activity
       WHERE application_name LIKE 'bulklane bulk %' AND xact_start IS NOT NULL AND query LIKE '%bulklane.block%'
         AND wait_event_type = 'Lock'"""
)
_FIRST_COMMIT = text(
    """SELECT extract(epoch FROM min(chunk.written_at) - job.accepted_at)::float8
       FROM bulklane.job JOIN bulklane.chunk USING (job_no) WHERE job_id = :job_id GROUP BY job.accepted_at"""
)
_HOLD = text("SELECT 1 FROM flights WHERE flight_id = :flight_id FOR UPDATE")


def bulk_backends(engine: Engine) -> list[BulkBackend]:
    """The bulk workers' sessions that are in the middle of a chunk, waiting for a row."""
    with engine.begin() as connection:
        rows = list(connection.execute(_BACKENDS))
    return [BulkBackend(row.transaction, row.seconds, _worker_pid(row.application_name)) for row in rows]


def _worker_pid(application_name: str) -> int:
    """`bulklane bulk NAME:PID/...`: the process that the session belongs to."""
    return int(application_name.split(":")[-1].split("/")[0])


def first_commit_seconds(engine: Engine, job_id: str) -> float | None:
    """From the job's acceptance to its first chunk, by the database's clock; None before."""
    with engine.begin() as connection:
        seconds: float | None = connection.execute(_FIRST_COMMIT, {"job_id": job_id}).scalar_one_or_none()
        return seconds


@contextmanager
def held_rows(engine: Engine, carrier: str, shares: Sequence[float]) -> Iterator[Callable[[], None]]:
    """Lock the carrier's flights at these shares of its list, until the given function is called."""
    flights = [flight.flight_id for flight in read_flights(carrier)]
    with engine.connect() as connection:
        for share in shares:
            connection.execute(_HOLD, {"flight_id": flights[int(len(flights) * share)]})
        yield connection.rollback


async def attempts_of(job_id: str) -> dict[str, int]:
    """By activity: the attempt that a worker has begun or that waits, as Temporal tells."""
    client = await Client.connect(**ClientConfig.load_client_connect_config())
    request = DescribeWorkflowExecutionRequest(
        namespace=client.namespace, execution=WorkflowExecution(workflow_id=job_id)
    )
    described = await client.workflow_service.describe_workflow_execution(request)
    return {
        f"segment {one.activity_id}": one.attempt
        for one in described.pending_activities
        if one.activity_type.name == "segment" and one.HasField("last_started_time")
    }


async def histories(job_ids: Sequence[str], folder: Path) -> dict[str, dict[str, int]]:
    """Save the histories to the folder; by job: how many events, and the largest payload in bytes."""
    client = await Client.connect(**ClientConfig.load_client_connect_config())
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    found = {}
    for job_id in job_ids:
        history = await client.get_workflow_handle(job_id).fetch_history()
        await asyncio.to_thread((folder / f"{job_id}.json").write_text, history.to_json())
        found[job_id] = {"events": len(history.events), "largest_payload_bytes": largest_payload(history)}
    return found


def largest_payload(history: WorkflowHistory) -> int:
    """The size of the largest payload in bytes, in the base64 form in which histories hold it."""
    return max((len(data) for data in _payloads(json.loads(history.to_json()))), default=0)


def _payloads(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("data"), str) and "metadata" in value:
            yield value["data"]
        for one in value.values():
            yield from _payloads(one)
    elif isinstance(value, list):
        for one in value:
            yield from _payloads(one)


class MemoryWatch:
    """The peak of the resident memory of this process and all below it, in MB."""

    def __init__(self, every: float = 0.5) -> None:
        self.peak_mb = 0
        self._every = every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._ended.wait(self._every):
            total = 0
            for process in [own, *own.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.peak_mb = max(self.peak_mb, total // MEGABYTE)
