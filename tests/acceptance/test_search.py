"""Search selections on the whole stack: three tenants, effects owed to the index, a killed worker, plain Temporal."""

import asyncio

import pytest
from sqlalchemy import Engine
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from bulklane import Client
from bulklane.operations.request import InvalidRequest
from bulklane.starter.local import LocalStack
from tests.support.faults import without_workers
from tests.support.holding import held_at, waiting
from tests.support.jobs import assert_balance, finished, scalar, submit, temporal_client
from tests.support.waiting import until_async

pytestmark = pytest.mark.anyio
SMALL, MIDDLE, LARGE = "OO", "HA", "YV"
MATCHING = "SELECT count(*) FROM flights WHERE carrier = :tenant AND origin = 'LGA'"
FROM_LA_GUARDIA = {
    "search": {"bool": {"filter": [{"term": {"origin": "LGA"}}, {"exists": {"field": "flight_number"}}]}}
}
ANYWHERE = {"search": {"terms": {"origin": ["EWR", "JFK", "LGA"]}}}
IMPOSSIBLE = {"search": {"range": {"scheduled_departure": {"gte": "next week"}}}}


@pytest.fixture(scope="module")
def indexed(local: LocalStack) -> None:
    """The documents of three tenants, written by a job over each."""
    del local
    asyncio.run(index_all())


async def index_all() -> None:
    """Submit and wait."""
    async with Client.connect() as client:
        jobs = [await submit(client, tenant) for tenant in (SMALL, MIDDLE, LARGE)]
        for job_id in jobs:
            assert (await finished(client, job_id)).state == "completed"


@pytest.mark.usefixtures("indexed")
async def test_three_tenants_each_get_their_own_records_once(
    local: LocalStack, client: Client, flights_engine: Engine
) -> None:
    jobs = {tenant: await submit(client, tenant, FROM_LA_GUARDIA) for tenant in (SMALL, MIDDLE, LARGE)}
    for tenant, job_id in jobs.items():
        status = await finished(client, job_id)
        count = scalar(flights_engine, MATCHING, tenant=tenant)
        assert (status.state, status.total, status.changed, status.owed_at_freeze) == ("completed", count, count, 0)
        assert status.lane == ("small" if count <= 100 else "bulk")
        assert_balance(local, flights_engine, job_id)


@pytest.mark.usefixtures("indexed")
async def test_effects_that_the_index_still_lacks_are_reported(local: LocalStack, client: Client) -> None:
    with without_workers(local, "effects-flights_index"):
        before = await submit(client, SMALL)

        async def walked() -> bool:
            return (await client.get(before)).state == "delivering"

        await until_async(walked, what="the first job is walked")
        after = await submit(client, SMALL, ANYWHERE)

        async def selected() -> bool:
            return (await client.get(after)).total is not None

        await until_async(selected, what="the second is frozen")
        assert (await client.get(after)).owed_at_freeze == (await client.get(before)).total
    assert [(await finished(client, job_id)).state for job_id in (before, after)] == ["completed"] * 2


@pytest.mark.usefixtures("indexed")
async def test_a_worker_killed_in_the_middle_of_the_walk_is_made_up_for(
    local: LocalStack, client: Client, flights_engine: Engine
) -> None:
    with held_at(flights_engine, "in search"):
        job_id = await submit(client, LARGE, ANYWHERE)
        worker = waiting(local, flights_engine, "bulk")
        local.stack.workers[worker.name].kill()
    local.start_worker(worker.name, "bulk")
    local.wait_until_serving([worker.name])
    status = await finished(client, job_id)
    assert (status.state, status.total) == ("completed", scalar(flights_engine, _ALL, tenant=LARGE))
    assert scalar(flights_engine, "SELECT count(*) FROM bulklane.search_page") == 0
    assert_balance(local, flights_engine, job_id)


_ALL = "SELECT count(*) FROM flights WHERE carrier = :tenant"


@pytest.mark.usefixtures("indexed")
async def test_plain_temporal_starts_a_search_alike(local: LocalStack, flights_engine: Engine) -> None:
    temporal = await temporal_client()
    request = {"operation": "reschedule_flights", "tenant": SMALL, "parameters": {"minutes": 5}}
    asked = {**request, "selection": FROM_LA_GUARDIA}
    result = await temporal.execute_workflow("BulkJob", asked, id="plain-search", task_queue="jobs")
    assert result == "completed"
    assert scalar(flights_engine, "SELECT lane FROM bulklane.job WHERE job_id = 'plain-search'") == "small"
    assert_balance(local, flights_engine, "plain-search")
    for number, selection in enumerate((IMPOSSIBLE, {"search": {"term": {"tenant": "UA"}}})):
        with pytest.raises(WorkflowFailureError) as failed:
            await temporal.execute_workflow(
                "BulkJob", {**request, "selection": selection}, id=f"bad-search-{number}", task_queue="jobs"
            )
        cause = failed.value.cause.__cause__
        assert isinstance(cause, ApplicationError)
        assert cause.type == "InvalidStart"
        assert "selection.search" in cause.message


@pytest.mark.usefixtures("indexed")
async def test_a_query_that_only_the_engine_refuses_stores_nothing_or_ends_the_job(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="refuses the query"):
        await submit(client, SMALL, IMPOSSIBLE)
    client.endpoints = {}  # a service that isn't told where the index is
    status = await finished(client, await submit(client, SMALL, IMPOSSIBLE))
    assert status.state == "failed"
    assert status.reason.startswith("the search engine refuses the query")
    unmeasured = await finished(client, await submit(client, SMALL, FROM_LA_GUARDIA))
    assert (unmeasured.state, unmeasured.lane) == ("completed", "small")
