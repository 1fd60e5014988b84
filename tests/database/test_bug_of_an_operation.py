"""An operation with a bug ends its job as failed within minutes, and nobody else waits for it."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, Update
from temporalio.testing import ActivityEnvironment

from bulklane.activities.segment import MOST_ATTEMPTS_OF_A_BUG, Segment
from bulklane.contracts.job import JobState
from bulklane.contracts.timing import Timing
from bulklane.contracts.walk import SegmentRequest
from bulklane.database.job import Job
from bulklane.workflows.activity_options import RETRY
from tests.database.jobs import accepted, look, opened, registry_of, rows, walk
from tests.support.ledgers import AddParameters, AddToEntries, amounts, make_entries

FAILS_WITHIN = 120.0


class Broken(AddToEntries):
    """Deployed with a bug."""

    name = "broken"
    family = "add_to_entries"

    def change(self, parameters: AddParameters) -> Update:
        """Never comes back."""
        raise TypeError("unsupported operand type(s) for +: 'int' and 'str'")


REGISTRY = registry_of(Broken())


def attempt_of(engine: Engine, job: Job, attempt: int) -> None:
    """One attempt of a segment, as Temporal makes it."""
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, attempt=attempt, current_attempt_scheduled_time=datetime.now(UTC))
    with pytest.raises(TypeError):
        environment.run(
            Segment(engine, REGISTRY, Timing(), "test").segment, SegmentRequest(job.job_no, job.round, 0, 5.0)
        )


@pytest.mark.case("C24")
def test_a_type_error_ends_the_job_and_frees_its_lease(engine: Engine) -> None:
    make_entries(engine, 10)
    job = opened(engine, accepted(engine, registry=REGISTRY, parallelism=1))
    for attempt in range(1, MOST_ATTEMPTS_OF_A_BUG):
        attempt_of(engine, job, attempt)
    assert look(engine, job).state is JobState.WALKING  # a deploy may still mend it
    attempt_of(engine, job, MOST_ATTEMPTS_OF_A_BUG)
    ended = look(engine, job)
    assert (ended.state, ended.reason) == (JobState.FAILED, "the operation fails: TypeError")
    assert (ended.changed, ended.not_started) == (0, 10)
    assert rows(engine, "SELECT count(*) FROM bulklane.lease") == [(0,)]
    # the data is free: another job of the family walks
    other = opened(engine, accepted(engine, parallelism=1))
    walk(engine, other)
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * 10


def test_the_attempts_of_a_bug_take_no_more_than_minutes() -> None:
    first, longest = RETRY.initial_interval.total_seconds(), (RETRY.maximum_interval or RETRY.initial_interval)
    pauses = [
        min(first * RETRY.backoff_coefficient**number, longest.total_seconds())
        for number in range(MOST_ATTEMPTS_OF_A_BUG - 1)
    ]
    assert sum(pauses) < FAILS_WITHIN
