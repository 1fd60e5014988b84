"""The kill matrix: SIGKILL at each named point of a job's life; the balance is exact at each."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from bulklane import Client
from bulklane.starter.local import LocalStack
from examples.flights.demo_watch import held_rows
from tests.support.holding import Held, held_at, waiting
from tests.support.jobs import assert_balance, finished, scalar, submit, temporal_client
from tests.support.waiting import until, until_async

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
TENANT = "FL"
SUBMIT = """
import asyncio, sys
from bulklane import Client

async def main():
    async with Client.connect() as client:
        await client.submit("reschedule_flights", tenant=sys.argv[1], selection={"all": True},
                            parameters={"minutes": 15}, job_id=sys.argv[2])
        print("submitted", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def kill(local: LocalStack, held: Held) -> None:
    """SIGKILL, and another of the same role, as a supervisor starts it."""
    local.stack.workers[held.name].kill()
    role = held.name.split("-")[0]
    local.start_worker(f"{role}-{uuid4().hex[:6]}", role)


async def assert_done(local: LocalStack, client: Client, engine: Engine, job_id: str) -> None:
    """Completed, every record once, nothing left."""
    status = await finished(client, job_id, seconds=100)
    assert (status.state, status.changed) == ("completed", status.total)
    assert_balance(local, engine, job_id)


@contextmanager
def range_locked(engine: Engine, job_id: str) -> Iterator[None]:
    """Hold the job's range row: the next chunk waits at its gate."""
    with engine.begin() as connection:
        connection.execute(
            text("SELECT 1 FROM bulklane.range JOIN bulklane.job USING (job_no) WHERE job_id = :j FOR UPDATE OF range"),
            {"j": job_id},
        )
        yield


async def test_before_the_gate(local: LocalStack, client: Client, flights_engine: Engine) -> None:
    with held_rows(flights_engine, TENANT, shares=(0.6,)) as release:
        job_id = await submit(client, TENANT, parallelism=1)
        waiting(local, flights_engine, "bulk")
        with range_locked(flights_engine, job_id):
            release()
            kill(local, waiting(local, flights_engine, "bulk"))
    await assert_done(local, client, flights_engine, job_id)


@pytest.mark.case("C20")
@pytest.mark.parametrize("point", ["after apply", "before commit", "in freeze"])
async def test_in_the_bulk_worker(local: LocalStack, client: Client, flights_engine: Engine, point: str) -> None:
    with held_at(flights_engine, point):
        job_id = await submit(client, TENANT, parallelism=1)
        kill(local, waiting(local, flights_engine, "bulk"))
    await assert_done(local, client, flights_engine, job_id)


@pytest.mark.case("C20")
async def test_after_commit(local: LocalStack, client: Client, flights_engine: Engine) -> None:
    with held_rows(flights_engine, TENANT, shares=(0.9,)) as release:
        job_id = await submit(client, TENANT, parallelism=1)
        waiting(local, flights_engine, "bulk")
        with flights_engine.begin() as connection:
            # what a worker reads next after a chunk's commit is the wish
            connection.execute(text("LOCK TABLE bulklane.wish IN ACCESS EXCLUSIVE MODE"))
            release()
            kill(local, waiting(local, flights_engine, "bulk"))
    await assert_done(local, client, flights_engine, job_id)


@pytest.mark.parametrize("point", ["in release", "in close"])
async def test_in_the_control_worker(local: LocalStack, client: Client, flights_engine: Engine, point: str) -> None:
    with held_at(flights_engine, point):
        job_id = await submit(client, TENANT, parallelism=1)
        kill(local, waiting(local, flights_engine, "control", seconds=60))
    await assert_done(local, client, flights_engine, job_id)


async def test_between_the_commit_of_close_and_its_answer(
    local: LocalStack, client: Client, flights_engine: Engine
) -> None:
    server = local.stack.servers.temporal
    assert server is not None
    assert server.process is not None
    temporal_pid = server.process.pid
    assert temporal_pid is not None
    with held_at(flights_engine, "in close"):
        job_id = await submit(client, TENANT, parallelism=1)
        held = waiting(local, flights_engine, "control", seconds=60)
        os.kill(temporal_pid, signal.SIGSTOP)
    try:
        until(
            lambda: scalar(flights_engine, "SELECT over_at FROM bulklane.job WHERE job_id = :j", j=job_id),
            what="close has committed",
        )
        local.stack.workers[held.name].kill()
    finally:
        os.kill(temporal_pid, signal.SIGCONT)
    local.start_worker(f"control-{uuid4().hex[:6]}", "control")
    await assert_done(local, client, flights_engine, job_id)
    temporal = await temporal_client()

    async def closed() -> bool:
        described = await temporal.get_workflow_handle(job_id).describe()
        return described.status is not None and described.status.name == "COMPLETED"

    await until_async(closed, seconds=40, what="the workflow is closed too")


@pytest.fixture
async def submitter(local: LocalStack) -> AsyncIterator[list[subprocess.Popen[str]]]:
    """Processes of a service that submits; killed at the end."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start_submitter(job_id: str, **environment: str) -> subprocess.Popen[str]:
    """A service of its own, which submits and lives on."""
    command = [sys.executable, "-c", SUBMIT, TENANT, job_id]
    return subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)


async def test_before_dispatch(
    local: LocalStack, client: Client, flights_engine: Engine, submitter: list[subprocess.Popen[str]]
) -> None:
    job_id = f"before-dispatch-{uuid4().hex[:8]}"
    # an address at which nobody listens: accepted, and never started by its submitter
    process = start_submitter(job_id, TEMPORAL_ADDRESS="127.0.0.1:1")
    submitter.append(process)
    until(lambda: scalar(flights_engine, "SELECT 1 FROM bulklane.job WHERE job_id = :j", j=job_id), what="accepted")
    process.kill()
    await assert_done(local, client, flights_engine, job_id)


async def test_after_dispatch(
    local: LocalStack, client: Client, flights_engine: Engine, submitter: list[subprocess.Popen[str]]
) -> None:
    job_id = f"after-dispatch-{uuid4().hex[:8]}"
    process = start_submitter(job_id)
    submitter.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "submitted\n"
    process.kill()
    await assert_done(local, client, flights_engine, job_id)
