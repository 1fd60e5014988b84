"""Faults in the middle of the whole job: a worker killed inside a chunk, Temporal away, a reset."""

from uuid import uuid4

import pytest
from sqlalchemy import Engine
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from bulklane import Client
from bulklane.starter.local import LocalStack
from examples.flights.demo_watch import bulk_backends, held_rows
from tests.support.jobs import assert_balance, finished, scalar, submit, temporal_client
from tests.support.waiting import until, until_async

pytestmark = pytest.mark.anyio


async def test_a_bulk_worker_killed_inside_a_chunk(local: LocalStack, client: Client, flights_engine: Engine) -> None:
    with held_rows(flights_engine, "VX", shares=(0.4,)) as release:
        job_id = await submit(client, "VX", parallelism=1)
        victim = until(lambda: bulk_backends(flights_engine), what="a chunk waits for the held row")[0]
        epoch = scalar(
            flights_engine,
            "SELECT max(epoch) FROM bulklane.range JOIN bulklane.job USING (job_no) WHERE job_id = :j",
            j=job_id,
        )
        name = next(name for name, one in local.stack.workers.items() if one.pid == victim.worker_pid)
        local.stack.workers[name].kill()

        def overtaken() -> bool:
            later = scalar(
                flights_engine,
                "SELECT max(epoch) FROM bulklane.range JOIN bulklane.job USING (job_no) WHERE job_id = :j",
                j=job_id,
            )
            return bool(later > epoch)

        until(overtaken, seconds=20, what="a later attempt took the range")
        release()
    local.start_worker(f"bulk-{uuid4().hex[:6]}", "bulk")
    status = await finished(client, job_id)
    assert (status.state, status.changed) == ("completed", status.total)
    assert_balance(local, flights_engine, job_id)


async def test_temporal_is_away_during_submit(local: LocalStack, client: Client, flights_engine: Engine) -> None:
    with local.stack.outage("temporal"):
        job_id = await submit(client, "YV")
        assert (await client.get(job_id)).state == "accepted"
    status = await finished(client, job_id)
    assert status.state == "completed"
    assert_balance(local, flights_engine, job_id)


async def test_a_running_workflow_reset_to_its_first_task(
    local: LocalStack, client: Client, flights_engine: Engine
) -> None:
    with held_rows(flights_engine, "F9", shares=(0.5,)) as release:
        job_id = await submit(client, "F9")
        until(lambda: bulk_backends(flights_engine), what="a chunk waits for the held row")
        await reset_to_first_task(job_id)
        release()
    status = await finished(client, job_id)
    assert (status.state, status.changed) == ("completed", 685)
    assert_balance(local, flights_engine, job_id)
    assert (
        scalar(
            flights_engine,
            "SELECT count(*) FROM bulklane.delivery JOIN bulklane.job USING (job_no)"
            " WHERE job_id = :j AND generation > 1",
            j=job_id,
        )
        == 0
    )


async def test_a_terminated_job_is_settled_and_what_it_owes_is_delivered(
    local: LocalStack, client: Client, flights_engine: Engine
) -> None:
    with held_rows(flights_engine, "FL", shares=(0.6,)) as release:
        job_id = await submit(client, "FL", parallelism=1)
        until(lambda: bulk_backends(flights_engine), what="a chunk waits for the held row")
        temporal = await temporal_client()
        await temporal.get_workflow_handle(job_id).terminate("by mistake")

        async def terminated() -> bool:
            return (await client.get(job_id)).state == "terminated"

        await until_async(terminated, seconds=60, what="settled")
        release()

    async def delivered() -> bool:
        return (await client.get(job_id)).owed == 0

    await until_async(delivered, seconds=60, what="what was committed is delivered")
    status = await client.get(job_id)
    assert 0 < status.changed < (status.total or 0)
    assert_balance(local, flights_engine, job_id)
    again = await submit(client, "FL", {"ids": ["1"]})
    await finished(client, again)


async def reset_to_first_task(job_id: str) -> None:
    """As an operator does it: to the first workflow task, signals heard again."""
    temporal = await temporal_client()
    history = await temporal.get_workflow_handle(job_id).fetch_history()
    first = next(
        event.event_id for event in history.events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    )
    await temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=job_id),
            reason="test",
            workflow_task_finish_event_id=first,
            request_id=uuid4().hex,
        )
    )
