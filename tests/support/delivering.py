"""An effect worker without Temporal: a process that runs the delivery activity for the jobs that it is given.

    python -m tests.support.delivering DATABASE_URL PROVIDER_URL CHANNEL SETTINGS JOB_NO ...

SETTINGS are those of the channel's environment, as a JSON object.
"""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine
from temporalio.testing import ActivityEnvironment

from bulklane.activities.deliver import Deliver
from bulklane.contracts.effect import DeliverEnd, DeliverRequest
from bulklane.database.engine import connect_engine
from bulklane.database.job import Job
from bulklane.operations.channel import Channel, ChannelSettings, Endpoint
from bulklane.operations.operation import Registry
from bulklane.operations.registry import load_registry
from bulklane.stack.processes import ChildProcess, child_environment
from tests.database.jobs import accepted, look, opened, walk
from tests.support.calling import MODULE
from tests.support.counting import items_of, make_items


def registry_with(channel: str, settings: ChannelSettings) -> Registry:
    """The calling operations, their channel with these settings."""
    registry = load_registry([MODULE])
    made: Channel = registry.channels[channel]
    limited = replace(made, limits=settings.limits_over(made.limits))
    return replace(registry, channels={**registry.channels, channel: limited})


async def deliver_jobs(engine: Engine, registry: Registry, channel: str, url: str, jobs: Sequence[int]) -> None:
    """What the workflows of these jobs do for one channel."""
    made = registry.channels[channel]
    sender = made.sender.connect(Endpoint(url), made.concurrency)
    activity = Deliver(engine, registry, {channel: sender}, "delivering")

    async def deliver(job_no: int) -> None:
        while True:
            answer = await ActivityEnvironment().run(activity.deliver, DeliverRequest(job_no, channel, 60.0))
            if answer.end is DeliverEnd.DONE:
                return
            await asyncio.sleep(answer.retry_seconds)

    await asyncio.gather(*(deliver(job_no) for job_no in jobs))
    await sender.close()


def owing_jobs(engine: Engine, operation: str, tenant: str, parts: int) -> list[Job]:
    """Jobs that have walked the tenant's items, a part each, and owe a call for each item."""
    registry, whole = load_registry([MODULE]), list(items_of(tenant))
    jobs = []
    for part in range(parts):
        request: dict[str, Any] = {
            "operation": operation,
            "tenant": tenant,
            "selection": {"ids": [str(item) for item in whole[part::parts]]},
            "parameters": {"part": part},
        }
        job = opened(engine, accepted(engine, registry=registry, **request))
        walk(engine, job, registry=registry)
        jobs.append(look(engine, job))
    return jobs


@contextmanager
def delivering(
    database_url: str, url: str, channel: str, jobs: Sequence[Sequence[Job]], log: Any, **settings: Any
) -> Iterator[list[ChildProcess]]:
    """A process for each of these groups of jobs; killed at the end."""
    processes = [start_delivering(database_url, url, channel, group, log, **settings) for group in jobs]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()


def start_delivering(
    database_url: str, url: str, channel: str, jobs: Sequence[Job], log: Any, **settings: Any
) -> ChildProcess:
    """One process."""
    told = json.dumps({"url": url, **settings})
    numbers = [str(job.job_no) for job in jobs]
    command = [sys.executable, "-m", "tests.support.delivering", database_url, url, channel, told, *numbers]
    process = ChildProcess("delivering", command, log / "delivering.log", child_environment())
    process.start()
    return process


def main(database_url: str, url: str, channel: str, told: str, *numbers: str) -> None:
    """Deliver, then end."""
    registry = registry_with(channel, ChannelSettings.model_validate_json(told))
    engine = connect_engine(database_url, role="delivering", pool_size=8)
    asyncio.run(deliver_jobs(engine, registry, channel, url, [int(number) for number in numbers]))
    engine.dispose()


__all__ = ["delivering", "make_items", "owing_jobs", "start_delivering"]

if __name__ == "__main__":
    main(*sys.argv[1:])
