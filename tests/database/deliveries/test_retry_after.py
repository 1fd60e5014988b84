"""C10: what a provider says in Retry-After, over HTTP, and when the next request comes."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from sqlalchemy import Engine

from bulklane.activities.call_delivery import CallDelivery
from bulklane.database.job import Job
from bulklane.operations.channel import Channel, Endpoint
from bulklane.operations.retry_after import LONGEST
from bulklane.operations.senders.http_provider import HttpProvider
from examples.flights.operation import judge_notice
from tests.database.jobs import accepted, opened, rows, walk
from tests.support.calling import Ledger
from tests.support.ledgers import make_entries

LEAST_BACKOFF = 0.25
SLACK = 5.0

pytestmark = [pytest.mark.case("C10"), pytest.mark.slow]


def in_seconds(seconds: float) -> str:
    """An HTTP date."""
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


def deliver(engine: Engine, url: str, provider: Ledger, job: Job, seconds: float) -> list[float]:
    """Deliver for at most so long; when the requests of the job came, from the first."""

    async def run() -> None:
        kind = HttpProvider("/notices", judge_notice)
        sender = kind.connect(Endpoint(url), 5)
        delivery = CallDelivery(engine, Channel("bookings", kind), job, sender)
        end = time.monotonic() + seconds
        while not delivery.concluded and time.monotonic() < end:
            if not await delivery.send_some():
                await asyncio.sleep(min(0.1, delivery.ask_seconds))
        await delivery.finish()
        await sender.close()

    asyncio.run(run())
    stamps = [datetime.fromisoformat(call["time"]).timestamp() for call in provider.calls(f"{job.job_id}/")]
    return [one - stamps[0] for one in stamps]


def owing(engine: Engine) -> Job:
    """A job that owes one call."""
    make_entries(engine, 1)
    job = opened(engine, accepted(engine, parallelism=1))
    walk(engine, job)
    return job


@pytest.mark.parametrize(("status", "header", "least", "most"), [
    (429, "1.5", 1.5, 1.65 + SLACK),
    (503, "2", 2.0, 2.2 + SLACK),
    (429, "date", 1.9, 3.3 + SLACK),
    (503, "date", 1.9, 3.3 + SLACK),
    (429, "-5", LEAST_BACKOFF, SLACK),
    (503, "0", LEAST_BACKOFF, SLACK),
    (429, "Wed, 21 Oct 2015 07:28:00 GMT", LEAST_BACKOFF, SLACK),
    (503, "in a while", LEAST_BACKOFF, SLACK),
    (429, None, LEAST_BACKOFF, SLACK),
    (503, None, LEAST_BACKOFF, SLACK),
])  # fmt: skip
def test_the_next_request_comes_neither_too_early_nor_too_late(
    engine: Engine, url: str, provider: Ledger, status: int, header: str | None, least: float, most: float
) -> None:
    job = owing(engine)
    said = in_seconds(3) if header == "date" else header
    provider.misbehave({"kind": "rate_limit", "times": 1, "status": status, "retry_after": said})
    times = deliver(engine, url, provider, job, most + 1)
    assert len(times) == 2
    assert least <= times[1] <= most
    assert rows(engine, "SELECT state, attempts FROM bulklane.delivery") == [("done", 2)]


@pytest.mark.parametrize("header", ["99999", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_time_over_the_cap_is_the_cap(engine: Engine, url: str, provider: Ledger, header: str) -> None:
    job = owing(engine)
    provider.misbehave({"kind": "rate_limit", "times": 1, "retry_after": header})
    assert len(deliver(engine, url, provider, job, 1.5)) == 1
    due, blocked = rows(
        engine,
        "SELECT extract(epoch FROM due - now()), extract(epoch FROM blocked_until - now())"
        " FROM bulklane.delivery, bulklane.channel_limit WHERE tenant = 'acme'",
    )[0]
    assert LONGEST - 10 < float(due) <= LONGEST
    assert LONGEST - 10 < float(blocked) <= LONGEST
