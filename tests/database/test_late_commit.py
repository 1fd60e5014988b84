"""A chunk that commits late: no order of delivery and no highest number seen steps over it (C05)."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Engine
from temporalio.testing import ActivityEnvironment

from bulklane.activities.deliver import IDLE_LOOK_SECONDS, Deliver
from bulklane.contracts.effect import DeliverEnd, DeliverRequest
from bulklane.contracts.job import JobState
from bulklane.database.job import Job
from bulklane.operations.channel import Endpoint
from bulklane.operations.operation import Registry
from tests.database.jobs import Background, accepted, look, one_chunk, opened, rows, walk
from tests.support.ledgers import AddToEntries, make_entries
from tests.support.notices import calls_by_key, channel_of, keys_of_job
from tests.support.waiting import until
from tests.unit.test_flights_provider import Provider, running

COUNT = 60
HELD_SECONDS = 3.0
# the bound of the delay: a delivery looks again after IDLE_LOOK_SECONDS, then a transaction for the claim and the call
# itself; the rest is this machine's load
DELAY_BOUND = IDLE_LOOK_SECONDS + 2.0
CHANNEL = channel_of()
REGISTRY = Registry({"add_to_entries": AddToEntries()}, {"bookings": CHANNEL})


@pytest.fixture
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """A provider of the test's own."""
    with running(tmp_path_factory.mktemp("provider") / "data.sqlite") as started:
        yield started


def delivering(engine: Engine, job: Job, url: str) -> Background:
    """The delivery activity of a job, in a thread, until the job owes nothing and none is to come."""

    async def run() -> Any:
        sender = CHANNEL.sender.connect(Endpoint(url), CHANNEL.concurrency)  # type: ignore[union-attr]
        deliver = Deliver(engine, REGISTRY, {"bookings": sender}, "test")
        environment = ActivityEnvironment()
        answer = await environment.run(deliver.deliver, DeliverRequest(job.job_no, "bookings", 60.0))
        await sender.close()
        return answer

    return Background(lambda: asyncio.run(run()))


@contextmanager
def held_chunk(engine: Engine, job: Job, release: threading.Event) -> Iterator[list[float]]:
    """The first chunk of the first range, its owed effects written and its commit kept open; when it was committed."""
    written, committed = threading.Event(), []

    def hold() -> None:
        with engine.begin() as connection:
            assert one_chunk(connection, job, size=10) is not None
            written.set()
            release.wait(30)
        committed.append(time.time())

    holder = Background(hold)
    assert written.wait(10)
    yield committed
    holder.result()


@pytest.mark.case("C05")
def test_effects_of_a_chunk_that_commits_after_all_others_are_delivered_once(
    engine: Engine, provider: Provider
) -> None:
    """juicedata/juicefs#7521: a reader that remembers the highest id seen never comes back for the late one."""
    url = str(provider.client.base_url)
    make_entries(engine, COUNT)
    make_entries(engine, COUNT, tenant="other")
    late = opened(engine, accepted(engine, parallelism=2))
    other = opened(engine, accepted(engine, tenant="other", parallelism=2))
    release = threading.Event()
    with held_chunk(engine, late, release) as committed:
        deliveries = [delivering(engine, job, url) for job in (late, other)]
        # everything else is committed and delivered meanwhile: the other range of the same job, and the other job
        walk_range(engine, late, 1)
        walk(engine, other, size=10)
        assert look(engine, other).state is JobState.DELIVERING
        until(lambda: applied(provider, other) == COUNT, what="the other job's effects")
        until(lambda: applied(provider, late) == COUNT // 2, what="those of the job's other range")
        held_from = time.time()
        time.sleep(HELD_SECONDS)  # it is kept open, and nothing of it leaves
        assert applied(provider, late) == COUNT // 2
        release.set()
        until(lambda: applied(provider, late) == COUNT // 2 + 10, what="the late chunk's effects")
    walk(engine, late, size=10)
    look(engine, late)
    assert [one.result().end for one in deliveries] == [DeliverEnd.DONE] * 2
    for job in (late, other):
        assert look(engine, job).state is JobState.COMPLETED
        keys = sorted(keys_of_job(engine, job).values())
        assert len(keys) == COUNT
        assert calls_by_key(provider, job) == dict.fromkeys(keys, 1)
        assert {key: line["applied"] for key, line in provider.ledger(f"{job.job_id}/").items()} == dict.fromkeys(
            keys, 1
        )
    assert committed[0] - held_from >= HELD_SECONDS
    assert delay(engine, provider, late, committed[0]) <= DELAY_BOUND


def walk_range(engine: Engine, job: Job, range_no: int) -> None:
    """One range to its end."""
    while True:
        with engine.begin() as connection:
            result = one_chunk(connection, job, size=10, range_no=range_no)
            if result is None or rows(engine, _LEFT, j=job.job_no, n=range_no)[0][0] <= 10:
                return


_LEFT = 'SELECT hi - cursor FROM bulklane."range" WHERE job_no = :j AND no = :n'


def applied(provider: Provider, job: Job) -> int:
    """How many of the job's keys the provider has applied."""
    return sum(int(line["applied"]) for line in provider.ledger(f"{job.job_id}/").values())


def delay(engine: Engine, provider: Provider, job: Job, committed: float) -> float:
    """From the late commit to the last of its chunk's calls."""
    chunk = rows(engine, "SELECT keys FROM bulklane.owed WHERE job_no = :j AND range_no = 0 AND seq = 1", j=job.job_no)
    keys = {keys_of_job(engine, job)[key] for key in chunk[0][0]}
    calls = [call for call in provider.calls(f"{job.job_id}/") if call["key"] in keys]
    assert len(calls) == 10
    return max(datetime.fromisoformat(call["time"]).timestamp() for call in calls) - committed
