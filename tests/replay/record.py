"""Records histories against fake jobs: `python -m tests.replay.record [NAME ...]`, into `tests/replay/histories`.

Recorded once for each change of the workflow that is released: old files stay, since old histories must replay.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from bulklane.contracts.effect import DeliverAnswer, DeliverEnd
from bulklane.contracts.failure import FailureType
from bulklane.contracts.job import JobState
from bulklane.contracts.lane import SMALL_QUEUE
from bulklane.contracts.walk import SegmentAnswer, SegmentEnd
from tests.workflow.conftest import dev_server
from tests.workflow.fake_job import FakeJob
from tests.workflow.serving import Handle, logged, reset_to_first_task, result, running, serving

# stack traces name files: not where this checkout stands
ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "histories"
WAITING = SegmentAnswer(SegmentEnd.HELD, 3, 0, "the throttle lets 1 ranges walk side by side", 3600.0)
HELD = DeliverAnswer(DeliverEnd.HELD, 0, "alarm", 3600.0)


async def normal(client: Client) -> AsyncIterator[Handle]:
    """Ranges of several segments, two channels, search attributes."""
    job = FakeJob(
        ranges=2,
        segments={0: 2, 1: 2},
        channels=["notices", "index"],
        owed={"notices": 2, "index": 1},
        view={"search_attributes": True},
    )
    async with running(client, job) as handle:
        await result(handle)
        yield handle


async def freeze(client: Client) -> AsyncIterator[Handle]:
    """A selection that is frozen first."""
    async with running(client, FakeJob(ranges=2, to_freeze=True)) as handle:
        await result(handle)
        yield handle


async def pause_and_resume(client: Client) -> AsyncIterator[Handle]:
    """By signals, in the middle of segments; a surplus argument; a nudge."""
    job = FakeJob(ranges=2, held=True)
    async with running(client, job) as handle:
        await logged(job, "range 1")
        await handle.signal("pause", args=["why", "who", "m1", "surplus"])
        await logged(job, "look")
        await handle.signal("look")
        job.held = False
        await handle.signal("resume")
        await result(handle)
        yield handle


async def held_channel(client: Client) -> AsyncIterator[Handle]:
    """A wait in a timer, ended by a nudge."""
    job = FakeJob(state=JobState.DELIVERING, released=True, owed={"notices": 1}, answers={"notices": [HELD]})
    async with running(client, job) as handle:
        await logged(job, "deliver notices")
        await handle.signal("look")
        await result(handle)
        yield handle


async def throttle(client: Client) -> AsyncIterator[Handle]:
    """A held range woken by a throttle, then by a range that is done; a throttle that can't be read."""
    job = FakeJob(ranges=2, held=True, answers={"range 1": [WAITING, WAITING]})
    async with running(client, job) as handle:
        await logged(job, "range 1")
        await handle.signal("throttle", args=["fast"])
        await handle.signal("throttle", args=[500, 1, "why", "who", "m1"])
        await logged(job, "range 1", 2)
        job.held = False
        await result(handle)
        yield handle


async def cancel(client: Client) -> AsyncIterator[Handle]:
    """Temporal's cancellation with a stuck segment."""
    job = FakeJob(ranges=2, stuck={(1, 0)}, held=True, owed={"notices": 1})
    async with running(client, job) as handle:
        await logged(job, "range 0")
        await logged(job, "range 1")
        await handle.cancel()
        await logged(job, "cancel")
        job.held = False
        await _failed(handle)
        yield handle


async def new_run(client: Client) -> AsyncIterator[Handle]:
    """Each run of a chain, a stuck segment at the first barrier."""
    job = FakeJob(ranges=2, segments={1: 10}, stuck={(1, 0)}, view={"segment_seconds": 0.2})
    async with running(client, job) as handle:
        await logged(job, "open", 2)
        job.stuck.clear()
        await result(handle)
        run_id: str | None = handle.first_execution_run_id
        while run_id:
            run = client.get_workflow_handle(handle.id, run_id=run_id)
            yield run
            last = [event async for event in run.fetch_history_events()][-1]
            run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None


async def reset(client: Client) -> AsyncIterator[Handle]:
    """Both runs: signals heard, a reset to the first task, the end."""
    job = FakeJob(held=True, owed={"notices": 1})
    async with running(client, job) as handle:
        await handle.signal("pause")
        await logged(job, "pause")
        await handle.signal("resume")
        await logged(job, "resume")
        again = await reset_to_first_task(client, handle)
        await logged(job, "resume", 2)
        job.held = False
        await result(again)
        yield client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
        yield again


async def retried(client: Client) -> AsyncIterator[Handle]:
    """A retry re-opens the job before its run has ended."""
    job = FakeJob(ranges=1)

    async def lose_the_answer() -> None:
        job.retry()
        raise ApplicationError("the answer was lost")

    job.after["close"] = lose_the_answer
    async with running(client, job) as handle:
        await result(handle)
        yield handle


async def invalid_start(client: Client) -> AsyncIterator[Handle]:
    """Three arguments, of which none is an object."""
    job = FakeJob(failing={"open": [ApplicationError("no", type=FailureType.INVALID_START, non_retryable=True)]})
    async with running(client, job, "a", 2, None) as handle:
        await _failed(handle)
        yield handle


async def deliver_owed(client: Client) -> AsyncIterator[Handle]:
    """What a terminated job owes, with a wait."""
    wait = DeliverAnswer(DeliverEnd.WAITING, 0, "an earlier job owes", 0.5)
    job = FakeJob(state=JobState.TERMINATED, released=True, owed={"notices": 2}, answers={"notices": [wait]})
    async with serving(client, job):
        handle = await client.start_workflow("DeliverOwed", 7, id="owed", task_queue=SMALL_QUEUE)
        await result(handle)
        yield handle


SCENARIOS: dict[str, Callable[[Client], AsyncIterator[Handle]]] = {
    scenario.__name__: scenario
    for scenario in (
        normal,
        freeze,
        pause_and_resume,
        held_channel,
        throttle,
        cancel,
        new_run,
        reset,
        retried,
        invalid_start,
        deliver_owed,
    )
}


async def _failed(handle: Handle) -> None:
    try:
        await result(handle)
    except WorkflowFailureError:
        return
    raise AssertionError("it should have failed")


async def record(names: list[str]) -> None:
    """Run the scenarios and write their histories."""
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        suggest = {"limit__historyCount__suggestContinueAsNew": 40} if name == "new_run" else {}
        with dev_server(**suggest) as server:
            client = await Client.connect(server.address)
            number = 0
            async for handle in SCENARIOS[name](client):
                number += 1
                history = await handle.fetch_history()
                (FOLDER / f"{name}_{number}.json").write_text(history.to_json().replace(f"{ROOT}/", "") + "\n")
                sys.stdout.write(f"{name}_{number}: {len(history.events)} events\n")


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:] or list(SCENARIOS)))
