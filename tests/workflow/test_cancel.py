"""Cancel: segments are cancelled and not waited for, deliveries are finished, and the end is what was asked for."""

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from bulklane.contracts.job import JobState, Wish
from bulklane.contracts.lane import SMALL_QUEUE
from tests.support.waiting import until_async
from tests.workflow.fake_job import FakeJob
from tests.workflow.serving import Handle, logged, result, running, worker_of_a_later_sdk

pytestmark = pytest.mark.anyio


async def ends_cancelled(handle: Handle) -> bool:
    """Whether Temporal shows it as cancelled."""
    with pytest.raises(WorkflowFailureError) as failed:
        await result(handle)
    return isinstance(failed.value.cause, CancelledError)


async def test_temporals_cancellation_ends_the_job_cancelled_after_its_deliveries(client: Client) -> None:
    job = FakeJob(ranges=2, stuck={(1, 0)}, held=True, owed={"notices": 2})
    async with running(client, job) as handle:
        await logged(job, "range 0")
        await logged(job, "range 1")
        await handle.cancel()
        await logged(job, "cancel")
        assert job.count("delivered notices") == 0
        job.held = False
        assert await ends_cancelled(handle)
        assert job.busy["range 0"] == 1, "the stuck segment was not waited for"
        await logged(job, "cancellation heard")
    assert job.state is JobState.CANCELLED
    assert job.log.index("delivered notices") < job.log.index("close")
    assert job.count("delivered notices") == 2
    assert job.count("range 0") == 1


@pytest.mark.parametrize("way", ["signal", "row"])
async def test_a_cancel_by_signal_or_row_returns_the_state(client: Client, way: str) -> None:
    job = FakeJob(ranges=1, stuck={(1, 0)}, owed={"notices": 1})
    async with running(client, job) as handle:
        await logged(job, "range 0")
        if way == "row":
            job.wish = Wish.CANCEL
            await handle.signal("look")
        else:
            await handle.signal("cancel", args=["wrong month", "ann"])
        assert await result(handle) == "cancelled"
        assert job.busy["range 0"] == 1
    assert job.count("delivered notices") == 1


async def test_a_paused_job_can_be_cancelled(client: Client) -> None:
    job = FakeJob(held=True)
    async with running(client, job) as handle:
        await logged(job, "range 0")
        await handle.signal("pause")

        async def paused() -> bool:
            return bool((await handle.query("status"))["state"] == "paused")

        await until_async(paused, what="paused")
        await handle.cancel()
        assert await ends_cancelled(handle)


async def test_a_cancellation_before_the_job_is_open_is_heeded(client: Client) -> None:
    job = FakeJob(failing={"open": [ApplicationError("not yet") for _ in range(3)]}, held=True)
    async with running(client, job) as handle:
        await logged(job, "open")
        await handle.cancel()
        assert await ends_cancelled(handle)


async def test_a_cancellation_during_the_freeze_ends_it(client: Client) -> None:
    job = FakeJob(to_freeze=True, failing={"freeze": [ApplicationError("again") for _ in range(100)]})
    async with running(client, job) as handle:
        await logged(job, "freeze")
        await handle.cancel()
        assert await ends_cancelled(handle)
    assert job.count("range 0") == 0


async def test_a_cancellation_that_comes_too_late_changes_nothing(client: Client) -> None:
    job = FakeJob(ranges=1)
    async with running(client, job) as handle:
        job.after["close"] = handle.cancel
        assert await result(handle) == "completed"


async def test_a_cancellation_ends_no_wait_of_the_job_under_the_sdks_coming_default(client: Client) -> None:
    job = FakeJob(ranges=1, channels=[], stuck={(1, 0)})
    async with worker_of_a_later_sdk(client, job):
        handle = await client.start_workflow("BulkJob", id="job", task_queue=SMALL_QUEUE)
        await logged(job, "range 0")
        await handle.cancel()
        assert await ends_cancelled(handle)
        job.let_go.set()
    assert job.count("close") == 1
    assert job.state is JobState.CANCELLED
