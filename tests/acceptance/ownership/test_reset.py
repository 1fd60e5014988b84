"""What operators do in the Temporal UI: reset, batch reset, and reset and pause of activities."""

import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.starter.local import LocalStack
from tests.support.counting import make_items
from tests.support.faults import held_items, inside_a_chunk, operator, pending, reset_workflow
from tests.support.jobs import finished, temporal_client
from tests.support.ownership import (
    assert_owned,
    count_up,
    delivered,
    holder,
    in_state,
    latest_epoch,
    overtaken,
)
from tests.support.waiting import until_async

pytestmark = pytest.mark.anyio


@pytest.mark.case("C02")
@pytest.mark.parametrize(
    "where",
    ["first", pytest.param("middle", marks=pytest.mark.slow), pytest.param("last", marks=pytest.mark.slow)],
)
async def test_reset_twice_inside_a_chunk(local: LocalStack, client: Client, engine: Engine, where: str) -> None:
    """temporalio/temporal#3437: after a reset the activities run again, beside those of the run before."""
    tenant = make_items(engine, f"reset-{where}", 2_000)
    with held_items(engine, tenant, 0.7) as release:
        job_id = await count_up(client, tenant)
        inside_a_chunk(local, engine)
        for _ in range(2):
            epoch = latest_epoch(engine, job_id)
            await reset_workflow(job_id, where)
            overtaken(engine, job_id, epoch)
        release()
    status = await finished(client, job_id)
    assert (status.state, status.changed) == ("completed", 2_000)
    assert_owned(local, engine, job_id)


@pytest.mark.slow
@pytest.mark.case("C02")
async def test_batch_reset_by_query(local: LocalStack, client: Client, engine: Engine) -> None:
    tenants = [make_items(engine, f"batch-{number}", 500) for number in range(3)]
    jobs = [await count_up(client, tenant) for tenant in tenants]
    for job_id in jobs:
        await client.pause(job_id)
    query = " OR ".join(f"WorkflowId = '{job_id}'" for job_id in jobs)
    before = {job_id: await run_of(job_id) for job_id in jobs}

    async def all_visible() -> bool:
        return f"Total: {len(jobs)}" in await operator("workflow", "count", "--query", query)

    await until_async(all_visible, what="the jobs can be found")
    words = ["--type", "FirstWorkflowTask", "--reason", "outage", "--query", query, "--yes"]
    await operator("workflow", "reset", *words)
    for job_id in jobs:
        await until_async(lambda job_id=job_id: reset_since(job_id, before[job_id]), what="reset")  # type: ignore[misc]
        await client.resume(job_id)
    for job_id in jobs:
        assert (await finished(client, job_id)).changed == 500
        assert_owned(local, engine, job_id)


async def run_of(job_id: str) -> str:
    """The job's present run."""
    temporal = await temporal_client()
    return str((await temporal.get_workflow_handle(job_id).describe()).run_id)


async def reset_since(job_id: str, run_id: str) -> bool:
    """Whether another run is the present one."""
    return await run_of(job_id) != run_id


@pytest.mark.slow
@pytest.mark.case("C02")
@pytest.mark.parametrize("verbs", [["reset"], ["pause", "unpause"], ["pause", "reset"]], ids="-".join)
async def test_a_segment_by_the_operator(local: LocalStack, client: Client, engine: Engine, verbs: list[str]) -> None:
    tenant = make_items(engine, "-".join(verbs), 2_000)
    with held_items(engine, tenant, 0.7) as release:
        job_id = await count_up(client, tenant)
        inside_a_chunk(local, engine)
        epoch = latest_epoch(engine, job_id)
        await verbs_on(job_id, "segment", verbs)
        overtaken(engine, job_id, epoch)
        release()
    status = await finished(client, job_id)
    assert (status.state, status.changed) == ("completed", 2_000)
    assert_owned(local, engine, job_id)


@pytest.mark.slow
@pytest.mark.case("C02")
@pytest.mark.parametrize("verbs", [["reset"], ["pause", "unpause"], ["reset", "reset"]], ids="-".join)
async def test_a_delivery_by_the_operator(local: LocalStack, client: Client, engine: Engine, verbs: list[str]) -> None:
    tenant = make_items(engine, "deliver-" + "-".join(verbs), 3_000)
    # while a record is missing, the delivery can't be over between two verbs
    with held_items(engine, tenant, 0.9) as release:
        job_id = await count_up(client, tenant)
        await verbs_on(job_id, "deliver", verbs)
        release()
    status = await finished(client, job_id)
    assert (status.state, status.changed) == ("completed", 3_000)
    assert_owned(local, engine, job_id)


async def verbs_on(job_id: str, kind: str, verbs: list[str]) -> None:
    """Each verb on the activities of that kind, as soon as there are such; on the next ones where they just ended."""
    for verb in verbs:
        await until_async(lambda verb=verb: verb_on(job_id, kind, verb), what=f"{verb} a {kind}")  # type: ignore[misc]


async def verb_on(job_id: str, kind: str, verb: str) -> bool:
    """Whether there was an activity that took the verb."""
    taken = False
    for activity_id in await pending(job_id, kind):
        try:
            await operator("activity", verb, "--workflow-id", job_id, "--activity-id", activity_id)
        except AssertionError as error:
            if "Can't find pending activity" not in str(error):
                raise
        else:
            taken = True
    return taken


@pytest.mark.slow
@pytest.mark.case("C56")
@pytest.mark.parametrize("settled", [True, False], ids=["settled", "at-once"])
async def test_reset_after_the_end(local: LocalStack, client: Client, engine: Engine, settled: bool) -> None:
    """temporalio/temporal#10639: what ended meanwhile is not heard by the run after a reset."""
    tenant = make_items(engine, "over", 1_000, pause=0.002)
    with held_items(engine, tenant, 0.9) as release:
        job_id = await count_up(client, tenant)
        inside_a_chunk(local, engine)
        temporal = await temporal_client()
        await temporal.get_workflow_handle(job_id).terminate("by mistake")
        if settled:
            await in_state(client, job_id, "terminated", seconds=60)
        release()
    await reset_workflow(job_id, "first")
    status = await finished(client, job_id, seconds=120)
    assert await temporal.get_workflow_handle(job_id).result() == status.state
    assert (status.state == "terminated") is settled
    await delivered(client, job_id)
    assert holder(engine, tenant) is None
    assert_owned(local, engine, job_id)
