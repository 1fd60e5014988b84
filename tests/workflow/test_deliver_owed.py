"""DeliverOwed: what a job that is over still owes."""

from typing import Any

import pytest
from temporalio.client import Client

from bulklane.contracts.effect import DeliverAnswer, DeliverEnd
from bulklane.contracts.job import JobState
from bulklane.contracts.lane import SMALL_QUEUE
from tests.workflow.fake_job import FakeJob
from tests.workflow.serving import logged, result, serving
from tests.workflow.test_start import failure_type

pytestmark = pytest.mark.anyio


def over(**fields: Any) -> FakeJob:
    """A terminated job."""
    return FakeJob(state=JobState.TERMINATED, released=True, **fields)


async def test_it_delivers_on_each_channel_and_ends(client: Client) -> None:
    held = DeliverAnswer(DeliverEnd.HELD, 0, "alarm", 1.0)
    job = over(channels=["notices", "index"], owed={"notices": 2, "index": 1}, answers={"notices": [held]})
    async with serving(client, job):
        handle = await client.start_workflow("DeliverOwed", 7, id="owed", task_queue=SMALL_QUEUE)
        await result(handle)
    assert job.owed == {"notices": 0, "index": 0}
    assert job.count("deliver notices") == 2


async def test_it_leaves_a_job_that_a_retry_has_opened_again_to_its_own_workflow(client: Client) -> None:
    job = over(owed={"notices": 1}, answers={"notices": [DeliverAnswer(DeliverEnd.PAUSED)]})
    async with serving(client, job):
        await result(await client.start_workflow("DeliverOwed", 7, id="owed", task_queue=SMALL_QUEUE))
    assert job.log == ["look", "deliver notices"]


async def test_a_channel_that_nobody_serves_keeps_no_other_from_a_new_run(short_history: Client) -> None:
    again = DeliverAnswer(DeliverEnd.CONTINUE)
    job = over(channels=["nobody", "notices"], owed={"nobody": 1}, answers={"notices": [again] * 20})
    async with serving(short_history, job, served=["notices"]):
        handle = await short_history.start_workflow("DeliverOwed", 7, id="owed", task_queue=SMALL_QUEUE)
        await logged(job, "deliver notices", 20)
        assert job.count("look") >= 2, "runs of the workflow"
        await short_history.get_workflow_handle(handle.id).terminate()


@pytest.mark.parametrize("arguments", [[], ["text"], [{}, 2]])
async def test_an_argument_that_is_no_number_ends_it(client: Client, arguments: list[Any]) -> None:
    async with serving(client, over()):
        handle = await client.start_workflow("DeliverOwed", args=arguments, id="owed", task_queue=SMALL_QUEUE)
        assert await failure_type(handle) == "InvalidStart"
