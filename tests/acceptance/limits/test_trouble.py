"""Trouble of a channel or a tenant: kills, holds, blocks and hangs; others go on."""

import asyncio
import json
import time
from datetime import datetime

import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.starter.local import LocalStack
from tests.acceptance.limits.conftest import Workers
from tests.support.arrivals import in_parts, note
from tests.support.calling import Ledger
from tests.support.counting import make_items
from tests.support.faults import lines_of_logs
from tests.support.jobs import run, scalar, temporal_client
from tests.support.waiting import until_async

pytestmark = pytest.mark.anyio


async def test_a_refused_credential_holds_the_channel_for_all_jobs_with_one_alarm(
    local: LocalStack, client: Client, engine: Engine, limited: Ledger, workers: Workers
) -> None:
    limited.misbehave({"kind": "unauthorized"})
    with workers("limited", 2) as names:
        first = (await in_parts(client, "call_limited", make_items(engine, "held", 60), 1))[0]

        async def shown() -> bool:
            return "held since" in (await client.get(first)).waits.get("limited", "")

        await until_async(shown, 30, what="the hold is shown")
        before = len(limited.calls())
        others = await in_parts(client, "call_limited", make_items(engine, "behind", 60), 3)
        held = next(one for one in await client.channels() if one.name == "limited")
        assert held.held_since is not None
        await until_async(lambda: _waits_in_ui(others[-1]), 30, what="the hold is shown in Temporal")
        # nobody finds out by calls of their own
        assert len(limited.calls()) == before
        alarms = [json.loads(line) for line in lines_of_logs([local.stack.workers[n] for n in names], "channel held")]
        assert [(one["level"], one["channel"]) for one in alarms] == [("error", "limited")]
        limited.behave()
        resumed = time.monotonic()
        assert await client.resume_channel("limited")
        for job in (first, *others):
            assert (await client.wait(job, seconds=30)).state == "completed"
        assert time.monotonic() - resumed < 15
    assert set(limited.applied(first).values()) == {1}


async def _waits_in_ui(job_id: str) -> bool:
    temporal = await temporal_client()
    waits = await temporal.get_workflow_handle(job_id).query("status")
    return "is held since" in str(waits)


async def test_put_right_a_held_channel_goes_on_by_itself(client: Client, engine: Engine, limited: Ledger) -> None:
    limited.misbehave({"kind": "unauthorized", "status": 403})
    job = (await in_parts(client, "call_limited", make_items(engine, "righted", 30), 1))[0]

    async def held() -> bool:
        return bool((await client.get(job)).waits)

    await until_async(held, 30, what="held")
    limited.behave()
    run(engine, "UPDATE bulklane.channel_limit SET probe_at = clock_timestamp()")
    status = await client.wait(job, seconds=30)
    assert (status.state, status.waits, status.deliveries["limited"]) == ("completed", {}, {"done": 30})


@pytest.mark.slow
async def test_sixty_thousand_calls_at_ten_a_second_are_a_short_history(
    client: Client, engine: Engine, limited: Ledger, workers: Workers
) -> None:
    """Calls cut by 20, and both the budget of a delivery and the time of a call by 10 more: as many deliveries."""
    with workers("limited", 1, rate=100):
        job = (await in_parts(client, "call_limited", make_items(engine, "long", 3000), 1))[0]
        assert (await client.wait(job, seconds=100)).state == "completed"
    temporal = await temporal_client()
    history = await temporal.get_workflow_handle(job).fetch_history()
    deliveries = sum(
        event.HasField("activity_task_scheduled_event_attributes")
        and event.activity_task_scheduled_event_attributes.activity_type.name == "deliver"
        for event in history.events
    )
    note("events", f"{len(history.events)}, {deliveries} deliveries")
    assert deliveries >= 20
    assert len(history.events) < 300


@pytest.mark.slow
async def test_a_paused_job_starts_no_new_calls(
    client: Client, engine: Engine, limited: Ledger, workers: Workers
) -> None:
    with workers("limited", 1, rate=50):
        job = (await in_parts(client, "call_limited", make_items(engine, "paused", 400), 1))[0]

        async def going() -> bool:
            return len(limited.calls(job)) > 20

        await until_async(going, 30, what="calls")
        await client.pause(job)
        await asyncio.sleep(1.0)
        after = len(limited.calls(job))

        async def paused() -> bool:
            status = await client.get(job)
            return status.state == "paused" and status.calls_out == 0

        await until_async(paused, 20, what="paused, and no calls out")
        assert len(limited.calls(job)) == after
        await client.resume(job)
        assert (await client.wait(job, seconds=40)).state == "completed"


async def test_a_small_jobs_effects_leave_soon_after_its_commit(
    client: Client, engine: Engine, limited: Ledger
) -> None:
    delays = []
    for _ in range(15):
        job = (await in_parts(client, "call_limited", make_items(engine, "quick", 1), 1))[0]
        await client.wait(job, seconds=20)
        committed = scalar(
            engine,
            "SELECT extract(epoch FROM written_at)::float8 FROM bulklane.chunk JOIN bulklane.job USING (job_no)"
            " WHERE job_id = :j",
            j=job,
        )
        delays.append(_stamp(limited, job) - float(committed))
    delays.sort()
    note("delays", delays)
    # the 100 ms are for a quiet machine, and measured by `python -m benchmarks.effects`
    assert delays[len(delays) // 2] < 0.3


def _stamp(ledger: Ledger, job: str) -> float:
    return datetime.fromisoformat(ledger.calls(job)[0]["time"]).timestamp()
