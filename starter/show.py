"""What the command line shows: a job's status in all its parts or in a line, and a balance."""

import json
import sys
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bulklane.starter.client import Submission
from bulklane.starter.pace import Speed, span
from bulklane.starter.shown import shown
from bulklane.starter.status import JobStatus
from bulklane.starter.terminal import Terminal
from bulklane.starter.verify import Report

PIPE_WIDTH = 160


def make_console() -> Console:
    """Standard output as it is now. What jobs contain is never read as markup."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH  # a pipe has none, and 80 would fold tables
    return Terminal(highlight=False, markup=False, soft_wrap=True, width=width)


def as_json(value: dict[str, Any]) -> str:
    """One line of JSON; times in ISO 8601 with their offset."""
    return json.dumps(value, default=_time, ensure_ascii=False)


def _time(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def status_json(status: JobStatus) -> dict[str, Any]:
    """A status as JSON values."""
    return {**asdict(status), "undecided": status.undecided, "over": status.over}


def submission_line(submission: Submission, status: JobStatus) -> str:
    """What came of a request: the job with its lane and size."""
    what = "was accepted before by the same request" if submission.replayed else "is accepted"
    size = "its rows are counted when it is frozen" if status.total is None else f"{status.total:,} rows"
    return f"job {submission.job_id} {what}: {status.lane} lane, {size}, {status.state}"


def print_status(console: Console, status: JobStatus) -> None:
    """All that is known of a job, a line each."""
    for name, value in _facts(status):
        if value:
            console.print(f"{name:<14}{value}")


def _facts(status: JobStatus) -> list[tuple[str, str]]:
    state = f"{status.state} ({status.reason})" if status.reason else str(status.state)
    asked = ", ".join(filter(None, [status.who, status.why]))
    return [
        ("job", status.job_id),
        ("operation", f"{status.operation} for {status.tenant}, {status.lane} lane, round {status.round}"),
        ("state", state),
        ("wish", "" if status.over else ", ".join(filter(None, [status.wish, status.wished_by, status.wished_why]))),
        ("throttle", _throttle(status)),
        ("slowed by", "; ".join(status.slowed_by)),
        ("rows", _rows(status)),
        ("outcomes", _outcomes(status)),
        ("folded", f"{status.duplicates:,} ids came more than once" if status.duplicates else ""),
        ("index behind", f"{status.owed_at_freeze:,} effects were owed to it" if status.owed_at_freeze else ""),
        ("effects owed", f"{status.owed:,}"),
        ("deliveries", _deliveries(status)),
        ("calls out", f"{status.calls_out:,}" if status.calls_out else ""),
        ("waits for", "; ".join(f"channel {name} is {why}" for name, why in status.waits.items())),
        ("undecided", f"{status.undecided:,}: see `bulklane undecided {status.job_id}`" if status.undecided else ""),
        ("asked by", asked),
        ("accepted", _at(status.accepted_at, None)),
        ("selected", _at(status.selected_at, status.accepted_at) + (", live up to here" if status.live else "")),
        ("opened", _at(status.opened_at, status.accepted_at)),
        ("rows free", _at(status.released_at, status.accepted_at)),
        ("over", _at(status.over_at, status.accepted_at)),
    ]


def _throttle(status: JobStatus) -> str:
    known = status.throttle
    if known is None:
        return ""
    rate = "" if known.rows_per_second is None else f"{known.rows_per_second:,.10g} rows/s"
    ranges = "" if known.parallelism is None else f"{known.parallelism} ranges side by side"
    return ", ".join(filter(None, [rate, ranges, known.who, known.why]))


def _rows(status: JobStatus) -> str:
    total = "a number not known yet" if status.total is None else f"{status.total:,}"
    return f"{status.processed:,} of {total}"


def _outcomes(status: JobStatus) -> str:
    counts = {
        "changed": status.changed,
        "skipped": status.skipped,
        "failed": status.failed,
        "not found": status.not_found,
        "not started": status.not_started if status.over else None,
    }
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count is not None)


def _deliveries(status: JobStatus) -> str:
    return "; ".join(
        f"{channel}: {', '.join(f'{count:,} {state}' for state, count in sorted(states.items()))}"
        for channel, states in sorted(status.deliveries.items())
    )


def _at(moment: datetime | None, begun: datetime | None) -> str:
    if moment is None:
        return ""
    after = f", {span((moment - begun).total_seconds())} after it was accepted" if begun else ""
    return f"{moment.isoformat(sep=' ', timespec='milliseconds')}{after}"


def progress_line(status: JobStatus, speed: Speed) -> str:
    """State, rows, rates, debts and the time left."""
    parts = [f"{status.state:<11} {_rows(status)} rows", f"{speed.rows:,.0f} rows/s", f"{status.owed:,} effects owed"]
    if speed.deliveries:
        parts.append(f"{speed.deliveries:,.0f} deliveries/s")
    if speed.seconds_left is not None:
        parts.append(f"about {span(speed.seconds_left)} left")
    if status.slowed_by:
        parts.append(f"slowed by: {'; '.join(status.slowed_by)}")
    return ", ".join(parts)


def outcome_line(status: JobStatus) -> str:
    """How a job ended."""
    took = f" after {span((status.over_at - status.accepted_at).total_seconds())}" if status.over_at else ""
    reason = f" ({status.reason})" if status.reason else ""
    deliveries = _deliveries(status)
    sent = f"; deliveries: {deliveries}" if deliveries else ""
    return f"job {status.job_id} is {status.state}{reason}{took}: {_outcomes(status)}; {status.owed:,} owed{sent}"


def print_report(console: Console, report: Report) -> None:
    """A balance as a table."""
    table = Table(title=f"balance of job {report.job_id}", title_justify="left")
    for heading in ("check", "expected", "found", "", "detail"):
        table.add_column(heading)
    for check in report.checks:
        mark = Text("holds", "green") if check.holds else Text("DIFFERS", "bold red")
        table.add_row(
            *map(Text, map(shown, (check.name, check.expected, check.found))), mark, Text(shown(check.detail))
        )
    console.print(table)
    broken = sum(not check.holds for check in report.checks)
    console.print("every line holds" if report.holds else f"{broken} of {len(report.checks)} lines differ")


def report_json(report: Report) -> dict[str, Any]:
    """A balance as JSON values."""
    return {"job_id": report.job_id, "holds": report.holds, "checks": [asdict(check) for check in report.checks]}
