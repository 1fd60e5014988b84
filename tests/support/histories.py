"""The exported histories of a job, all runs of it: how long, how large, how often its activities were tried."""

import asyncio
from collections.abc import Sequence

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from tests.support.jobs import temporal_client


async def runs(job_id: str, at_least: int = 1) -> list[Sequence[HistoryEvent]]:
    """The events of each run, in the order of the runs. Waits until so many are listed."""
    temporal = await temporal_client()
    for _ in range(100):
        listed = [one async for one in temporal.list_workflows(f"WorkflowId = '{job_id}'")]
        if len(listed) >= at_least:
            break
        await asyncio.sleep(0.1)
    ordered = sorted(listed, key=lambda one: one.start_time)
    return [
        list((await temporal.get_workflow_handle(job_id, run_id=one.run_id).fetch_history()).events) for one in ordered
    ]


def attempts(history: Sequence[HistoryEvent]) -> list[int]:
    """Of each activity that was started."""
    return [
        event.activity_task_started_event_attributes.attempt
        for event in history
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
    ]


def largest_event(history: Sequence[HistoryEvent]) -> int:
    """Bytes of the largest event with all its payloads and failures."""
    return max(event.ByteSize() for event in history)
