"""300,000 UUIDs through client, database, workers and histories: nothing stalls, nothing is large, nothing twice."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.starter.local import LocalStack
from tests.support.histories import attempts, largest_event, runs
from tests.support.jobs import finished, scalar, temporal_client
from tests.support.plain import MOST, make_plain

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
IDS = 300_000
LARGEST_EVENT = 256 * 1024
HEALTH_SECONDS = 1.0
OF_TENANT = "SELECT count(*) FROM plain WHERE tenant = :t AND n = 1"


@asynccontextmanager
async def healthy(ports: dict[str, int]) -> AsyncIterator[list[float]]:
    """Every worker's health endpoint answers in time until the block ends; how long each answer took."""
    took: list[float] = []

    async def ask(port: int) -> None:
        async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
            while True:
                began = time.monotonic()
                (await http.get(f"http://127.0.0.1:{port}/healthz")).raise_for_status()
                took.append(time.monotonic() - began)
                await asyncio.sleep(0.05)

    asking = [asyncio.create_task(ask(port)) for port in ports.values()]
    try:
        yield took
    finally:
        for task in asking:
            task.cancel()
        ended = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended
    assert max(took) < HEALTH_SECONDS


async def assert_small_and_first(job_id: str) -> None:
    """No event is large, and every activity ended in its first attempt."""
    for history in await runs(job_id):
        assert largest_event(history) < LARGEST_EVENT
        assert set(attempts(history)) == {1}


@pytest.mark.alone
@pytest.mark.case("C08")
@pytest.mark.case("C39")
async def test_a_job_of_300_000_uuids(
    local: LocalStack, client: Client, engine: Engine, health_ports: dict[str, int]
) -> None:
    """PostHog/posthog#39938: a long list stopped the heartbeats; PeerDB-io/peerdb#2041: it was over 2 MB."""
    ids = await asyncio.to_thread(make_plain, engine, "long", IDS)
    async with healthy(health_ports):
        submitted = await client.submit(
            "count_plain", tenant="long", selection={"ids": [str(one) for one in ids]}, parallelism=2
        )
        status = await finished(client, submitted.job_id)
    assert (status.state, status.changed) == ("completed", IDS)
    assert scalar(engine, OF_TENANT, t="long") == IDS
    await assert_small_and_first(submitted.job_id)


@pytest.mark.case("C39")
async def test_300_000_uuids_that_nobody_has(local: LocalStack, client: Client, engine: Engine) -> None:
    """As many outcomes as ids; neither answers nor histories hold them."""
    absent = [f"{number:032x}" for number in range(IDS)]
    submitted = await client.submit("count_plain", tenant="nobody", selection={"ids": absent})
    status = await finished(client, submitted.job_id)
    assert (status.state, status.not_found) == ("completed", IDS)
    await assert_small_and_first(submitted.job_id)


@pytest.mark.case("C39")
async def test_records_that_all_fail(local: LocalStack, client: Client, engine: Engine) -> None:
    await asyncio.to_thread(make_plain, engine, "failing", IDS, n=MOST - 1)
    submitted = await client.submit("count_plain", tenant="failing", selection={"all": True})
    status = await finished(client, submitted.job_id, seconds=180)
    assert (status.state, status.failed) == ("completed_with_failures", IDS)
    for history in await runs(submitted.job_id):
        assert largest_event(history) < 16 * 1024


@pytest.mark.alone
@pytest.mark.case("C08")
async def test_the_longest_list_that_fits_a_start(
    local: LocalStack, client: Client, engine: Engine, health_ports: dict[str, int]
) -> None:
    """A service starts the workflow itself: it is the worker that reads the list."""
    ids = await asyncio.to_thread(make_plain, engine, "direct", 45_000)
    request = {"operation": "count_plain", "tenant": "direct", "selection": {"ids": [str(one) for one in ids]}}
    temporal = await temporal_client()
    async with healthy(health_ports):
        result = await temporal.execute_workflow("BulkJob", request, id="direct", task_queue="jobs")
    assert result == "completed"
    assert scalar(engine, OF_TENANT, t="direct") == len(ids)
    for history in await runs("direct"):
        assert set(attempts(history)) == {1}
