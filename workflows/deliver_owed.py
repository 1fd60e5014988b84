"""DeliverOwed: the effects of committed chunks of a job whose own workflow is gone."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from bulklane.contracts import activity_calls as activities
    from bulklane.contracts.effect import DeliverEnd, DeliverRequest
    from bulklane.contracts.job import JobView
    from bulklane.contracts.lane import control_queue, effects_queue
    from bulklane.workflows.activity_options import control_options, deliver_options


@workflow.defn(name="DeliverOwed")
class DeliverOwed:
    """Delivers on each channel until nothing is owed. Its id is `<job id>/owed`."""

    @workflow.run
    async def run(self, job_no: int, *_arguments: Any) -> None:
        """Deliver, then end."""
        queue = control_queue(workflow.info().task_queue)
        job = await workflow.execute_activity(activities.look, job_no, summary="look", **control_options(queue))
        await asyncio.gather(*(self._deliver(job, channel) for channel in job.channels))
        if workflow.info().is_continue_as_new_suggested():
            workflow.continue_as_new(args=[job_no])

    async def _deliver(self, job: JobView, channel: str) -> None:
        while not workflow.info().is_continue_as_new_suggested():
            answer = await workflow.execute_activity(
                activities.deliver,
                DeliverRequest(job.job_no, channel, job.deliver_seconds),
                summary=f"deliver {channel}",
                **deliver_options(job, effects_queue(channel)),
            )
            if answer.end is DeliverEnd.DONE:
                return
            if answer.end is not DeliverEnd.CONTINUE:
                await workflow.sleep(timedelta(seconds=answer.retry_seconds or 1), summary=answer.reason)
