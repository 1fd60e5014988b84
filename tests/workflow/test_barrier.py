"""Continue-as-new, on a dev server that suggests it after 40 events."""

import asyncio

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import CancelledError

from bulklane.contracts.job import JobState
from tests.support.waiting import until_async
from tests.workflow.fake_job import FakeJob
from tests.workflow.serving import Handle, logged, result, running

pytestmark = pytest.mark.anyio


async def run_after(client: Client, handle: Handle) -> Handle:
    """The run that continues the given one."""

    async def latest() -> str | None:
        run_id = (await client.get_workflow_handle(handle.id).describe()).run_id
        return run_id if run_id != (handle.run_id or handle.first_execution_run_id) else None

    return client.get_workflow_handle(handle.id, run_id=await until_async(latest, what="a new run"))


async def fill_history(handle: Handle, job: FakeJob) -> None:
    """Look until the history is long enough."""
    for _ in range(8):
        before = job.count("look")
        await handle.signal("look")
        await logged(job, "look", before + 1)


async def test_no_range_runs_twice_side_by_side_over_many_runs(short_history: Client) -> None:
    job = FakeJob(ranges=3, segments=dict.fromkeys(range(3), 8), owed={"notices": 5})
    async with running(short_history, job) as handle:
        assert await result(handle) == "completed"
    assert job.count("open") >= 3, "runs of the workflow"
    assert [job.most_busy[name] for name in ("range 0", "range 1", "range 2", "notices")] == [1, 1, 1, 1]
    assert job.count("delivered notices") == 5


async def test_a_paused_job_stays_paused_in_a_new_run_and_its_verbs_have_other_ids(short_history: Client) -> None:
    job = FakeJob(held=True)
    async with running(short_history, job) as handle:
        await handle.signal("pause")
        await logged(job, "pause")
        await fill_history(short_history.get_workflow_handle("job"), job)
        await run_after(short_history, handle)
        await logged(job, "open", 2)
        segments = job.count("range 0")
        await short_history.get_workflow_handle("job").signal("pause", args=["again"])
        await logged(job, "pause", 2)
        assert job.state is JobState.PAUSED
        assert job.count("range 0") == segments
        job.held = False
        await short_history.get_workflow_handle("job").signal("resume")
        assert await result(handle) == "completed"
    assert len(job.messages) == 3


async def test_signals_at_the_barrier_are_not_lost(short_history: Client) -> None:
    job = FakeJob(ranges=2, segments={0: 12, 1: 12})
    async with running(short_history, job) as handle:
        latest = short_history.get_workflow_handle("job")
        for number in range(7):
            await latest.signal("pause" if number % 2 == 0 else "resume", args=["", "", f"m{number}"])
        await latest.signal("resume", args=["", "", "last"])
        await logged(job, "resume", 4)
        assert await result(handle) == "completed"
    assert job.count("open") >= 2
    assert job.heard == [*(f"m{number}" for number in range(7)), "last"]


async def test_temporals_cancellation_is_not_forgotten_by_a_new_run(short_history: Client) -> None:
    job = FakeJob(ranges=1, held=True, owed={"notices": 1})
    async with running(short_history, job) as handle:
        await logged(job, "range 0")
        await handle.cancel()
        await logged(job, "cancel")
        await fill_history(short_history.get_workflow_handle("job"), job)
        job.held = False
        with pytest.raises(WorkflowFailureError) as failed:
            await result(handle)
        assert isinstance(failed.value.cause, CancelledError)
    assert job.state is JobState.CANCELLED


async def test_a_stuck_segment_holds_the_barrier_no_longer_than_its_budget_and_a_second(short_history: Client) -> None:
    job = FakeJob(ranges=2, segments={1: 20}, stuck={(1, 0)}, view={"segment_seconds": 0.5})
    async with running(short_history, job) as handle:
        await logged(job, "range 1")
        began = asyncio.get_running_loop().time()
        await logged(job, "open", 2)
        assert asyncio.get_running_loop().time() - began < 6.0
        job.stuck.clear()
        assert await result(handle) == "completed"


async def test_a_delivery_that_nobody_serves_does_not_hold_the_barrier(short_history: Client) -> None:
    job = FakeJob(
        state=JobState.DELIVERING, released=True, channels=["nobody"], owed={"nobody": 1}, view={"segment_seconds": 0.2}
    )
    async with running(short_history, job, served=[]):
        await fill_history(short_history.get_workflow_handle("job"), job)
        await logged(job, "open", 2)


async def test_a_cancelled_delivery_is_waited_for_and_fails_no_job_whatever_it_ends_with(short_history: Client) -> None:
    job = FakeJob(ranges=1, segments={0: 7}, rude=True)
    async with running(short_history, job) as handle:
        assert await result(handle) == "completed"
    assert job.count("open") >= 2
    assert job.most_busy["notices"] == 1
