"""The whole job on real parts: ways in, what the operator sees, faults in the middle."""

import pytest
from sqlalchemy import Engine
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from bulklane import Client, Conflict
from bulklane.starter.local import LocalStack
from tests.support.jobs import assert_balance, finished, scalar, submit, temporal_client
from tests.support.waiting import until_async

pytestmark = pytest.mark.anyio


async def test_a_small_job_goes_through_the_small_lane(
    local: LocalStack, client: Client, flights_engine: Engine
) -> None:
    job_id = await submit(client, "OO")
    status = await finished(client, job_id)
    assert (status.state, status.lane, status.total, status.changed) == ("completed", "small", 32, 32)
    assert_balance(local, flights_engine, job_id)


@pytest.mark.case("C42")
async def test_ids_are_folded_and_strangers_not_found(
    local: LocalStack, client: Client, flights_engine: Engine
) -> None:
    own = str(scalar(flights_engine, "SELECT min(flight_id) FROM flights WHERE carrier = 'OO'"))
    foreign = str(scalar(flights_engine, "SELECT min(flight_id) FROM flights WHERE carrier = 'UA'"))
    job_id = await submit(client, "OO", {"ids": [own, int(own), foreign, 9223372036854775807]})
    status = await finished(client, job_id)
    assert (status.total, status.duplicates, status.changed, status.not_found) == (3, 1, 1, 2)
    assert_balance(local, flights_engine, job_id)


async def test_a_second_job_is_refused_with_the_holder(client: Client) -> None:
    job_id = await submit(client, "AS")
    with pytest.raises(Conflict) as refused:
        await submit(client, "AS")
    assert refused.value.holder.job_id == job_id
    await finished(client, job_id)


async def test_the_same_key_gives_the_same_job(client: Client) -> None:
    first = await submit(client, "OO", idempotency_key="once")
    assert await submit(client, "OO", idempotency_key="once") == first
    await finished(client, first)
    assert await submit(client, "OO", idempotency_key="once") == first


async def test_a_filter_that_matches_nothing_is_a_success(client: Client) -> None:
    job_id = await submit(client, "OO", {"filter": {"field": "origin", "op": "=", "value": "ZZZ"}})
    status = await finished(client, job_id, seconds=20)
    assert (status.state, status.total, status.owed) == ("completed", 0, 0)


async def test_a_service_starts_the_workflow_itself(local: LocalStack, client: Client, flights_engine: Engine) -> None:
    temporal = await temporal_client()
    request = {
        "operation": "reschedule_flights",
        "tenant": "OO",
        "selection": {"all": True},
        "parameters": {"minutes": 5},
    }
    result = await temporal.execute_workflow("BulkJob", request, id="plain-temporal", task_queue="jobs")
    assert result == "completed"
    assert_balance(local, flights_engine, "plain-temporal")


@pytest.mark.parametrize(
    "arguments",
    [[], ["junk"], [{"operation": "no_such"}], [{"tenant": "OO"}, 2, 3], [{"operation": "reschedule_flights"}]],
)
async def test_a_start_that_cannot_be_read_ends_as_invalid(local: LocalStack, arguments: list[object]) -> None:
    temporal = await temporal_client()
    with pytest.raises(WorkflowFailureError) as failed:
        await temporal.execute_workflow("BulkJob", args=arguments, id="unreadable", task_queue="jobs")
    cause = failed.value.cause.__cause__
    assert isinstance(cause, ApplicationError)
    assert cause.type == "InvalidStart"


async def test_the_operator_finds_the_job_by_its_attributes(client: Client) -> None:
    job_id = await submit(client, "OO")
    await finished(client, job_id)
    temporal = await temporal_client()
    query = f"WorkflowId = '{job_id}' AND Tenant = 'OO' AND Operation = 'reschedule_flights' AND Lane = 'small'"

    async def found() -> bool:
        described = [one async for one in temporal.list_workflows(f"{query} AND State = 'completed'")]
        return len(described) == 1 and described[0].status is WorkflowExecutionStatus.COMPLETED

    await until_async(found, what="the search attributes are visible")
    described = await temporal.get_workflow_handle(job_id).describe()
    assert await described.static_summary() == "reschedule_flights for OO, small lane"


async def test_pause_resume_and_cancel(local: LocalStack, client: Client, flights_engine: Engine) -> None:
    job_id = await submit(client, "DL")
    paused = await client.pause(job_id, who="ann", why="look first")
    assert paused.state in ("pausing", "paused", "freezing", "accepted", "opening")

    async def is_paused() -> bool:
        return (await client.get(job_id)).state == "paused"

    await until_async(is_paused, what="paused")
    counted = scalar(flights_engine, "SELECT count(*) FROM flight_audit WHERE carrier = 'DL'")
    await client.resume(job_id)

    async def moved() -> bool:
        return (await client.get(job_id)).state != "paused"

    await until_async(moved, what="resumed")
    assert scalar(flights_engine, "SELECT count(*) FROM flight_audit WHERE carrier = 'DL'") >= counted
    cancelled = await client.cancel(job_id, why="enough")
    assert cancelled.state in ("cancelling", "cancelled")
    status = await finished(client, job_id, seconds=150)
    assert status.state == "cancelled"
    assert_balance(local, flights_engine, job_id)
