"""Walks a job with the real segment activity, in this process: no worker, no Temporal, the real database."""

import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, update
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from bulklane.activities.segment import Segment
from bulklane.contracts.failure import FailureType
from bulklane.contracts.timing import Timing
from bulklane.contracts.walk import SegmentRequest
from bulklane.database.job import Job
from bulklane.database.tables import range_
from bulklane.operations.operation import Registry

PATIENT = Timing(statement_timeout=20.0, transaction_timeout=30.0)
"""For tests that count transactions: a loaded machine must not add one that was too slow."""


def segment_activity(
    engine: Engine, registry: Registry, job: Job, range_no: int = 0, timing: Timing | None = None, **parts: Any
) -> Any:
    """One segment of a range, scheduled now; its answer. `parts`: the activity's `limits` and `health`."""
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, current_attempt_scheduled_time=datetime.now(UTC))
    segment = Segment(engine, registry, timing or Timing(), "test", **parts)
    return environment.run(segment.segment, SegmentRequest(job.job_no, job.round, range_no, 5.0))


def range_ended(
    engine: Engine, registry: Registry, job: Job, range_no: int, timing: Timing | None, **parts: Any
) -> bool:
    """Whether one more segment came to the range's end; trouble that passes is tried again, as Temporal does."""
    try:
        return bool(segment_activity(engine, registry, job, range_no, timing, **parts).end == "done")
    except ApplicationError as error:
        if error.type != FailureType.DATABASE_TROUBLE:
            raise
        return False


def walk_whole(
    engine: Engine,
    registry: Registry,
    job: Job,
    *,
    chunk: int | None = None,
    timing: Timing | None = None,
    **parts: Any,
) -> None:
    """Every range, side by side, to its end. `chunk`: the size to begin with; it adapts from there."""
    with engine.begin() as connection:
        if chunk is not None:
            connection.execute(update(range_).where(range_.c.job_no == job.job_no).values(chunk_size=chunk))
        of_round = (range_.c.job_no == job.job_no) & (range_.c.round == job.round)
        numbers = connection.execute(range_.select().where(of_round)).all()
    failures: list[BaseException] = []

    def walk(number: int) -> None:
        try:
            while not range_ended(engine, registry, job, number, timing, **parts):
                pass
        except BaseException as error:
            failures.append(error)

    walkers = [threading.Thread(target=walk, args=(row.no,)) for row in numbers]
    for walker in walkers:
        walker.start()
    for walker in walkers:
        walker.join()
    if failures:
        raise failures[0]
