"""What follows what, on the time-skipping server: one workflow a test."""

import pytest

from bulklane.contracts.job import JobState
from tests.workflow.fake_job import FakeJob
from tests.workflow.serving import result, skip, skipping

pytestmark = pytest.mark.anyio


async def test_a_job_goes_through_its_steps_in_order() -> None:
    job = FakeJob(ranges=1, to_freeze=True)
    async with skipping(job) as (env, handle):
        await skip(env)
        assert await result(handle) == "completed"
    steps = [call for call in job.log if call != "deliver notices"]
    assert steps == ["open", "freeze", "look", "range 0", "release", "close"]
    assert job.log.index("deliver notices") < job.log.index("close")


async def test_a_job_that_is_over_ends_at_once() -> None:
    job = FakeJob(state=JobState.COMPLETED_WITH_FAILURES)
    async with skipping(job) as (env, handle):
        await skip(env)
        assert await result(handle) == "completed_with_failures"
    assert job.log == ["open"]
