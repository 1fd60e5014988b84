"""A provider's rate, shared by four worker processes: used, not passed, and heeded when the provider says no."""

import asyncio
import itertools
from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from bulklane import Client
from tests.acceptance.limits.conftest import Workers
from tests.support.arrivals import Arrivals, arrivals, in_parts
from tests.support.calling import Ledger
from tests.support.counting import make_items

Record = Callable[[str, object], None]
pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def of_jobs(ledger: Ledger, jobs: list[str]) -> Arrivals:
    """What these jobs sent."""
    calls = [call for call in ledger.calls() if any(call["key"].startswith(f"{job}/") for job in jobs)]
    return arrivals(calls)


@pytest.mark.parametrize(("rate", "count", "burst"), [(10, 300, 5), (100, 2500, 10)])
async def test_the_allowed_rate_is_used_and_not_passed(
    client: Client,
    engine: Engine,
    limited: Ledger,
    workers: Workers,
    record_property: Record,
    rate: int,
    count: int,
    burst: int,
) -> None:
    """Four processes, eight jobs; goodput at least 95 % of the rate, less than 1 % answered with 429."""
    limited.limit(rate=rate, burst=burst, retry_after=1)
    with workers("limited", 4, rate=rate):
        jobs = await in_parts(client, "call_limited", make_items(engine, "steady", count), 8)
        for job in jobs:
            assert (await client.wait(job, seconds=120)).state == "completed"
    seen = of_jobs(limited, jobs)
    end = seen.times[-1]
    record_property("goodput", seen.rate(1, end - 1) / rate)
    record_property("429", seen.limited_share)
    assert seen.rate(1, end - 1) >= 0.95 * rate
    assert seen.limited_share < 0.01


@pytest.mark.case("C11")
async def test_after_a_429_all_workers_keep_silent_and_come_back_spread(
    client: Client, engine: Engine, limited: Ledger, workers: Workers, record_property: Record
) -> None:
    """Somebody else uses up the account's rate: one answer tells all four workers, for the tenant's eight jobs."""
    rate, burst, silence = 200, 40, 3
    limited.limit(rate=rate, burst=burst, retry_after=silence)
    with workers("limited", 4, rate=rate):
        jobs = await in_parts(client, "call_limited", make_items(engine, "account", 5000), 8)
        for number in range(2):
            await asyncio.sleep(6)
            await asyncio.to_thread(_use_up, limited, f"foreign-{number}")
        for job in jobs:
            assert (await client.wait(job, seconds=120)).state == "completed"
    seen = of_jobs(limited, jobs)
    end = seen.times[-1]
    refused = [at for at, status in zip(seen.times, seen.statuses, strict=True) if status == 429]
    first = [at for before, at in itertools.pairwise([-9.0, *refused]) if at > before + 1]
    silent = silence * len(first)
    goodput = seen.statuses.count(201) / (end - silent) / rate
    record_property("429", f"{seen.limited_share:.4f} at {first}, {end:.1f} s, busiest second {seen.busiest_second()}")
    record_property("goodput", f"{goodput:.3f}; arrivals {seen.histogram()}")
    assert first
    for at in first:
        # what was on its way when the first answer came is not called back
        assert seen.between(at + 0.3, at + silence) == 0
    assert seen.limited_share < 0.1
    assert goodput >= 0.8
    assert seen.busiest_second() <= rate * 1.1 + 1


def _use_up(ledger: Ledger, key: str) -> None:
    number = 0
    while ledger.foreign_call(f"{key}-{number}") != 429:
        number += 1
