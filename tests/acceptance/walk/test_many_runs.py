"""A job of many runs: the server suggests a new one after 60 events, and people pause and resume all the while."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from sqlalchemy import Engine
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from bulklane import Client, JobStatus
from bulklane.starter.local import LocalStack
from tests.acceptance.walk.conftest import SHORT_HISTORY
from tests.support.histories import runs
from tests.support.jobs import finished, scalar, temporal_client
from tests.support.plain import make_plain
from tests.support.waiting import until_async

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
RECORDS = 3_000
PAUSE = 0.002
# what may still come while the barrier waits for two segments: of 60 events as of 4,096
SLACK = 60
NEVER = 1_000_000
HOLDER = "SELECT job_id FROM bulklane.lease JOIN bulklane.job USING (job_no) WHERE resource = :r"


async def start(client: Client, engine: Engine, tenant: str, count: int = RECORDS) -> str:
    """A job that takes some seconds, over two ranges."""
    await asyncio.to_thread(make_plain, engine, tenant, count, pause=PAUSE)
    submitted = await client.submit("count_plain", tenant=tenant, selection={"all": True}, parallelism=2)
    return submitted.job_id


@asynccontextmanager
async def watched(client: Client, engine: Engine, job_id: str, tenant: str) -> AsyncIterator[list[JobStatus]]:
    """Each status until the block ends, and that nobody else owned the records meanwhile."""
    seen: list[JobStatus] = []

    async def poll() -> None:
        async for status in client.watch(job_id, every=0.05):
            seen.append(status)
            owner = await asyncio.to_thread(scalar, engine, HOLDER, r=f"count_plain:{tenant}")
            assert owner == job_id or (await client.get(job_id)).released_at is not None

    polling = asyncio.create_task(poll())
    yield seen
    await polling


async def pause_and_resume(client: Client, job_id: str, every: float) -> int:
    """One verb after the other until the job is over; how many."""
    said = 0
    while not (await client.get(job_id)).over:
        await (client.resume if said % 2 else client.pause)(job_id, who="ann", why=f"verb {said}")
        said += 1
        await asyncio.sleep(every)
    return said


@pytest.mark.case("C40")
async def test_verbs_counters_and_lease_survive_every_new_run(
    local: LocalStack, client: Client, engine: Engine
) -> None:
    """appsmithorg/appsmith#36011: the history grew with the work, and the server ended the workflow."""
    job_id = await start(client, engine, "many")
    async with watched(client, engine, job_id, "many") as seen:
        said = await pause_and_resume(client, job_id, every=1.0)
        status = await finished(client, job_id, seconds=120)
    assert said >= 4
    assert (status.state, status.changed, status.total) == ("completed", RECORDS, RECORDS)
    processed = [one.processed for one in seen]
    assert processed == sorted(processed)
    assert processed[-1] == RECORDS
    assert {"paused", "walking"} <= {str(one.state) for one in seen}
    assert scalar(engine, "SELECT count(*) FROM plain WHERE tenant = 'many' AND n = 1") == RECORDS
    lengths = [len(history) for history in await runs(job_id, at_least=3)]
    assert len(lengths) >= 3
    assert max(lengths) < SHORT_HISTORY + SLACK


@pytest.mark.case("C40")
@pytest.mark.parametrize("events", [SHORT_HISTORY - 5, SHORT_HISTORY, NEVER], ids=["before", "at the barrier", "after"])
async def test_a_cancel_during_the_hand_over_is_obeyed(
    local: LocalStack, client: Client, engine: Engine, events: int
) -> None:
    """A signal alone: to the run that ends, to the one that begins, or to whichever is there."""
    tenant = f"cancel-{events}"
    job_id = await start(client, engine, tenant, 20_000)
    handle = (await temporal_client()).get_workflow_handle(job_id)
    first = ""

    async def there() -> bool:
        nonlocal first
        with suppress(RPCError):
            described = await handle.describe()
            first = first or described.run_id
            return described.run_id != first or described.history_length >= events
        return False

    await until_async(there, seconds=40, what="a hand-over")
    await handle.signal("cancel", args=["enough", "ann", f"cancel-{events}"])
    status = await finished(client, job_id, seconds=30)
    assert (status.state, status.wished_by, status.wished_why) == ("cancelled", "ann", "enough")
    assert 0 < status.changed < 20_000
    assert scalar(engine, "SELECT count(*) FROM plain WHERE tenant = :t AND n = 1", t=tenant) == status.changed
    assert scalar(engine, HOLDER, r=f"count_plain:{tenant}") is None

    async def closed() -> bool:
        return (await handle.describe()).status is not WorkflowExecutionStatus.RUNNING

    await until_async(closed, what="the workflow is closed too")
