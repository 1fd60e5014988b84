"""A workflow that ends without its job: terminated, out of time, failed by a bug."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.starter.local import LocalStack
from tests.support.counting import items_of, make_items
from tests.support.faults import held_items, inside_a_chunk, operator, without_workers
from tests.support.jobs import finished, temporal_client
from tests.support.ownership import assert_owned, changes, count_up, delivered, holder, in_state
from tests.support.waiting import until_async

pytestmark = pytest.mark.anyio

FREE_WITHIN = 60.0


@pytest.mark.slow
@pytest.mark.case("C01")
async def test_terminated_at_a_third(local: LocalStack, client: Client, engine: Engine) -> None:
    """instill-ai/model-backend#273: Terminate instead of Cancel, and nobody cleans up."""
    tenant = make_items(engine, "terminated", 10_000, pause=0.001)
    job_id = await count_up(client, tenant, parallelism=2)

    async def at_a_third() -> bool:
        return (await client.get(job_id)).processed >= 3_000

    await until_async(at_a_third, what="about 30 % is done")
    await operator("workflow", "terminate", "--workflow-id", job_id, "--reason", "instead of cancel")
    status = await in_state(client, job_id, "terminated", seconds=FREE_WITHIN)
    changed = changes(engine, tenant)
    assert holder(engine, tenant) is None
    await delivered(client, job_id)
    assert 3_000 <= changed == status.changed < 10_000
    assert changes(engine, tenant) == changed
    assert_owned(local, engine, job_id)
    second = await count_up(client, tenant)
    await in_state(client, second, "walking")
    await client.cancel(second)
    await finished(client, second)
    assert_owned(local, engine, second)
    assert_owned(local, engine, job_id)


@pytest.mark.slow
@pytest.mark.case("C01")
async def test_a_small_job_terminated(local: LocalStack, client: Client, engine: Engine) -> None:
    tenant = make_items(engine, "small-terminated", 50)
    with held_items(engine, tenant, 0.5):
        job_id = await count_up(client, tenant)
        inside_a_chunk(local, engine, "small")
        await operator("workflow", "terminate", "--workflow-id", job_id)
        await in_state(client, job_id, "terminated", seconds=FREE_WITHIN)
    await delivered(client, job_id)
    assert_owned(local, engine, job_id)
    await finished(client, await count_up(client, tenant))


@pytest.mark.slow
async def test_a_workflow_out_of_time(local: LocalStack, client: Client, engine: Engine) -> None:
    tenant = make_items(engine, "timed-out", 1_000)
    request = {"operation": "count_up", "tenant": tenant, "selection": {"all": True}}
    temporal = await temporal_client()
    with held_items(engine, tenant, 0.5):
        await temporal.start_workflow(
            "BulkJob", request, id=tenant, task_queue="jobs", execution_timeout=timedelta(seconds=4)
        )
        inside_a_chunk(local, engine)
        status = await in_state(client, tenant, "failed", seconds=FREE_WITHIN)
    assert "timed out" in status.reason
    assert holder(engine, tenant) is None
    await delivered(client, tenant)
    assert_owned(local, engine, tenant)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_a_workflow_broken_by_a_deploy(local: LocalStack, client: Client, engine: Engine, how: str) -> None:
    """The control worker's BulkJob has a bug after it opened the job; the control loop is the same."""
    tenant = make_items(engine, how, 1_000)
    with without_workers(local, "control"), broken_control_worker(local):
        job_id = await count_up(client, tenant, job_id=f"{how}-{tenant}", selection={"ids": [*items_of(tenant)]})
        await in_state(client, job_id, "walking", "failed")
        if how == "hangs":
            await client.cancel(job_id)
            await in_state(client, job_id, "cancelled", seconds=5)
        status = await in_state(client, job_id, "failed", "cancelled", seconds=FREE_WITHIN)
        assert holder(engine, tenant) is None
    assert (status.changed, status.owed) == (0, 0)
    assert_owned(local, engine, job_id)


@contextmanager
def broken_control_worker(local: LocalStack) -> Iterator[None]:
    """A control worker of a bad deploy."""
    environment = local.stack.workers["small"].environment | {"BULKLANE_PROCESS_NAME": "broken"}
    local.stack.start_worker("broken", [sys.executable, "-m", "tests.support.broken_worker"], environment)
    try:
        local.wait_until_serving(["broken"])
        yield
    finally:
        local.stack.stop_worker("broken")
