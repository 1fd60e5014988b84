"""Trouble of a channel or a tenant: kills, holds, blocks and hangs; others go on."""

import asyncio
import json
import time
from collections.abc import Callable
from datetime import datetime
from uuid import uuid4

import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.starter.local import LocalStack
from tests.acceptance.limits.conftest import Workers
from tests.support.arrivals import arrivals, in_parts
from tests.support.calling import Ledger
from tests.support.counting import make_items
from tests.support.faults import lines_of_logs
from tests.support.jobs import run, scalar, temporal_client
from tests.support.waiting import until_async

Record = Callable[[str, object], None]
pytestmark = pytest.mark.anyio

CONCURRENCY = 10


@pytest.mark.slow
@pytest.mark.case("C52")
async def test_a_kill_repeats_at_most_the_calls_in_flight(
    local: LocalStack, client: Client, engine: Engine, slow: Ledger, record_property: Record
) -> None:
    """5,000 calls of 20 ms, the worker killed again and again: the same keys, each applied once."""
    job_id = (await in_parts(client, "call_slow", make_items(engine, "killed", 5000), 1))[0]
    kills, name = 0, "effects-slow"
    while True:
        seen = len(slow.calls(job_id))

        async def going(seen: int = seen) -> bool:
            return (await client.get(job_id)).over or len(slow.calls(job_id)) > seen + 1000

        await until_async(going, 60, what="calls are made")
        if (await client.get(job_id)).over:
            break
        local.stack.workers[name].kill()
        kills, name = kills + 1, f"slow-{uuid4().hex[:6]}"
        local.start_worker(name, "effects:slow")
    status = await client.get(job_id)
    calls = slow.calls(job_id)
    repeats = len(calls) - len({call["key"] for call in calls})
    record_property("repeats", f"{repeats} after {kills} kills")
    assert status.state == "completed"
    assert set(slow.applied(job_id).values()) == {1}
    assert len(slow.applied(job_id)) == 5000
    assert kills >= 3
    assert repeats <= kills * CONCURRENCY
    assert scalar(engine, "SELECT count(*) FROM bulklane.delivery WHERE generation > 1") == 0


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
@pytest.mark.parametrize("trouble", ["blocked", "hanging"])
async def test_one_tenants_trouble_leaves_others_their_rate(
    client: Client, engine: Engine, limited: Ledger, workers: Workers, record_property: Record, trouble: str
) -> None:
    """A rate of 60/s for two tenants: the healthy one alone, then beside eight jobs of one in trouble."""
    with workers("limited", 2, rate=60, concurrency=20, tenant_concurrency=10):
        alone = (await in_parts(client, "call_limited", make_items(engine, "alone", 600), 1))[0]
        assert (await client.wait(alone, seconds=60)).state == "completed"
        tenant = make_items(engine, "troubled", 800)
        kinds = {
            "blocked": {"kind": "rate_limit", "retry_after": 60},
            "hanging": {"kind": "apply_then_hang", "seconds": 20},
        }
        prefix = f"{tenant}-job"
        limited.misbehave({**kinds[trouble], "key_prefix": prefix})
        troubled = []
        for part in range(8):
            ids = [str(item) for item in range(int(tenant.split("-")[1]) + part, int(tenant.split("-")[1]) + 800, 8)]
            submitted = await client.submit(
                "call_limited", tenant=tenant, selection={"ids": ids}, parameters={"part": part},
                job_id=f"{prefix}-{part}",
            )  # fmt: skip
            troubled.append(submitted.job_id)

        async def in_trouble() -> bool:
            return len(limited.calls(prefix)) >= 8

        await until_async(in_trouble, 30, what="calls of the tenant in trouble")
        beside = (await in_parts(client, "call_limited", make_items(engine, "beside", 600), 1))[0]
        assert (await client.wait(beside, seconds=60)).state == "completed"
        limited.behave()
        for job in troubled:
            await client.cancel(job)
        run(engine, "UPDATE bulklane.channel_limit SET blocked_until = NULL")
    rates = [600 / arrivals(limited.calls(f"{job}/")).times[-1] for job in (alone, beside)]
    record_property("rates", rates)
    assert rates[1] >= 0.8 * rates[0]


@pytest.mark.slow
async def test_sixty_thousand_calls_at_ten_a_second_are_a_short_history(
    client: Client, engine: Engine, limited: Ledger, workers: Workers, record_property: Record
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
    record_property("events", f"{len(history.events)}, {deliveries} deliveries")
    assert deliveries >= 20
    assert len(history.events) < 300


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
    client: Client, engine: Engine, limited: Ledger, record_property: Record
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
    record_property("delays", delays)
    # the 100 ms are for a quiet machine, and measured by `python -m benchmarks.effects`
    assert delays[len(delays) // 2] < 0.3


def _stamp(ledger: Ledger, job: str) -> float:
    return datetime.fromisoformat(ledger.calls(job)[0]["time"]).timestamp()
