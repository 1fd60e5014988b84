"""Ways to watch a job: a live bar in a terminal, lines in a pipe, JSON for programs."""

from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from bulklane.contracts.job import JobState
from bulklane.starter.pace import Speed, span
from bulklane.starter.show import as_json, outcome_line, progress_line, status_json
from bulklane.starter.shown import shown
from bulklane.starter.status import JobStatus

PLAIN_EVERY = 2.0


class View(Protocol):
    """Somebody who watches a job."""

    def show(self, seconds: float, status: JobStatus, speed: Speed) -> None:
        """A status, so many seconds after the watch began."""

    def say(self, line: str) -> None:
        """Something besides: the database is away."""

    def end(self, status: JobStatus | None) -> None:
        """The last status where the job is over; None where the watch ends before it."""


class BarView:
    """A live bar for a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(BarColumn(24), TextColumn("{task.description}", markup=False), console=console)
        self._task: TaskID = self._progress.add_task("", total=None)
        self._progress.start()

    def show(self, seconds: float, status: JobStatus, speed: Speed) -> None:
        """Move the bar."""
        line = f"{progress_line(status, speed)}, {span(seconds)}"
        # a bar without a total pulses for ever: an empty selection is a full one
        total = None if status.total is None else max(status.total, 1)
        done = total if total is not None and status.processed >= (status.total or 0) else status.processed
        self._progress.update(self._task, total=total, completed=done, description=shown(line))

    def say(self, line: str) -> None:
        """Above the bar."""
        self._progress.console.print(line)

    def end(self, status: JobStatus | None) -> None:
        """The bar stays as it was."""
        self._progress.stop()
        if status is not None:
            self._console.print(outcome_line(status))


class LineView:
    """Lines for a file or a pipe: each new state, and the numbers every two seconds where they moved."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: tuple[JobState, int, int] | None = None
        self._printed = 0.0

    def show(self, seconds: float, status: JobStatus, speed: Speed) -> None:
        """A line where something is new."""
        now = (status.state, status.processed, status.owed)
        is_new = self._last is None or self._last[0] is not status.state
        if is_new or (now != self._last and seconds >= self._printed + PLAIN_EVERY):
            self._console.print(f"{seconds:7.1f} s  {progress_line(status, speed)}")
            self._last, self._printed = now, seconds

    def say(self, line: str) -> None:
        """A line."""
        self._console.print(line)

    def end(self, status: JobStatus | None) -> None:
        """How it ended."""
        if status is not None:
            self._console.print(outcome_line(status))


class JsonView:
    """A line of JSON for each status that differs from the one before."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: JobStatus | None = None

    def show(self, seconds: float, status: JobStatus, speed: Speed) -> None:
        """A line where something is new."""
        del seconds, speed
        if status != self._last:
            self._console.print(as_json(status_json(status)))
            self._last = status

    def say(self, line: str) -> None:
        """Nothing: the output is for programs."""

    def end(self, status: JobStatus | None) -> None:
        """Nothing: the last line tells."""


def make_view(console: Console, *, json_lines: bool) -> View:
    """The view that fits what standard output is."""
    if json_lines:
        return JsonView(console)
    return BarView(console) if console.is_terminal else LineView(console)
