"""A reset to the first task: the new run finds out where the job stands, and reverses nothing."""

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from bulklane.contracts.job import JobState
from tests.workflow.fake_job import FakeJob
from tests.workflow.serving import logged, reset_to_first_task, result, running

pytestmark = pytest.mark.anyio


async def test_signals_that_a_reset_hears_again_have_the_ids_of_the_first_run(client: Client) -> None:
    job = FakeJob(held=True, owed={"notices": 1})
    async with running(client, job) as handle:
        for number, verb in enumerate(("pause", "resume", "pause", "resume"), start=1):
            await handle.signal(verb)
            await logged(job, verb, (number + 1) // 2)
        await logged(job, "range 0", 2)
        again = await reset_to_first_task(client, handle)
        await logged(job, "resume", 4)
        job.held = False
        assert await result(again) == "completed"
    assert len(set(job.heard)) == 4
    assert job.heard[:4] == job.heard[4:]
    assert job.count("delivered notices") == 1


async def test_a_cancelled_job_that_is_reset_stays_cancelled(client: Client) -> None:
    job = FakeJob(ranges=1, held=True)
    async with running(client, job) as handle:
        await logged(job, "range 0")
        await handle.signal("cancel")
        assert await result(handle) == "cancelled"
        segments = job.count("range 0")
        again = await reset_to_first_task(client, handle)
        assert await result(again) == "cancelled"
    assert job.state is JobState.CANCELLED
    assert job.count("range 0") == segments


async def test_a_completed_job_that_is_reset_ends_at_once(client: Client) -> None:
    job = FakeJob(ranges=2)
    async with running(client, job) as handle:
        assert await result(handle) == "completed"
        walked = job.count("range 0") + job.count("range 1")
        again = await reset_to_first_task(client, handle)
        assert await result(again) == "completed"
        assert (await again.describe()).status is WorkflowExecutionStatus.COMPLETED
    assert job.count("range 0") + job.count("range 1") == walked
