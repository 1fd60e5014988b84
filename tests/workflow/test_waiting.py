"""Retries and waits: in timers that the time-skipping server skips, and none of them a busy loop."""

import time
from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError

from bulklane.contracts.effect import DeliverAnswer, DeliverEnd
from bulklane.contracts.job import JobState
from bulklane.contracts.walk import SegmentAnswer, SegmentEnd
from tests.support.waiting import until_async
from tests.workflow.fake_job import FakeJob
from tests.workflow.serving import Handle, logged, result, skip, skipping

pytestmark = pytest.mark.anyio


async def lasted(handle: Handle) -> timedelta:
    """How long the workflow took by its server's clock."""
    found = await handle.describe()
    assert found.close_time is not None
    return found.close_time - found.start_time


def delivering(answers: list[DeliverAnswer]) -> FakeJob:
    """A job that owes one effect, and what the first deliveries answer."""
    return FakeJob(state=JobState.DELIVERING, released=True, owed={"notices": 1}, answers={"notices": answers})


async def test_an_activity_is_retried_with_backoff_until_it_works() -> None:
    job = FakeJob(failing={"open": [ApplicationError("the database is away") for _ in range(60)]})
    began = time.monotonic()
    async with skipping(job) as (env, handle):
        await skip(env)
        assert await result(handle) == "completed"
        assert timedelta(seconds=100) < await lasted(handle) < timedelta(seconds=150), "at most 2 s between two"
    assert job.count("open") == 61
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(("retry_seconds", "least", "most"), [(60.0, 60, 70), (0.0, 1, 10)])
async def test_a_held_channel_is_waited_for_in_a_timer(retry_seconds: float, least: int, most: int) -> None:
    held = DeliverAnswer(DeliverEnd.HELD, 0, "401 from the provider", retry_seconds)
    job = delivering([held])
    async with skipping(job) as (env, handle):
        await skip(env)
        assert await result(handle) == "completed"
        assert timedelta(seconds=least) <= await lasted(handle) < timedelta(seconds=most)
    assert job.count("delivered notices") == 1


async def test_deliveries_that_say_done_while_the_job_owes_do_not_spin() -> None:
    job = delivering([DeliverAnswer(DeliverEnd.DONE)] * 7)
    async with skipping(job) as (env, handle):
        await skip(env)
        assert await result(handle) == "completed"
        assert await lasted(handle) > timedelta(seconds=1 + 2 + 4 + 8 + 16 + 32)


@pytest.mark.parametrize("end", [SegmentEnd.WISH, SegmentEnd.SHUT])
async def test_segments_that_stop_while_the_job_walks_do_not_spin(end: SegmentEnd) -> None:
    job = FakeJob(ranges=1, channels=[], answers={"range 0": [SegmentAnswer(end)] * 5})
    async with skipping(job) as (env, handle):
        await skip(env)
        assert await result(handle) == "completed"
        assert await lasted(handle) >= timedelta(seconds=5)
    assert job.count("look") == 5


async def test_deliveries_that_stop_for_a_pause_that_nobody_wished_do_not_spin() -> None:
    job = delivering([DeliverAnswer(DeliverEnd.PAUSED)] * 5)
    async with skipping(job) as (env, handle):
        await skip(env)
        assert await result(handle) == "completed"
        assert await lasted(handle) >= timedelta(seconds=4)


async def test_a_freeze_that_changes_nothing_does_not_spin() -> None:
    job = FakeJob(to_freeze=True, freezes_for_nothing=4)
    async with skipping(job) as (env, handle):
        await skip(env)
        assert await result(handle) == "completed"
        assert await lasted(handle) >= timedelta(seconds=4)


@pytest.mark.parametrize("end", [DeliverEnd.HELD, DeliverEnd.WAITING])
async def test_a_pause_in_the_middle_of_a_wait_holds_until_it_is_resumed(end: DeliverEnd) -> None:
    answer = DeliverAnswer(end, 0, "job earlier still owes on notices", 3600.0)
    job = delivering([answer])
    async with skipping(job) as (env, handle):

        async def waits() -> object:
            return (await handle.query("status"))["waits"]

        async def waits_for(expected: object) -> bool:
            return await waits() == expected

        await until_async(lambda: waits_for({"deliver notices": answer.reason}), what="the wait")
        await handle.signal("pause")
        await until_async(lambda: waits_for({"deliver notices": "paused"}), what="the pause")
        assert job.state is JobState.PAUSED
        await handle.signal("resume")
        await logged(job, "delivered notices")
        await skip(env)
        assert await result(handle) == "completed"
        assert await lasted(handle) < timedelta(minutes=10), "the resume ended the wait of an hour"
