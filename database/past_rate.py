"""How fast the latest jobs of an operation walked, from their own times."""

from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, extract, func, select

from bulklane.contracts.job import JobState
from bulklane.database.tables import chunk, job

LATEST = 5


@dataclass(frozen=True)
class PastRate:
    """So many records in so many seconds from opening to the last chunk, over so many jobs."""

    jobs: int
    records: int
    seconds: float


_RECORDS = job.c.changed + job.c.skipped + job.c.failed + job.c.not_found
# a lease may be held for effects long after the last chunk
_LAST_CHUNK = select(func.max(chunk.c.written_at)).where(chunk.c.job_no == job.c.job_no).scalar_subquery()
_ENDED = (
    select(
        _RECORDS.label("records"),
        extract("epoch", func.coalesce(_LAST_CHUNK, job.c.released_at) - job.c.opened_at).label("seconds"),
    )
    .where(
        job.c.operation == bindparam("of_operation"),
        job.c.state.in_([JobState.COMPLETED, JobState.COMPLETED_WITH_FAILURES]),
        # a retried job stood still between its rounds
        job.c.round == 1,
        job.c.released_at > job.c.opened_at,
        _RECORDS > 0,
    )
    .order_by(job.c.job_no.desc())
    .limit(LATEST)
    .subquery("ended")
)
_RATE = select(func.count(), func.sum(_ENDED.c.records), func.sum(_ENDED.c.seconds))


def past_rate(connection: Connection, operation: str) -> PastRate | None:
    """Of the operation's latest jobs that came to their end in one round; None where there is none."""
    jobs, records, seconds = connection.execute(_RATE, {"of_operation": operation}).one()
    return PastRate(jobs, int(records), float(seconds)) if jobs else None
