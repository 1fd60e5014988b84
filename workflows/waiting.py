"""Waiting for conditions and activities, whatever is cancelled meanwhile."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, RetryState, is_cancelled_exception

T = TypeVar("T")


async def until(condition: Callable[[], bool], at_most: timedelta | None = None, summary: str | None = None) -> None:
    """Wait for the condition; raises TimeoutError. Ended by the cancellation of this task only.

    A coming default of the SDK (its logic flag 2) lets a cancellation of the workflow end each wait of each task.
    """
    while True:
        try:
            return await workflow.wait_condition(condition, timeout=at_most, timeout_summary=summary)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise


async def ended(handle: workflow.ActivityHandle[T]) -> T | None:
    """The activity's answer; None where it was cancelled. Its final failures end the workflow.

    The server retries nothing once cancellation was asked for: whatever that attempt failed with (its worker's death
    too) is then the end of the activity, and no failure of the job.
    """
    try:
        return await handle
    except ActivityError as error:
        if is_cancelled_exception(error) or error.retry_state is RetryState.CANCEL_REQUESTED:
            return None
        raise
