"""Ranges and deliveries beside each other, on the dev server."""

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from bulklane.contracts.job import Wish
from bulklane.contracts.walk import SegmentAnswer, SegmentEnd
from tests.support.waiting import until_async
from tests.workflow.fake_job import FakeJob
from tests.workflow.serving import logged, result, running

pytestmark = pytest.mark.anyio


async def test_ranges_walk_side_by_side_and_deliveries_beside_them(client: Client) -> None:
    job = FakeJob(ranges=3, channels=["notices", "index"], held=True)
    async with running(client, job) as handle:

        async def all_busy() -> bool:
            return all(job.busy[name] == 1 for name in ("range 0", "range 1", "range 2", "notices", "index"))

        await until_async(all_busy, what="every stream at work")
        job.held = False
        assert await result(handle) == "completed"


async def test_a_stuck_segment_stops_no_other_range_and_no_delivery(client: Client) -> None:
    job = FakeJob(ranges=2, segments={1: 6}, owed={"notices": 3}, stuck={(1, 0)})
    async with running(client, job) as handle:
        await logged(job, "range 1", 6)
        await logged(job, "delivered notices", 3)
        assert job.most_busy["range 0"] == 1
        assert job.count("range 0") == 1
        job.stuck.clear()
        assert await result(handle) == "completed"
    assert job.count("range 1") == 6


async def test_a_channel_that_nobody_serves_stops_no_other(client: Client) -> None:
    job = FakeJob(ranges=1, channels=["nobody", "notices"], owed={"notices": 2})
    async with running(client, job, served=["notices"]):
        await logged(job, "delivered notices", 2)
        await logged(job, "release")


async def test_a_retry_that_comes_before_the_run_has_ended_is_walked_by_it(client: Client) -> None:
    job = FakeJob(ranges=1)

    async def lose_the_answer() -> None:
        job.retry()
        raise ApplicationError("the answer was lost")

    job.after["close"] = lose_the_answer
    async with running(client, job) as handle:
        assert await result(handle) == "completed"
    assert (job.round, job.count("open"), job.count("range 0"), job.count("range 1")) == (2, 2, 2, 1)


async def test_a_retry_that_a_late_look_finds_cancels_what_the_old_round_left(client: Client) -> None:
    job = FakeJob(ranges=1, stuck={(1, 0)})
    async with running(client, job) as handle:
        await logged(job, "range 0")
        await logged(job, "deliver notices")
        job.retry()
        await handle.signal("look")
        assert await result(handle) == "completed"
        assert job.busy["range 0"] == 1, "the stuck segment was not waited for"
    assert (job.count("open"), job.count("range 1")) == (2, 1)


async def test_a_release_that_finds_an_unfinished_range_leads_to_another_walk(client: Client) -> None:
    job = FakeJob(ranges=2, segments={0: 2}, answers={"range 0": [SegmentAnswer(SegmentEnd.DONE)]})
    async with running(client, job) as handle:
        assert await result(handle) == "completed"
    assert (job.count("release"), job.count("range 0")) == (2, 3)


async def test_streams_that_stop_together_share_a_look(client: Client) -> None:
    job = FakeJob(ranges=20, held=True)
    async with running(client, job) as handle:
        await logged(job, "range 19")
        job.after["look"] = lambda: until_async(no_stream_busy, what="every stream stopped")

        async def no_stream_busy() -> bool:
            return job.wish is not Wish.RUN and not any(job.busy.values())

        await handle.signal("pause")
        await logged(job, "look", 2)
        job.held = False
        await handle.signal("resume")
        assert await result(handle) == "completed"
    assert job.count("look") <= 4
