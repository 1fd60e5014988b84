"""Undecided deliveries for the client: listed page by page, and decided as they were listed."""

from collections.abc import Sequence

from sqlalchemy import Engine

from bulklane.contracts.message import VerbMessage
from bulklane.database import decide
from bulklane.database.decide import Decided
from bulklane.database.engine import limited_transaction
from bulklane.database.job import Job, JobUnknown, find_job
from bulklane.database.undecided import MOST, Undecided, undecided

# many decisions are one statement each way; a job's row is locked so long
STATEMENT_SECONDS = 10.0


def list_undecided(
    engine: Engine, job_id: str, *, tenant: str | None = None, effect: str | None = None
) -> list[Undecided]:
    """All of a job's undecided deliveries, or of one of its effects. Raises JobUnknown."""
    job = _job(engine, job_id, tenant)
    found: list[Undecided] = []
    with engine.connect() as connection:
        while True:
            after = found[-1] if found else None
            page = undecided(connection, job.job_no, effect=effect, after=after)
            found += page
            if len(page) < MOST:
                return found


def write_decisions(
    engine: Engine, job_id: str, messages: Sequence[VerbMessage], *, tenant: str | None = None
) -> list[Decided]:
    """Write the decisions of these messages, a transaction each; what came of each decision. Raises JobUnknown."""
    job = _job(engine, job_id, tenant)
    answers: list[Decided] = []
    for message in messages:
        with limited_transaction(engine, statement=STATEMENT_SECONDS, transaction=STATEMENT_SECONDS * 2) as connection:
            answers += decide.decide(connection, job.job_no, message)
    return answers


def _job(engine: Engine, job_id: str, tenant: str | None) -> Job:
    with engine.connect() as connection:
        job = find_job(connection, job_id, tenant)
    if job is None:
        raise JobUnknown(f"there is no job {job_id!r}")
    return job
