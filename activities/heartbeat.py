"""Heartbeats, the number of an attempt, and why an attempt should stop."""

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from bulklane.contracts.failure import FailureType


def schedule_number() -> int:
    """When the server scheduled this attempt, in microseconds: the epoch under which it may walk a range.

    It changes with each retry, activity reset and run, and never goes back for a later attempt.
    """
    scheduled = activity.info().current_attempt_scheduled_time
    return int(scheduled.timestamp() * 1_000_000 + 0.5)


def give_way() -> None:
    """Raise where the attempt was paused, reset or cancelled: a return would undo a pause in the UI."""
    details = activity.cancellation_details()
    if details is not None and (details.paused or details.reset):
        word = "paused" if details.paused else "reset"
        raise ApplicationError(f"the activity was {word}", type=FailureType.YIELDED)
    if activity.is_cancelled() and not activity.is_worker_shutdown():
        raise ApplicationError("the activity was cancelled", type=FailureType.YIELDED)


def superseded(mine: int, theirs: int) -> ApplicationError:
    """A later attempt owns the range: come back when the server's clock is past it, since returning would spin."""
    ahead = timedelta(microseconds=max(0, theirs - mine)) + timedelta(milliseconds=50)
    return ApplicationError("a later attempt owns the range", type=FailureType.SUPERSEDED, next_retry_delay=ahead)


@contextmanager
def beating(interval: float) -> Iterator[None]:
    """Heartbeat every `interval` seconds from a side thread, beside a statement that takes long."""
    ended = threading.Event()
    context = contextvars.copy_context()

    def beat() -> None:
        while not ended.wait(interval):
            activity.heartbeat()

    thread = threading.Thread(target=context.run, args=(beat,), name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
