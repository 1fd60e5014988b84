"""Trouble that passes, and trouble that doesn't: budget, fairness after an outage, and what makes a chunk smaller."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest
from sqlalchemy import Engine, text
from temporalio.exceptions import ApplicationError

from bulklane.contracts.job import JobState, Wish
from bulklane.contracts.message import Verb, VerbMessage
from bulklane.contracts.timing import Timing
from bulklane.database.retry import retry
from bulklane.database.wish import read_wish
from tests.database.jobs import REGISTRY, Background, accepted, look, opened, rows, stands
from tests.support.ledgers import FIRST, amounts, make_entries
from tests.support.waiting import until
from tests.support.walking import PATIENT, segment_activity, walk_whole

TROUBLED = 'SELECT troubled_since IS NOT NULL, slowed_by FROM bulklane."range"'
QUICK = Timing(trouble_budget=0.3)


@contextmanager
def every_chunk_fails(engine: Engine, code: str = "40P01") -> Iterator[None]:
    """Each chunk ends with this error when it commits, until the block ends."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION fail_all() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                f" RAISE EXCEPTION 'by the test' USING ERRCODE = '{code}'; END $$;"
                "CREATE CONSTRAINT TRIGGER fail_all AFTER INSERT ON bulklane.chunk DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION fail_all()"
            )
        )
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP TRIGGER fail_all ON bulklane.chunk; DROP FUNCTION fail_all"))


@pytest.mark.parametrize("code", ["40P01", "40001", "55P03", "57P01", "08006"])
def test_beyond_the_budget_the_job_fails_with_the_reason_and_retry_opens_it_again(engine: Engine, code: str) -> None:
    make_entries(engine, 100)
    job = opened(engine, accepted(engine, parallelism=1))
    with every_chunk_fails(engine, code):
        assert segment_activity(engine, REGISTRY, job, timing=QUICK).end == "wish"
    failed = look(engine, job)
    assert (failed.state, failed.changed, failed.not_started) == (JobState.FAILED, 0, 100)
    assert f"({code}); no chunk of range 0 got through for 0.3 s" in failed.reason
    with engine.begin() as connection:
        assert retry(connection, job.job_no, MESSAGE, of_round=1, small_max_records=1000).records == 100
    again = opened(engine, stands(engine, job), "run-2", 2)
    walk_whole(engine, REGISTRY, again, timing=QUICK)
    assert look(engine, job).state is JobState.DELIVERING
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * 100


MESSAGE = VerbMessage("again", Verb.RETRY, "ann", "put right")


def test_trouble_is_told_survives_the_attempt_and_ends_with_a_chunk(engine: Engine) -> None:
    make_entries(engine, 100)
    job = opened(engine, accepted(engine, parallelism=1))
    with every_chunk_fails(engine):
        walk = Background(lambda: segment_activity(engine, REGISTRY, job))
        until(lambda: rows(engine, TROUBLED)[0][0], what="the trouble is noted")
        assert rows(engine, TROUBLED) == [(True, "the database: DeadlockDetected (40P01)")]
        since = rows(engine, 'SELECT troubled_since FROM bulklane."range"')
        with pytest.raises(ApplicationError, match="DeadlockDetected"):
            walk.result()
        assert rows(engine, 'SELECT troubled_since FROM bulklane."range"') == since
    assert segment_activity(engine, REGISTRY, job).end == "done"
    assert rows(engine, TROUBLED) == [(False, "")]


@pytest.mark.parametrize(("tried_before", "end"), [("1 hour 50 minutes", "run"), ("1 second", "stop")])
def test_time_in_which_nobody_could_try_is_not_held_against_the_job(
    engine: Engine, tried_before: str, end: str
) -> None:
    """Trouble for ten minutes, then the database is away for long: when it is back the budget isn't over."""
    make_entries(engine, 100)
    job = opened(engine, accepted(engine, parallelism=1))
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE bulklane.\"range\" SET troubled_since = clock_timestamp() - interval '2 hours',"
                f" troubled_at = clock_timestamp() - interval '{tried_before}'"
            )
        )
    with every_chunk_fails(engine):
        segment = Background(lambda: segment_activity(engine, REGISTRY, job))
        noted = "SELECT count(*) FROM bulklane.\"range\" WHERE troubled_at > clock_timestamp() - interval '1 second'"
        until(lambda: rows(engine, noted) == [(1,)] and "DeadlockDetected" in rows(engine, TROUBLED)[0][1])
        with engine.connect() as connection:
            assert read_wish(connection, job.job_no).wish is Wish(end)
    assert segment.result().end == ("done" if end == "run" else "wish")


def test_a_chunk_whose_commit_takes_too_long_is_made_smaller(engine: Engine) -> None:
    """The statement is quick; what is deferred to the commit isn't: the transaction's own limit ends it."""
    make_entries(engine, 1000)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN PERFORM pg_sleep(0.001); RETURN NULL; END $$;"
                "CREATE CONSTRAINT TRIGGER take_time AFTER UPDATE ON entry DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION take_time()"
            )
        )
    job = opened(engine, accepted(engine, parallelism=1))
    walk_whole(engine, REGISTRY, job, chunk=1000)
    assert rows(engine, "SELECT max(hi - lo) <= 500 FROM bulklane.chunk") == [(True,)]
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * 1000


def test_a_chunk_that_somebody_cancels_is_not_made_smaller(engine: Engine) -> None:
    make_entries(engine, 1000)
    job = opened(engine, accepted(engine, parallelism=1))
    waits = (
        "SELECT pid, xact_start FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND application_name LIKE 'bulklane%'"
    )
    with engine.begin() as user:
        user.execute(text("SELECT 1 FROM entry WHERE booked_at = :at FOR UPDATE"), {"at": FIRST})
        segment = Background(lambda: segment_activity(engine, REGISTRY, job, timing=PATIENT))
        seen: set[tuple[int, datetime]] = set()
        for _ in range(2):
            # who was cancelled may be shown as waiting still, while its session is another's already
            found = until(lambda: set(rows(engine, waits)) - seen, what="the chunk waits for the user's row")
            seen.update(found)
            ((pid, _began),) = found
            assert rows(engine, "SELECT pg_cancel_backend(:pid)", pid=pid) == [(True,)]
    assert segment.result().end == "done"
    assert rows(engine, "SELECT hi - lo FROM bulklane.chunk") == [(1000,)]
