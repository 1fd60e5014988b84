"""The signal `throttle`, and ranges that are held: in a timer, woken by a look or by a range that is done."""

from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from bulklane.contracts.message import Throttle, Verb, VerbMessage
from bulklane.contracts.walk import SegmentAnswer, SegmentEnd
from tests.support.waiting import until_async
from tests.workflow.fake_job import FakeJob
from tests.workflow.serving import Handle, logged, result, running, skip, skipping
from tests.workflow.test_show import current_details
from tests.workflow.test_waiting import lasted

pytestmark = pytest.mark.anyio

ODD: list[list[Any]] = [
    [],
    [None, None],
    ["fast"],
    [-1],
    [1, 2.5],
    [10**400],
    [True],
    [{"rows_per_second": "\ud800\x00"}],
    [{"lift": "please"}],
    [{"lift": True, "parallelism": 2}],
    [["a", "list"]],
    [b"\x00\xff"],
]


def held(seconds: float, why: str = "the throttle lets 1 ranges walk side by side") -> SegmentAnswer:
    """A held segment's answer."""
    return SegmentAnswer(SegmentEnd.HELD, 3, 0, why, seconds)


async def waits(handle: Handle) -> Any:
    return (await handle.query("status"))["waits"]


async def test_a_held_range_waits_in_a_timer_and_is_tried_again_after_it() -> None:
    job = FakeJob(ranges=1, channels=[], answers={"range 0": [held(300.0)] * 3})
    async with skipping(job) as (env, handle):
        await skip(env)
        assert await result(handle) == "completed"
        assert timedelta(seconds=900) <= await lasted(handle) < timedelta(seconds=960)
    assert (job.count("range 0"), job.count("look")) == (4, 0)


async def test_a_throttle_wakes_what_is_held(client: Client) -> None:
    job = FakeJob(ranges=2, held=True, answers={"range 1": [held(3600.0)]})
    async with running(client, job) as handle:
        await until_async(lambda: _waits_for(handle, held(0).reason), what="the wait shows its reason")
        assert f"range 1 waits: {held(0).reason}" in await current_details(handle)
        await handle.signal("throttle", {"lift": True, "who": "ann", "why": "night", "message_id": "m1"})
        await logged(job, "range 1", 2)
        assert job.messages["m1"] == VerbMessage("m1", Verb.THROTTLE, "ann", "night", Throttle())
        job.held = False
        assert await result(handle) == "completed"


async def _waits_for(handle: Handle, why: str) -> bool:
    return bool((await waits(handle)).get("range 1") == why)


async def test_a_range_that_is_done_wakes_what_is_held(client: Client) -> None:
    job = FakeJob(ranges=2, channels=[], held=True, answers={"range 1": [held(3600.0)]})
    async with running(client, job) as handle:
        await until_async(lambda: _waits_for(handle, held(0).reason), what="the wait")
        job.held = False
        assert await result(handle) == "completed"
    assert (job.count("range 0"), job.count("range 1")) == (1, 2)


async def test_a_range_that_was_held_while_the_other_became_done_is_not_held_for_long(client: Client) -> None:
    """The held segment answers late: what held it is over already."""
    job = FakeJob(ranges=2, channels=[], stuck={(1, 1)})
    async with running(client, job) as handle:
        await logged(job, "range 1")
        await logged(job, "range 0")
        await until_async(lambda: _only_range_1(handle), what="range 0 is done")
        job.late["range 1"] = [held(3600.0)]
        job.stuck.clear()
        assert await result(handle) == "completed"
    assert job.count("range 1") == 2


async def _only_range_1(handle: Handle) -> bool:
    return list(await waits(handle)) == ["range 1"]


async def test_what_slows_a_range_is_shown_beside_its_next_segment(client: Client) -> None:
    slow = SegmentAnswer(SegmentEnd.CONTINUE, 3, 0, "the throttle allows 10 rows/s")
    job = FakeJob(ranges=1, channels=[], held=True, answers={"range 0": [slow]})
    async with running(client, job) as handle:
        await logged(job, "range 0", 2)
        assert await waits(handle) == {"range 0": f"a segment, on the queue small; {slow.reason}"}
        job.held = False
        assert await result(handle) == "completed"


async def test_throttles_that_cannot_be_read_are_ignored_with_a_note_and_hang_nothing(client: Client) -> None:
    job = FakeJob(held=True)
    async with running(client, job) as handle:
        for arguments in ODD:
            await handle.signal("throttle", args=arguments)
        await logged(job, "look")

        async def shown() -> bool:
            return "ignored: the signal throttle: " in await current_details(handle)

        await until_async(shown, what="the note")
        await handle.signal("throttle", args=[500, 2, "why", "who", "m1", "surplus"])
        await logged(job, "throttle")
        job.held = False
        assert await result(handle) == "completed"
    assert list(job.messages.values()) == [VerbMessage("m1", Verb.THROTTLE, "who", "why", Throttle(500.0, 2))]


async def test_a_held_range_survives_new_runs(short_history: Client) -> None:
    """Another range makes the history long enough for new runs: the held one is asked again in each, and waits on."""
    job = FakeJob(
        ranges=2,
        channels=[],
        segments={0: 25, 1: 1},
        answers={"range 1": [held(3600.0)] * 3},
        view={"segment_seconds": 0.2},
    )
    async with running(short_history, job) as handle:
        assert await result(handle) == "completed"
    assert job.count("open") >= 3
    assert job.count("range 1") >= 3
    assert job.most_busy["range 1"] == 1
