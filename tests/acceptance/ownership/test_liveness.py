"""A job that is silent, or whose surroundings are: nobody robs it, nothing is doubled, it goes on by itself."""

import asyncio
import time
from contextlib import ExitStack

import httpx
import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.starter.local import LocalStack
from tests.acceptance.ownership.conftest import TIMES
from tests.support.counting import make_items
from tests.support.faults import frozen, held_items, walker_of, without_workers
from tests.support.jobs import finished, run, temporal_client
from tests.support.ownership import (
    assert_owned,
    changes,
    count_up,
    in_state,
    latest_epoch,
    overtaken,
    refused,
)
from tests.support.waiting import until, until_async

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECONDS_OF_AN_OUTAGE = TIMES.suspect_after + 1
# the next try of a held channel, which comes by itself: after so long a hold it would be most of a minute away
SOONER = "UPDATE bulklane.channel_limit SET probe_at = clock_timestamp() WHERE held_since IS NOT NULL"


async def refused_for(client: Client, seconds: float, owned: dict[str, str]) -> None:
    """Competitors are refused all that time; `owned`: the owner by tenant."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for tenant, owner in owned.items():
            await refused(client, tenant, owner)
        await asyncio.sleep(0.2)


async def waits_of(job_id: str) -> str:
    """What the job says that it waits for."""
    temporal = await temporal_client()
    status = await temporal.get_workflow_handle(job_id).query("status")
    return " ".join(f"{stream}: {why}" for stream, why in status["waits"].items())


@pytest.mark.case("C56")
async def test_silent_for_ten_times_the_suspicion(local: LocalStack, client: Client, engine: Engine) -> None:
    """Paused, backing off, without a worker, and owing what its lease is held for."""
    paused, backing, slotless, owing = (make_items(engine, name, 90) for name in ("paused", "backing", "x", "owing"))
    slotless = make_items(engine, "slotless", 300)
    reminders = local.endpoints["reminders"].url
    with ExitStack() as stack:
        stack.enter_context(without_workers(local, "bulk-1", "bulk-2"))
        releases = [stack.enter_context(held_items(engine, one, 0.5)) for one in (paused, backing)]
        owned = {tenant: await count_up(client, tenant) for tenant in (paused, backing, slotless)}
        await client.pause(owned[paused])
        await in_state(client, owned[paused], "paused")
        httpx.put(f"{reminders}/faults", json=[{"kind": "unauthorized"}], trust_env=False).raise_for_status()
        owned[owing] = await count_up(client, owing, "count_up_holding")
        await until_async(lambda: waits_of(owned[owing]), what="the channel is held")
        await refused_for(client, 10 * TIMES.suspect_after, owned)
        assert "paused" in await waits_of(owned[paused])
        httpx.delete(f"{reminders}/faults", trust_env=False).raise_for_status()
        run(engine, SOONER)
        for release in releases:
            release()
    for job_id in owned.values():
        await client.resume(job_id)
        assert (await finished(client, job_id)).state == "completed"
        assert_owned(local, engine, job_id)


async def test_the_control_loop_stopped_alone(local: LocalStack, client: Client, engine: Engine) -> None:
    """The workflow of a small job runs in the small worker, so only the loop is missing."""
    tenant = make_items(engine, "loopless", 100, pause=0.1)
    with frozen(local.stack.workers["control"]):
        job_id = await count_up(client, tenant)
        await refused_for(client, SECONDS_OF_AN_OUTAGE, {tenant: job_id})
    assert (await finished(client, job_id)).state == "completed"
    assert_owned(local, engine, job_id)


async def test_heartbeats_stopped_alone(local: LocalStack, client: Client, engine: Engine) -> None:
    tenant = make_items(engine, "beatless", 1_500, pause=0.005)
    job_id = await count_up(client, tenant)
    until(lambda: changes(engine, tenant) > 0, what="it walks")
    victim = await walker_of(local, job_id)
    with frozen(victim):
        epoch = latest_epoch(engine, job_id)
        overtaken(engine, job_id, epoch)
        await refused(client, tenant, job_id)
    assert (await finished(client, job_id)).changed == 1_500
    assert_owned(local, engine, job_id)


async def test_temporal_away(local: LocalStack, client: Client, engine: Engine) -> None:
    tenant = make_items(engine, "temporal-away", 1_500, pause=0.005)
    job_id = await count_up(client, tenant)
    until(lambda: changes(engine, tenant) > 0, what="it walks")
    with local.stack.outage("temporal"):
        await refused_for(client, SECONDS_OF_AN_OUTAGE, {tenant: job_id})
    assert (await finished(client, job_id)).changed == 1_500
    assert_owned(local, engine, job_id)


async def test_the_database_away(local: LocalStack, client: Client, engine: Engine) -> None:
    tenant = make_items(engine, "database-away", 1_500, pause=0.005)
    job_id = await count_up(client, tenant)
    until(lambda: changes(engine, tenant) > 0, what="it walks")
    with local.stack.outage("postgres"):
        await asyncio.sleep(10)
    await refused(client, tenant, job_id)
    assert (await finished(client, job_id)).changed == 1_500
    assert_owned(local, engine, job_id)
