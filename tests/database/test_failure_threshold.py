"""The failure threshold of an operation ends a job, and a retry takes what failed and what was not started."""

import threading
from typing import Any

import pytest
from sqlalchemy import Engine, text, update

from bulklane.contracts.job import JobState
from bulklane.contracts.message import Verb, VerbMessage
from bulklane.contracts.walk import SegmentEnd
from bulklane.database.retry import retry
from bulklane.database.tables import range_
from bulklane.operations.failure_threshold import FailureThreshold
from bulklane.operations.operation import OperationError, Registry
from tests.database.jobs import accepted, look, opened, registry_of, rows, stands
from tests.support.ledgers import AddToEntries, amounts, make_entries
from tests.support.walking import segment_activity, walk_whole


def bearing(**threshold: Any) -> Registry:
    """The operation of the tests, bearing so many failures."""
    made = type("Bearing", (AddToEntries,), {"effects": (), "failure_threshold": FailureThreshold(**threshold)})
    return registry_of(made())


def make_bad(engine: Engine, count: int, condition: str) -> None:
    """So many entries, those of a condition over their number made bad."""
    make_entries(engine, count)
    with engine.begin() as connection:
        number = "extract(microseconds FROM booked_at)::int"
        connection.execute(text(f"UPDATE entry SET amount = 999 WHERE {condition.format(n=number)}"))


def walk_to_its_end(engine: Engine, registry: Registry, job: Any, chunk: int = 10) -> list[str]:
    """Segments of the only range until they end otherwise than by their budget; how they ended."""
    with engine.begin() as connection:
        connection.execute(update(range_).where(range_.c.job_no == job.job_no).values(chunk_size=chunk))
    ends: list[str] = []
    while not ends or ends[-1] == SegmentEnd.CONTINUE:
        ends.append(segment_activity(engine, registry, job).end)
    return ends


def test_a_job_with_too_many_failures_ends_as_failed_and_is_retried_whole(engine: Engine) -> None:
    make_bad(engine, 2000, "{n} % 4 = 1")
    registry = bearing(most_failures=20)
    job = opened(engine, accepted(engine, registry=registry, parallelism=1))
    assert walk_to_its_end(engine, registry, job) == [SegmentEnd.WISH]
    ended = look(engine, job)
    assert ended.state is JobState.FAILED
    assert ended.reason == f"{ended.failed} of {2000 - ended.not_started} records failed, more than 20"
    assert 20 < ended.failed < 40
    assert ended.changed + ended.failed + ended.not_started == 2000
    assert ended.not_started > 1800
    assert rows(engine, "SELECT count(*) FROM bulklane.lease") == [(0,)]
    with engine.begin() as connection:
        connection.execute(text("UPDATE entry SET amount = 0 WHERE amount = 999"))
        again = retry(
            connection,
            job.job_no,
            VerbMessage("again", Verb.RETRY, "ann", "mended"),
            of_round=1,
            small_max_records=100,
        )
    assert again.records == ended.failed + ended.not_started
    job = opened(engine, again.job)
    walk_whole(engine, registry, job)
    done = look(engine, job)
    assert (done.state, done.changed, done.failed, done.not_started) == (JobState.COMPLETED, 2000, 0, 0)
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * 2000


def test_a_share_counts_from_so_many_records_on_and_in_each_round_anew(engine: Engine) -> None:
    make_bad(engine, 1000, "{n} % 10 = 1")
    registry = bearing(most_share=0.05, seen=500)
    job = opened(engine, accepted(engine, registry=registry, parallelism=1))
    walk_to_its_end(engine, registry, job)
    ended = look(engine, job)
    assert (ended.state, ended.reason.split(",")[1]) == (JobState.FAILED, " more than 0.05 of them")
    assert 500 <= ended.changed + ended.failed < 1000
    with engine.begin() as connection:
        message = VerbMessage("again", Verb.RETRY, "ann", "what is left has fewer than 500 records")
        again = retry(connection, job.job_no, message, of_round=1, small_max_records=100)
    assert again.records < 600
    job = opened(engine, again.job)
    walk_to_its_end(engine, registry, job, chunk=1000)
    assert look(engine, job).state in (JobState.COMPLETED_WITH_FAILURES, JobState.FAILED)
    # the first round's failures aren't counted again
    assert stands(engine, job).failed == 100


def test_failures_that_are_borne_end_nothing(engine: Engine) -> None:
    make_bad(engine, 300, "{n} < 20")
    registry = bearing(most_failures=20, most_share=0.1, seen=100)
    job = opened(engine, accepted(engine, registry=registry))
    walk_whole(engine, registry, job)
    ended = look(engine, job)
    assert (ended.state, ended.changed, ended.failed) == (JobState.COMPLETED_WITH_FAILURES, 280, 20)


def test_an_attempt_after_a_kill_looks_before_its_first_chunk(engine: Engine) -> None:
    make_bad(engine, 100, "{n} < 50")
    registry, indulgent = bearing(most_failures=5), bearing(most_failures=1000)
    job = opened(engine, accepted(engine, registry=indulgent, parallelism=1))
    walk_to_its_end(engine, indulgent, job, chunk=100)
    before = rows(engine, "SELECT count(*) FROM bulklane.chunk")
    assert segment_activity(engine, registry, job).end == SegmentEnd.WISH
    assert rows(engine, "SELECT count(*) FROM bulklane.chunk") == before
    assert look(engine, job).state is JobState.FAILED


def test_the_ranges_of_a_job_are_counted_together(engine: Engine) -> None:
    make_bad(engine, 4000, "{n} % 2 = 1")
    registry = bearing(most_failures=100)
    job = opened(engine, accepted(engine, registry=registry, parallelism=2))
    with engine.begin() as connection:
        connection.execute(update(range_).values(chunk_size=20))
    ends: list[str] = []
    walkers = [
        threading.Thread(target=lambda number=number: ends.append(segment_activity(engine, registry, job, number).end))
        for number in (0, 1)
    ]
    for walker in walkers:
        walker.start()
    for walker in walkers:
        walker.join()
    assert ends == [SegmentEnd.WISH] * 2
    ended = look(engine, job)
    assert ended.state is JobState.FAILED
    assert 100 < ended.failed < 400


@pytest.mark.parametrize(
    ("threshold", "says"),
    [
        ({}, "needs most_failures, most_share or both"),
        ({"most_failures": -1}, "not -1"),
        ({"most_share": 5}, "not 5"),
        ({"most_share": "0.5"}, "not '0.5'"),
        ({"most_share": float("nan")}, "not nan"),
        ({"most_failures": True}, "not True"),
        ({"most_failures": 1.5}, "not 1.5"),
        ({"most_share": 0.5, "seen": 0}, "at least 1"),
    ],
)
def test_a_threshold_that_cannot_be_meant_is_refused(threshold: dict[str, Any], says: str) -> None:
    with pytest.raises(OperationError, match=says):
        FailureThreshold(**threshold)
