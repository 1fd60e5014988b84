"""The end of a job: without its operation's code, and again when it is over; and who else is kept out."""

from contextlib import ExitStack

import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.contracts.start import start_options
from bulklane.starter.local import LocalStack
from tests.support import elsewhere
from tests.support.counting import make_items
from tests.support.faults import held_items, inside_a_chunk, operator, swapped, without_workers
from tests.support.jobs import finished, scalar, temporal_client
from tests.support.ownership import assert_owned, changes, count_up, delivered, holder, in_state, refused

pytestmark = pytest.mark.anyio

_JOB_ROW = "SELECT job::text FROM bulklane.job WHERE job_id = :j"


async def test_another_family_that_names_the_resource(local: LocalStack, client: Client, engine: Engine) -> None:
    tenant = make_items(engine, "two-families", 50)
    for first, second in (("count_up", "recount"), ("recount", "count_up_holding")):
        with held_items(engine, tenant, 0.0) as release:
            job_id = await count_up(client, tenant, first)
            await refused(client, tenant, job_id, second)
            release()
        await finished(client, job_id)
        if first == "count_up":
            assert_owned(local, engine, job_id)


async def test_the_workflow_started_again_when_the_job_is_over(
    local: LocalStack, client: Client, engine: Engine
) -> None:
    tenant = make_items(engine, "again", 50)
    job_id = await count_up(client, tenant)
    await finished(client, job_id)
    before = scalar(engine, _JOB_ROW, j=job_id).split(",")
    temporal = await temporal_client()
    await temporal.get_workflow_handle(job_id).result()
    handle = await temporal.start_workflow("BulkJob", **start_options(job_id, "count_up", tenant, "small", 3, 5.0))
    assert await handle.result() == "completed"
    history = await handle.fetch_history()
    steps = [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert steps == ["open_job"]
    differing = [
        pair for pair in zip(before, scalar(engine, _JOB_ROW, j=job_id).split(","), strict=True) if len(set(pair)) > 1
    ]
    assert len(differing) <= 2  # the stamp of the run, and when it was scheduled
    assert changes(engine, tenant) == 50
    assert_owned(local, engine, job_id)


@pytest.mark.slow
async def test_the_operation_is_no_longer_deployed(local: LocalStack, client: Client, engine: Engine) -> None:
    """Every worker but those of the effects has another team's operations only."""
    delivering, walking = make_items(engine, "delivering", 300), make_items(engine, "walking", 300)
    others = ("control", "small", "bulk-1", "bulk-2")
    with ExitStack() as effects, held_items(engine, walking, 0.0):
        effects.enter_context(without_workers(local, "effects-counts", "effects-notices"))
        first, second = await count_up(client, delivering), await count_up(client, walking)
        await in_state(client, first, "delivering")
        inside_a_chunk(local, engine)
        with swapped(local, *others, environment={"BULKLANE_OPERATIONS": elsewhere.MODULE}):
            await operator("workflow", "terminate", "--workflow-id", second)
            await in_state(client, second, "terminated", seconds=60)
            assert holder(engine, walking) is None
            effects.close()
            assert (await finished(client, first)).state == "completed"
    for job_id in (first, second):
        await delivered(client, job_id)
        assert_owned(local, engine, job_id)
