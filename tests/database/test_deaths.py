"""A record that kills its worker stands alone after five deaths, is reported, and its neighbours succeed."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine
from temporalio.testing import ActivityEnvironment

from bulklane.activities.plan import plan_chunks
from bulklane.activities.segment import Segment
from bulklane.contracts.timing import Timing
from bulklane.contracts.walk import SegmentRequest
from bulklane.database import range as ranges
from bulklane.database.chunk import apply_chunk
from bulklane.database.job import Job
from bulklane.database.range import RangeRef, largest_after
from bulklane.database.selection import slice_at
from tests.database.jobs import REGISTRY, accepted, opened, rows
from tests.support.ledgers import amounts, make_entries


def die_at(engine: Engine, job: Job, killer: int, epoch: int) -> bool:
    """A worker walks as segments do and dies in the chunk with the killer; False where that stands alone."""
    ref = RangeRef(job.job_no, 1, 0)
    with engine.begin() as connection:
        standing = ranges.take(connection, ref, epoch)
        plan, stored = plan_chunks(connection, REGISTRY, job)
    while True:
        piece = slice_at(stored.selection_no, standing.cursor, standing.hi, largest_after(standing.deaths))
        if standing.deaths > ranges.MOST_BLAMELESS and piece.lo == killer:
            return False
        if piece.lo <= killer < piece.hi:
            return True
        with engine.begin() as connection:
            assert apply_chunk(connection, plan, ref, epoch, piece)
        standing = standing.at(piece.hi)


@pytest.mark.parametrize("killer", [0, 1, 417, 999])
def test_it_stands_alone_after_few_deaths_and_is_reported(engine: Engine, killer: int) -> None:
    make_entries(engine, 1000)
    job = opened(engine, accepted(engine, parallelism=1))
    deaths = 0
    while die_at(engine, job, killer, epoch=deaths + 1):
        deaths += 1
        assert deaths <= 8, "one that may have been chance, five to narrow it down, two alone"
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, current_attempt_scheduled_time=datetime.now(UTC))
    answer: Any = environment.run(
        Segment(engine, REGISTRY, Timing(), "test").segment, SegmentRequest(job.job_no, 1, 0, 5.0)
    )
    assert answer.end == "done"
    assert rows(engine, "SELECT kind, code FROM bulklane.outcome") == [("failed", "worker_died")]
    with engine.connect() as connection:
        assert sorted(amounts(connection)) == [0] + [1] * 999


@pytest.mark.case("C54")
@pytest.mark.parametrize("stuck_first", [False, True])
def test_kills_of_healthy_workers_blame_no_record(engine: Engine, stuck_first: bool) -> None:
    """Killed again and again, also once before any progress: as long as epochs get on, no record is blamed."""
    make_entries(engine, 6000)
    job = opened(engine, accepted(engine, parallelism=1))
    ref = RangeRef(job.job_no, 1, 0)
    if stuck_first:
        with engine.begin() as connection:
            ranges.take(connection, ref, 1)
    for epoch in range(2, 30):
        with engine.begin() as connection:
            standing = ranges.take(connection, ref, epoch)
            plan, stored = plan_chunks(connection, REGISTRY, job)
        assert standing.deaths <= ranges.MOST_DEATHS
        size = min(100, largest_after(standing.deaths))
        piece = slice_at(stored.selection_no, standing.cursor, standing.hi, size)
        with engine.begin() as connection:
            assert apply_chunk(connection, plan, ref, epoch, piece)
