"""DeliverOwed: the effects of committed chunks of a job whose own workflow is gone."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from bulklane.contracts import activity_calls as activities
    from bulklane.contracts.effect import DeliverAnswer, DeliverEnd, DeliverRequest
    from bulklane.contracts.failure import FailureType
    from bulklane.contracts.job import JobView
    from bulklane.contracts.lane import control_queue, effects_queue
    from bulklane.workflows.activity_options import control_options, deliver_options
    from bulklane.workflows.waiting import ended

_FIRST_WAIT = 5.0


@workflow.defn(name="DeliverOwed")
class DeliverOwed:
    """Delivers on each channel until nothing is owed. Its id is `<job id>/owed`."""

    @workflow.run
    async def run(self, *arguments: Any) -> None:
        """Deliver what the job of the given number owes, then end."""
        job_no = arguments[0] if arguments else None
        if not isinstance(job_no, int):
            raise ApplicationError(
                "DeliverOwed takes a job's number", type=FailureType.INVALID_START, non_retryable=True
            )
        queue = control_queue(workflow.info().task_queue)
        job = await workflow.execute_activity(activities.look, job_no, summary="look", **control_options(queue))
        await asyncio.gather(*(self._deliver(job, channel) for channel in job.channels))
        if _full():
            workflow.continue_as_new(args=[job_no])

    async def _deliver(self, job: JobView, channel: str) -> None:
        waits, shown = 0, ""
        while not _full():
            answer = await self._attempt(job, channel, shown)
            # paused: a retry has re-opened the job, and its own workflow delivers
            if answer is None or answer.end in (DeliverEnd.DONE, DeliverEnd.PAUSED):
                return
            # a held channel is waited for by the next delivery, in its slot
            shown = answer.reason if answer.end is DeliverEnd.HELD else ""
            if answer.end is DeliverEnd.CONTINUE:
                waits = 0
                continue
            # nobody nudges a job that is over: it asks again sooner, and less and less often
            seconds = min(answer.retry_seconds or 1, _FIRST_WAIT * 2 ** min(waits, 20))
            waits += 1
            await workflow.sleep(timedelta(seconds=seconds), summary=answer.reason)

    async def _attempt(self, job: JobView, channel: str, shown: str) -> DeliverAnswer | None:
        handle = workflow.start_activity(
            activities.deliver,
            DeliverRequest(job.job_no, channel, job.deliver_seconds, shown),
            summary=f"deliver {channel}",
            **deliver_options(job, effects_queue(channel)),
        )
        await workflow.wait_condition(lambda: handle.done() or _full())
        # a channel that nobody serves must not keep the others from going on in a new run
        handle.cancel()
        return await ended(handle)


def _full() -> bool:
    return workflow.info().is_continue_as_new_suggested()
