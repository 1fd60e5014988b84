"""How fast a watched job goes, and about how long it still takes: from what was seen in the last seconds."""

from collections import deque
from dataclasses import dataclass

from bulklane.contracts.job import JobState
from bulklane.starter.status import JobStatus

WINDOW_SECONDS = 10.0


@dataclass(frozen=True)
class Speed:
    """Rates a second; `seconds_left` is None where nothing is known of it."""

    rows: float = 0.0
    deliveries: float = 0.0
    seconds_left: float | None = None


class Pace:
    """Takes a job's statuses in their order."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def note(self, at: float, status: JobStatus) -> Speed:
        """The speed, now that this status was seen at this time in seconds."""
        done = sum(states.get("done", 0) for states in status.deliveries.values())
        self._seen.append((at, status.processed, done))
        while len(self._seen) > 2 and self._seen[0][0] < at - WINDOW_SECONDS:
            self._seen.popleft()
        first_at, first_rows, first_done = self._seen[0]
        seconds = at - first_at
        if seconds <= 0:
            return Speed()
        rows, deliveries = (status.processed - first_rows) / seconds, (done - first_done) / seconds
        return Speed(max(rows, 0.0), max(deliveries, 0.0), _left(status, rows, deliveries))


def _left(status: JobStatus, rows: float, deliveries: float) -> float | None:
    if status.state is JobState.WALKING and status.total is not None and rows > 0:
        return (status.total - status.processed) / rows
    if status.state in (JobState.DELIVERING, JobState.CANCELLING) and deliveries > 0:
        return status.owed / deliveries
    return None


def span(seconds: float) -> str:
    """A duration for people: `0.8 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left} min" if hours else f"{minutes} min {rest} s"
