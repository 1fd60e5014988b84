"""The flights example's provider behind the entries' channel: real HTTP, and deliveries in this process."""

import asyncio
from typing import Any

from sqlalchemy import Engine, text

from bulklane.activities.call_delivery import CallDelivery
from bulklane.contracts.effect import idempotency_key
from bulklane.database.job import Job
from bulklane.operations.channel import Channel, Endpoint
from bulklane.operations.senders.http_provider import HttpProvider
from examples.flights.operation import judge_look_up, judge_notice
from tests.database.jobs import rows
from tests.unit.test_flights_provider import Provider

NOTICES = HttpProvider(
    path="/notices", judge=judge_notice, look_up_path="/notices/by-key/{key}", judge_look_up=judge_look_up
)
_UNBLOCK = text("UPDATE bulklane.channel_limit SET blocked_until = NULL")
_DUE = text("UPDATE bulklane.delivery SET due = now(), claimed_until = now()")
_OPEN = """
SELECT (SELECT count(*) FROM bulklane.delivery WHERE state IN ('sending', 'later', 'unknown'))
  + (SELECT count(*) FROM bulklane.owed WHERE taken_to < size)
"""


def channel_of(sender: HttpProvider = NOTICES, **channel: Any) -> Channel:
    """The entries' channel, with that provider behind it."""
    return Channel("bookings", sender, **{"stores_refusals": True, **channel})


def deliver_due(engine: Engine, job: Job, url: str, channel: Channel) -> CallDelivery:
    """Send what is due now, until nothing is due and nothing is out."""

    async def run() -> CallDelivery:
        sender = channel.sender.connect(Endpoint(url), channel.concurrency)  # type: ignore[union-attr]
        delivery = CallDelivery(engine, channel, job, sender)
        while await delivery.send_some():
            pass
        await delivery.finish()
        await sender.close()
        return delivery

    return asyncio.run(run())


def deliver_all(engine: Engine, job: Job, url: str, channel: Channel, most: int = 20) -> int:
    """The same again and again, without the backoffs, until all is final; how often."""
    for count in range(1, most + 1):
        make_due(engine)
        deliver_due(engine, job, url, channel)
        if rows(engine, _OPEN) == [(0,)]:
            return count
    raise AssertionError(f"not final after {most} times")


def make_due(engine: Engine) -> None:
    """No backoff, no block of the channel and no dead sender's claim is waited for."""
    with engine.begin() as connection:
        connection.execute(_DUE)
        connection.execute(_UNBLOCK)


def keys_of_job(engine: Engine, job: Job) -> dict[str, str]:
    """By record: its first idempotency key, in the order of the records."""
    found = rows(engine, "SELECT unnest(keys) FROM bulklane.owed WHERE job_no = :j ORDER BY 1", j=job.job_no)
    return {key: idempotency_key(job.job_id, "booking", key, 1) for (key,) in found}


def states_of(engine: Engine, job: Job) -> dict[str, tuple[str, str, int]]:
    """By record: state, code and attempts of its delivery."""
    found = rows(engine, "SELECT key, state, code, attempts FROM bulklane.delivery WHERE job_no = :j", j=job.job_no)
    return {key: (state, code, attempts) for key, state, code, attempts in found}


def calls_by_key(provider: Provider, job: Job) -> dict[str, int]:
    """How many requests the provider has seen under each of the job's keys."""
    counted: dict[str, int] = {}
    for call in provider.calls(f"{job.job_id}/"):
        counted[call["key"]] = counted.get(call["key"], 0) + 1
    return counted
