"""How an activity ended that may have been cancelled."""

from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, RetryState, is_cancelled_exception

T = TypeVar("T")


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
