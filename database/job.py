"""The job's row: found, locked, moved from state to state."""

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, update

from bulklane.contracts.job import OVER_STATES, JobState, check_transition
from bulklane.database.range import Counters
from bulklane.database.tables import job


class JobUnknown(LookupError):
    """There is no such job (or it is another tenant's, which is the same to a caller)."""


@dataclass(frozen=True)
class Job:
    """A job as its row says."""

    job_no: int
    job_id: str
    tenant: str
    operation: str
    parameters: dict[str, Any]
    content_hash: str
    lane: str
    priority: int
    parallelism: int
    hold_lease: bool
    channels: list[str]
    state: JobState
    reason: str
    round: int
    opened_round: int
    run_id: str | None
    run_scheduled: int
    selection_no: int
    first_selection_no: int
    turn: int
    who: str
    why: str
    accepted_at: datetime
    opened_at: datetime | None
    released_at: datetime | None
    over_at: datetime | None
    total: int | None
    changed: int
    skipped: int
    failed: int
    not_found: int
    not_started: int

    @property
    def over(self) -> bool:
        """Whether the state is a terminal one."""
        return self.state in OVER_STATES


_COLUMNS = [job.c[field.name] for field in fields(Job)]
_BY_NUMBER = select(*_COLUMNS).where(job.c.job_no == bindparam("job_no"))
_LOCK = _BY_NUMBER.with_for_update()
_BY_ID = select(*_COLUMNS).where(job.c.job_id == bindparam("job_id"))
_LIST = (
    select(*_COLUMNS)
    .where(job.c.tenant == bindparam("tenant"), job.c.job_no < bindparam("before"))
    .order_by(job.c.job_no.desc())
    .limit(bindparam("most"))
)
_STAMP = (
    update(job)
    .where(job.c.job_no == bindparam("number"), job.c.run_scheduled < bindparam("scheduled"))
    .values(
        run_id=bindparam("run"),
        run_scheduled=bindparam("scheduled"),
        opened_round=job.c.round,
        opened_at=func.coalesce(job.c.opened_at, func.clock_timestamp()),
    )
)


_NOTE_REASON = (
    update(job)
    .where(job.c.job_no == bindparam("number"), job.c.round == bindparam("of_round"), job.c.state == bindparam("at"))
    .values(reason=bindparam("why_so"))
)


def find_job(connection: Connection, job_id: str, tenant: str | None = None) -> Job | None:
    """The job of that id; None where there is none, or it is another tenant's."""
    row = connection.execute(_BY_ID, {"job_id": job_id}).one_or_none()
    found = None if row is None else _job(row)
    return found if found is None or tenant in (None, found.tenant) else None


def get_job(connection: Connection, job_no: int) -> Job:
    """The job of that number; raises JobUnknown."""
    return _one(connection.execute(_BY_NUMBER, {"job_no": job_no}).one_or_none(), job_no)


def lock_job(connection: Connection, job_no: int) -> Job:
    """The job, its row locked: first in every step that moves it. Raises JobUnknown."""
    return _one(connection.execute(_LOCK, {"job_no": job_no}).one_or_none(), job_no)


def list_jobs(connection: Connection, tenant: str, *, before: int, most: int) -> list[Job]:
    """The tenant's jobs below a job number, newest first."""
    rows = connection.execute(_LIST, {"tenant": tenant, "before": before, "most": most})
    return [_job(row) for row in rows]


def stamp_run(connection: Connection, job_no: int, *, run_id: str, scheduled: int) -> None:
    """Note which run opened the present round; `scheduled` (microseconds, the server's clock) only grows."""
    connection.execute(_STAMP, {"number": job_no, "run": run_id, "scheduled": scheduled})


def note_reason(connection: Connection, seen: Job, reason: str) -> None:
    """Say why a job waits; nothing where it has moved on since it was seen."""
    values = {"number": seen.job_no, "of_round": seen.round, "at": seen.state, "why_so": reason[:500]}
    connection.execute(_NOTE_REASON, values)


def move(connection: Connection, old: Job, state: JobState, **values: Any) -> Job:
    """Set a locked job's state, and what goes with it. Raises ValueError where the table has no such arrow."""
    check_transition(old.state, state)
    if state in OVER_STATES:
        values["over_at"] = func.clock_timestamp()
    statement = update(job).where(job.c.job_no == old.job_no).values(state=state, **values).returning(*_COLUMNS)
    return _job(connection.execute(statement).one())


def fix_counters(connection: Connection, old: Job, counters: Counters, *, total: int | None, not_started: int) -> Job:
    """Write the round's final counters into a locked job, and that its records are free."""
    statement = (
        update(job)
        .where(job.c.job_no == old.job_no)
        .values(
            changed=counters.changed,
            skipped=counters.skipped,
            failed=counters.failed,
            not_found=counters.not_found,
            not_started=not_started,
            total=total,
            released_at=func.coalesce(job.c.released_at, func.clock_timestamp()),
        )
        .returning(*_COLUMNS)
    )
    return _job(connection.execute(statement).one())


def _one(row: Any, job_no: int) -> Job:
    if row is None:
        raise JobUnknown(f"there is no job number {job_no}")
    return _job(row)


def _job(row: Any) -> Job:
    values = dict(row._mapping)
    return Job(**(values | {"state": JobState(values["state"])}))
