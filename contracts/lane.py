"""Lanes and task queues, and which worker role serves which."""

from enum import StrEnum

EFFECTS_PREFIX = "effects:"


class Lane(StrEnum):
    """Where a job's segments run; chosen by its measured size, never by the caller."""

    SMALL = "small"
    BULK = "bulk"


SMALL_QUEUE = "small"
BULK_QUEUE = "bulk"
CONTROL_QUEUE = "control"
JOBS_QUEUE = "jobs"


def lane_of(records: int, small_max_records: int) -> Lane:
    """The lane of a selection of that many records."""
    return Lane.SMALL if records <= small_max_records else Lane.BULK


def workflow_queue(lane: Lane) -> str:
    """The queue on which the workflow of a job of this lane is started."""
    return SMALL_QUEUE if lane is Lane.SMALL else JOBS_QUEUE


def segment_queue(lane: Lane) -> str:
    """The queue of a lane's segments and freezes."""
    return SMALL_QUEUE if lane is Lane.SMALL else BULK_QUEUE


def control_queue(workflow_task_queue: str) -> str:
    """The queue of open, look, release, close and wish for a workflow that runs on the given queue."""
    return SMALL_QUEUE if workflow_task_queue == SMALL_QUEUE else CONTROL_QUEUE


def effects_queue(channel: str) -> str:
    """The queue of a channel's deliveries."""
    return f"effects-{channel}"
