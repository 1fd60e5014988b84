"""Every timeout and retry policy of every activity, each with its reason."""

from datetime import timedelta
from typing import Any

from temporalio.common import Priority, RetryPolicy
from temporalio.workflow import ActivityCancellationType

from bulklane.contracts.failure import FINAL_FAILURES
from bulklane.contracts.job import JobView
from bulklane.contracts.timing import LONGEST_BACKOFF

# Retried for ever: what an activity does is decided by the database, and a job never ends because a server was away.
# The longest backoff is part of the relation of the times (contracts/timing.py).
RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=LONGEST_BACKOFF),
    maximum_attempts=0,
    non_retryable_error_types=[str(failure) for failure in FINAL_FAILURES],
)

# One or two transactions; a shut waits for the chunks in flight. Longer than their statement timeout, so that the
# database gives up first and says why.
CONTROL_TIMEOUT = timedelta(seconds=30)

# They beat from a side thread, so that a worker that died in the middle of one is found out as soon as a segment's.
CONTROL_HEARTBEAT = timedelta(seconds=3)

# The walk stops by itself at its budget; a chunk and a retry may come on top. A worker that is gone is told by the
# heartbeat long before.
SEGMENT_GRACE = timedelta(seconds=60)

# One statement over the whole selection; heartbeats go on beside it.
FREEZE_TIMEOUT = timedelta(minutes=30)

# A call in flight and the settling of what was sent come after the budget, and a held channel is waited for in the slot
# for half an hour. A worker that is gone is told by the heartbeat.
DELIVER_GRACE = timedelta(seconds=2400)


def control_options(queue: str) -> dict[str, Any]:
    """For open, look, release, close and the verbs."""
    return {
        "task_queue": queue,
        "start_to_close_timeout": CONTROL_TIMEOUT,
        "heartbeat_timeout": CONTROL_HEARTBEAT,
        "retry_policy": RETRY,
    }


def freeze_options(job: JobView, queue: str) -> dict[str, Any]:
    """For the freeze of a selection."""
    return {
        "task_queue": queue,
        "start_to_close_timeout": FREEZE_TIMEOUT,
        "heartbeat_timeout": timedelta(seconds=job.heartbeat_seconds),
        "retry_policy": RETRY,
        "priority": fair(job),
    }


def segment_options(job: JobView, queue: str) -> dict[str, Any]:
    """For a segment. TRY_CANCEL (the default): a cancelled one isn't waited for, since the gate is shut by then."""
    return {
        "task_queue": queue,
        "start_to_close_timeout": timedelta(seconds=job.segment_seconds) + SEGMENT_GRACE,
        "heartbeat_timeout": timedelta(seconds=job.heartbeat_seconds),
        "retry_policy": RETRY,
        "priority": fair(job),
    }


def deliver_options(job: JobView, queue: str) -> dict[str, Any]:
    """For deliveries. A cancelled one is waited for, so that what it has sent is settled."""
    return {
        "task_queue": queue,
        "start_to_close_timeout": timedelta(seconds=job.deliver_seconds) + DELIVER_GRACE,
        "heartbeat_timeout": timedelta(seconds=job.heartbeat_seconds),
        "retry_policy": RETRY,
        "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        "priority": fair(job),
    }


def fair(job: JobView) -> Priority:
    """Tenants share a queue by turns (64 bytes is the longest fairness key that Temporal takes)."""
    return Priority(fairness_key=job.tenant.encode()[:64].decode(errors="ignore"))
