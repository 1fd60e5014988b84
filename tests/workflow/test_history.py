"""How many events it costs to wait: a held channel for days, an earlier job, a provider that says when."""

import pytest

from bulklane.contracts.effect import DeliverAnswer, DeliverEnd
from bulklane.contracts.job import JobState
from tests.support.waiting import until_async
from tests.workflow.fake_job import FakeJob
from tests.workflow.serving import Handle, result, skip, skipping
from tests.workflow.test_waiting import lasted

pytestmark = pytest.mark.anyio

HOURS = 48
MOST_AN_HOUR = 24


def delivering(answers: list[DeliverAnswer]) -> FakeJob:
    """A job that owes one effect, and what the first deliveries answer."""
    return FakeJob(state=JobState.DELIVERING, released=True, owed={"notices": 1}, answers={"notices": answers})


async def events(handle: Handle) -> int:
    """How many the workflow has."""
    return len((await handle.fetch_history()).events)


async def test_a_channel_that_is_held_for_two_days_costs_less_than_24_events_an_hour() -> None:
    """Each delivery sits out half an hour in its slot (`activities/deliver.py`), and the first shows why."""
    held = DeliverAnswer(DeliverEnd.HELD, 0, "channel notices is held since noon: 401")
    job = delivering([held, *[DeliverAnswer(DeliverEnd.CONTINUE)] * (HOURS * 2)])
    async with skipping(job) as (env, handle):
        await skip(env)
        assert await result(handle) == "completed"
        count = await events(handle)
    assert job.count("deliver notices") == HOURS * 2 + 2
    # the same job without a wait
    async with skipping(delivering([])) as (env, handle):
        await skip(env)
        assert await result(handle) == "completed"
        without = await events(handle)
    assert (count - without) / HOURS <= MOST_AN_HOUR / 1.5


@pytest.mark.parametrize("seconds", [1800.0, 3600.0])
async def test_a_wait_in_a_timer_costs_less_than_24_events_an_hour(seconds: float) -> None:
    waiting = DeliverAnswer(DeliverEnd.WAITING, 0, "job earlier still owes on notices", seconds)
    job = delivering([waiting] * HOURS)
    async with skipping(job) as (env, handle):
        await skip(env)
        assert await result(handle) == "completed"
        hours = (await lasted(handle)).total_seconds() / 3600
        assert await events(handle) / hours <= MOST_AN_HOUR
    assert hours >= HOURS * seconds / 3600


async def test_what_is_held_is_shown_while_the_next_delivery_sits_it_out() -> None:
    held = DeliverAnswer(DeliverEnd.HELD, 0, "channel notices is held since noon: 401")
    job = delivering([held])
    job.held = True
    async with skipping(job) as (env, handle):
        await skip(env)

        async def shown() -> bool:
            waits = (await handle.query("status"))["waits"]
            return job.count("deliver notices") == 2 and waits == {"deliver notices": held.reason}

        await until_async(shown, what="the hold is shown beside the second delivery")
        job.held = False
        assert await result(handle) == "completed"
