"""Workers for a fake job, and Temporal's two servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.testservice.v1 import UnlockTimeSkippingRequest
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker
from temporalio.worker._workflow_instance import _WorkflowLogicFlag
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from bulklane.contracts.lane import SMALL_QUEUE, effects_queue
from bulklane.stack import time_skipping_server_path
from bulklane.workflows.bulk_job import BulkJob
from bulklane.workflows.deliver_owed import DeliverOwed
from tests.support.waiting import until_async
from tests.workflow.fake_job import FakeJob

Handle = WorkflowHandle[Any, Any]
RUNNER = SandboxedWorkflowRunner(
    restrictions=SandboxRestrictions.default.with_passthrough_modules("bulklane.contracts")
)
LONGEST = 20.0


@asynccontextmanager
async def serving(client: Client, job: FakeJob, *, served: list[str] | None = None) -> AsyncIterator[None]:
    """The job's queues: `small`, and one for each served channel (all of them by default)."""
    channels = job.channels if served is None else served
    async with AsyncExitStack() as workers:
        await workers.enter_async_context(_worker(client, SMALL_QUEUE, job, workflows=True))
        for channel in channels:
            await workers.enter_async_context(_worker(client, effects_queue(channel), job, workflows=False))
        try:
            yield
        finally:
            job.let_go.set()


def worker_of_a_later_sdk(client: Client, job: FakeJob) -> Worker:
    """A worker with what the SDK announces as a coming default: all of an activation is applied before code runs."""
    worker = _worker(client, SMALL_QUEUE, job, workflows=True)
    flag = _WorkflowLogicFlag.PROCESS_WORKFLOW_ACTIVATION_JOBS_AS_SINGLE_BATCH
    worker._set_default_workflow_logic_flag(flag, enabled=True)
    return worker


def _worker(client: Client, queue: str, job: FakeJob, *, workflows: bool) -> Worker:
    return Worker(
        client,
        task_queue=queue,
        workflows=[BulkJob, DeliverOwed] if workflows else [],
        activities=job.activities(),
        workflow_runner=RUNNER,
        max_heartbeat_throttle_interval=timedelta(seconds=0.05),
        default_heartbeat_throttle_interval=timedelta(seconds=0.05),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
    )


@asynccontextmanager
async def running(
    client: Client, job: FakeJob, *arguments: Any, served: list[str] | None = None
) -> AsyncIterator[Handle]:
    """The job's workflow on a dev server; terminated at the end, since the next test uses the same queues."""
    async with serving(client, job, served=served):
        handle = await client.start_workflow(
            "BulkJob", args=arguments, id="job", task_queue=SMALL_QUEUE, task_timeout=timedelta(seconds=5)
        )
        try:
            yield handle
        finally:
            with suppress(RPCError):
                await client.get_workflow_handle("job").terminate()


@asynccontextmanager
async def skipping(job: FakeJob, *arguments: Any) -> AsyncIterator[tuple[WorkflowEnvironment, Handle]]:
    """The job's workflow on a time-skipping server of its own; the clock stands until `result_skipping`."""
    env = await WorkflowEnvironment.start_time_skipping(test_server_existing_path=str(time_skipping_server_path()))
    async with env, serving(env.client, job):
        with env.auto_time_skipping_disabled():
            yield env, await env.client.start_workflow("BulkJob", args=arguments, id="job", task_queue=SMALL_QUEUE)


async def skip(env: WorkflowEnvironment) -> None:
    """Unlock the clock, once in a test."""
    await env.client.test_service.unlock_time_skipping(UnlockTimeSkippingRequest())


async def result(handle: Handle) -> Any:
    """The workflow's result, with a deadline."""
    return await asyncio.wait_for(handle.result(), LONGEST)


async def logged(job: FakeJob, call: str, times: int = 1) -> None:
    """Wait until it was called so often."""

    async def enough() -> bool:
        return job.count(call) >= times

    await until_async(enough, what=f"{times} x {call} in {job.log}")


async def reset_to_first_task(client: Client, handle: Handle) -> Handle:
    """Reset as the UI does it; the new run."""
    kind = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    tasks = [event.event_id async for event in handle.fetch_history_events() if event.event_type == kind]
    answer = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id),
            reason="test",
            workflow_task_finish_event_id=tasks[0],
            request_id="reset",
        )
    )
    return client.get_workflow_handle(handle.id, run_id=answer.run_id)
