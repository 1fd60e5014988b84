"""How soon another goes on: after a drain, a kill, a control worker killed too, a workflow that fails."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bulklane import Client
from bulklane.starter.local import LocalStack
from tests.support.jobs import assert_balance, finished, run, scalar, submit, temporal_client
from tests.support.waiting import until, until_async

pytestmark = pytest.mark.anyio
HEARTBEAT_SECONDS = 2.0
CHUNK_SECONDS = 0.25


@dataclass(frozen=True)
class Epoch:
    """One attempt's chunks: when the server scheduled it, its first and its last commit; seconds since 1970."""

    scheduled: float
    first: float
    last: float


def epochs(engine: Engine, job_id: str) -> list[Epoch]:
    """The attempts that have committed a chunk, in their order."""
    statement = text(
        "SELECT epoch / 1e6 AS scheduled, extract(epoch FROM min(written_at)) AS first,"
        " extract(epoch FROM max(written_at)) AS last"
        " FROM bulklane.chunk JOIN bulklane.job USING (job_no) WHERE job_id = :j GROUP BY epoch ORDER BY epoch"
    )
    with engine.begin() as connection:
        rows = connection.execute(statement, {"j": job_id}).all()
    return [Epoch(float(row.scheduled), float(row.first), float(row.last)) for row in rows]


@pytest.fixture
def slow_chunks(flights_engine: Engine) -> Iterator[None]:
    """Each chunk takes a quarter of a second more, so that a walk lasts for some segments."""
    run(
        flights_engine,
        "CREATE OR REPLACE FUNCTION slow_chunk() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN PERFORM pg_sleep({CHUNK_SECONDS}); RETURN NEW; END $$",
    )
    run(
        flights_engine,
        "CREATE TRIGGER slow BEFORE INSERT ON bulklane.chunk FOR EACH ROW EXECUTE FUNCTION slow_chunk()",
    )
    yield
    run(flights_engine, "DROP TRIGGER slow ON bulklane.chunk")


def worker_of(local: LocalStack, engine: Engine, role: str) -> str:
    """The worker of a role that is in the middle of a chunk."""

    def busy() -> str:
        found = scalar(
            engine,
            "SELECT max(application_name) FROM pg_stat_activity WHERE application_name LIKE :r"
            " AND xact_start IS NOT NULL AND query LIKE '%bulklane.block%'",
            r=f"bulklane {role} %",
        )
        return str(found or "")

    pid = int(until(busy, what="a chunk").split(":")[-1].split("/")[0])
    return next(name for name, one in local.stack.workers.items() if one.pid == pid)


def start_again(local: LocalStack, role: str) -> str:
    """One more worker of the role, as a supervisor starts it."""
    name = f"{role}-{uuid4().hex[:6]}"
    local.start_worker(name, role)
    local.wait_until_serving([name])
    return name


async def test_after_sigterm_another_goes_on_at_once(
    local: LocalStack, client: Client, flights_engine: Engine, slow_chunks: None
) -> None:
    gaps: list[float] = []
    # the best of three: a machine that is busy with something else may hold up one of them
    while not gaps or (min(gaps) >= 0.2 and len(gaps) < 3):
        gaps.append(await drained_gap(local, client, flights_engine))
    assert min(gaps) < 0.2, f"the next segments were scheduled so many seconds after the last chunks: {gaps}"


async def drained_gap(local: LocalStack, client: Client, engine: Engine) -> float:
    """Seconds from the last chunk of a drained worker to the schedule of the next segment."""
    job_id = await submit(client, "FL", parallelism=1)
    until(lambda: epochs(engine, job_id), what="the first chunk")
    name = worker_of(local, engine, "bulk")
    drained = len(epochs(engine, job_id))
    await asyncio.to_thread(local.stack.stop_worker, name)
    later = until(lambda: epochs(engine, job_id)[drained:], what="a segment after the drain")[0]
    # a chunk's row is written before its delay: the chunk ends that much later
    gap = later.scheduled - (epochs(engine, job_id)[drained - 1].last + CHUNK_SECONDS)
    await asyncio.to_thread(start_again, local, "bulk")
    assert (await finished(client, job_id)).state == "completed"
    assert_balance(local, engine, job_id)
    return gap


async def test_after_sigkill_of_bulk_and_control_workers(
    local: LocalStack, client: Client, flights_engine: Engine, slow_chunks: None
) -> None:
    await asyncio.to_thread(start_again, local, "control")
    job_id = await submit(client, "FL", parallelism=1)
    until(lambda: epochs(flights_engine, job_id), what="the first chunk")
    control = await control_worker_of(local, job_id)
    bulk = worker_of(local, flights_engine, "bulk")
    before = len(epochs(flights_engine, job_id))
    killed = time.time()
    local.stack.workers[bulk].kill()
    local.stack.workers[control].kill()
    later = until(lambda: epochs(flights_engine, job_id)[before:], seconds=20, what="a later attempt")[0]
    await asyncio.to_thread(start_again, local, "bulk")
    began = later.first - killed
    assert began < HEARTBEAT_SECONDS + 1, f"the next attempt began {began:.2f} s after the kill"
    assert (await finished(client, job_id)).state == "completed"
    found = epochs(flights_engine, job_id)[before:]
    if len(found) > 1:
        gap = found[1].first - CHUNK_SECONDS - found[0].last
        assert gap < 2, f"the segment after that began {gap:.2f} s later"
    assert_balance(local, flights_engine, job_id)


async def control_worker_of(local: LocalStack, job_id: str) -> str:
    """The control worker that holds the workflow in its cache."""
    temporal = await temporal_client()
    history = await temporal.get_workflow_handle(job_id).fetch_history()
    identity = next(
        event.workflow_task_started_event_attributes.identity
        for event in reversed(history.events)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED
    )
    pid = int(identity.split(":")[-1].split("/")[0])
    return next(name for name, one in local.stack.workers.items() if one.pid == pid)


@workflow.defn(name="BulkJob", sandboxed=False)
class BadDeploy:
    """A release whose workflow code fails in every task."""

    @workflow.run
    async def run(self, *_: object) -> None:
        """Fail as a bug does: the task is tried for ever."""
        raise RuntimeError("a bug")


async def test_a_job_whose_workflow_fails_can_be_cancelled(
    local: LocalStack, client: Client, flights_engine: Engine
) -> None:
    """The workflow's tasks fail from the start: the job isn't opened, and is cancelled all the same."""
    name = next(name for name in local.stack.workers if name.startswith("small"))
    await asyncio.to_thread(local.stack.stop_worker, name)
    temporal = await temporal_client()
    try:
        async with Worker(
            temporal, task_queue="small", workflows=[BadDeploy], workflow_runner=UnsandboxedWorkflowRunner()
        ):
            job_id = await submit(client, "OO")

            async def failing() -> bool:
                history = await temporal.get_workflow_handle(job_id).fetch_history()
                kinds = [event.event_type for event in history.events]
                return EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED in kinds

            await until_async(failing, what="the workflow's task fails")
            asked = time.monotonic()
            await client.cancel(job_id, why="bad deploy")
            until(
                lambda: scalar(
                    flights_engine,
                    "SELECT count(*) = 0 FROM bulklane.lease JOIN bulklane.job USING (job_no) WHERE job_id = :j",
                    j=job_id,
                ),
                seconds=5,
                what="the lease is free",
            )
            assert time.monotonic() - asked < 5
            assert (await client.get(job_id)).state == "cancelled"
    finally:
        await asyncio.to_thread(start_again, local, "small")
