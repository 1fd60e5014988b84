"""Retry: the next round for what failed or was not started, and for refused deliveries; nothing else is touched."""

import threading
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from bulklane.contracts.effect import DeliveryState
from bulklane.contracts.job import JobState, Wish
from bulklane.contracts.message import Verb, VerbMessage
from bulklane.database import delivery as deliveries
from bulklane.database import effect
from bulklane.database import range as ranges
from bulklane.database.accept import Conflict
from bulklane.database.chunk import fail_chunk, keys_of
from bulklane.database.delivery import Settlement
from bulklane.database.job import Job
from bulklane.database.range import RangeRef
from bulklane.database.retry import Retried
from bulklane.database.selection import slice_at
from bulklane.database.wish import set_wish
from bulklane.starter.accept import retry_job
from tests.database.jobs import accepted, look, opened, rows, stands, walk
from tests.support.ledgers import AddToEntries, amounts, make_entries

D = DeliveryState
TYPES = AddToEntries.records.key_types


def retry(engine: Engine, job: Job, of_round: int | None = None) -> Retried:
    """Somebody presses retry."""
    message = VerbMessage(uuid4().hex, Verb.RETRY, "ann", "again")
    return retry_job(engine, job.job_id, message, tenant=None, of_round=of_round, small_max_records=100)


def fail_first(engine: Engine, job: Job, count: int) -> None:
    """The first records of the range fail, each alone."""
    ref = RangeRef(job.job_no, job.round, 0)
    for _ in range(count):
        with engine.begin() as connection:
            standing = ranges.take(connection, ref, 1)
            piece = slice_at(job.selection_no, standing.cursor, standing.hi, 1)
            (key,) = keys_of(connection, piece, TYPES)
            assert fail_chunk(connection, ref, 1, piece, key, "23514", "a constraint")


def deliver_all(engine: Engine, job: Job, refused: int = 0) -> None:
    """Every delivery is done, but for the first ones, which are refused."""
    while True:
        with engine.begin() as connection:
            claims = deliveries.claim(
                connection, job.job_no, "bookings", turn=job.turn, most=100, token=uuid4(), claim_seconds=60
            )
            if not claims:
                return
            states = [D.REFUSED if n < refused else D.DONE for n in range(len(claims))]
            refused = max(0, refused - len(claims))
            deliveries.settle_deliveries(
                connection,
                job.job_no,
                [
                    Settlement(claim.effect, claim.key, claim.token, state)
                    for claim, state in zip(claims, states, strict=True)
                ],
            )


def with_failures(engine: Engine, failed: int, count: int = 20, refused: int = 0) -> Job:
    """A job that is over, so many of whose records failed and deliveries were refused."""
    make_entries(engine, count)
    job = opened(engine, accepted(engine, parallelism=1))
    fail_first(engine, job, failed)
    walk(engine, job, size=7)
    look(engine, job)
    deliver_all(engine, job, refused)
    job = look(engine, job)
    assert job.state is JobState.COMPLETED_WITH_FAILURES
    return job


@pytest.mark.case("C32")
def test_only_what_failed_is_changed_again(engine: Engine) -> None:
    job = with_failures(engine, failed=5)
    retried = retry(engine, job)
    assert (retried.records, retried.deliveries, retried.job.round) == (5, 0, 2)
    again = opened(engine, retried.job, "run-2", 2)
    walk(engine, again, epoch=2)
    look(engine, again)
    deliver_all(engine, again)
    ended = look(engine, again)
    assert (ended.state, ended.changed, ended.failed, ended.total) == (JobState.COMPLETED, 20, 0, 20)
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * 20
    assert rows(engine, "SELECT count(*) FROM bulklane.outcome") == [(0,)]
    assert rows(engine, "SELECT count(*), count(DISTINCT key) FROM bulklane.delivery") == [(20, 20)]
    assert rows(engine, "SELECT count(*) FROM bulklane.lease") == [(0,)]


@pytest.mark.case("C32")
def test_five_presses_make_one_round(engine: Engine) -> None:
    job = with_failures(engine, failed=3)
    answers: list[Retried] = []
    presses = [threading.Thread(target=lambda: answers.append(retry(engine, job, of_round=1))) for _ in range(5)]
    for press in presses:
        press.start()
    for press in presses:
        press.join()
    assert sorted(answer.records for answer in answers) == [0, 0, 0, 0, 3]
    assert stands(engine, job).round == 2


def test_a_refused_delivery_gets_a_new_generation_and_a_done_one_none(engine: Engine) -> None:
    job = with_failures(engine, failed=0, refused=4)
    retried = retry(engine, job)
    assert (retried.records, retried.deliveries) == (0, 4)
    assert rows(engine, "SELECT count(*) FROM bulklane.lease") == [(0,)]
    again = opened(engine, retried.job, "run-2", 2)
    assert look(engine, again).state is JobState.DELIVERING
    deliver_all(engine, again)
    assert look(engine, again).state is JobState.COMPLETED
    generations = rows(engine, "SELECT generation, count(*) FROM bulklane.delivery GROUP BY 1 ORDER BY 1")
    assert generations == [(1, 16), (2, 4)]


def test_what_was_given_up_keeps_its_key(engine: Engine) -> None:
    job = with_failures(engine, failed=0, refused=1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.delivery SET state = 'given_up' WHERE state = 'refused'"))
    assert retry(engine, job).deliveries == 1
    assert rows(engine, "SELECT DISTINCT generation FROM bulklane.delivery") == [(1,)]


def test_a_stopped_job_goes_on_with_what_was_not_started(engine: Engine) -> None:
    make_entries(engine, 20)
    job = opened(engine, accepted(engine, parallelism=2))
    fail_first(engine, job, 2)
    with engine.begin() as connection:
        set_wish(connection, job.job_no, Wish.STOP, who="bulklane", why="too many failures")
    stopped = look(engine, job)
    assert (stopped.state, stopped.failed, stopped.not_started) == (JobState.FAILED, 2, 18)
    retried = retry(engine, job)
    assert retried.records == 20
    again = opened(engine, retried.job, "run-2", 2)
    walk(engine, again, epoch=2)
    look(engine, again)
    deliver_all(engine, again)
    ended = look(engine, again)
    assert (ended.state, ended.changed, ended.not_started) == (JobState.COMPLETED, 20, 0)
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * 20


def test_a_job_that_still_owes_is_not_opened_again(engine: Engine) -> None:
    make_entries(engine, 5)
    job = opened(engine, accepted(engine, parallelism=1))
    fail_first(engine, job, 1)
    walk(engine, job)
    with engine.begin() as connection:
        set_wish(connection, job.job_no, Wish.STOP, who="bulklane", why="enough")
        connection.execute(text("UPDATE bulklane.job SET state = 'failed', over_at = now()"))
    assert "still being delivered" in retry(engine, job).refused


@pytest.mark.parametrize("state", ["walking", "completed", "cancelled", "terminated"])
def test_only_a_job_that_ended_with_failures_is_opened_again(engine: Engine, state: str) -> None:
    job = with_failures(engine, failed=1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.job SET state = :s"), {"s": state})
    retried = retry(engine, job)
    assert (retried.records, state in retried.refused) == (0, True)


def test_another_owner_refuses_the_retry_and_nothing_is_stored(engine: Engine) -> None:
    job = with_failures(engine, failed=1)
    other = accepted(engine, parallelism=1)
    with pytest.raises(Conflict) as refused:
        retry(engine, job)
    assert refused.value.holder.job_id == other.job_id
    assert stands(engine, job) == job
    assert rows(engine, "SELECT count(*) FROM bulklane.wish_message") == [(0,)]


def test_a_refusal_that_a_later_job_has_superseded_is_left(engine: Engine) -> None:
    job = with_failures(engine, failed=0, refused=2)
    later = opened(engine, accepted(engine, parallelism=1))
    walk(engine, later)
    look(engine, later)
    deliver_all(engine, later)
    assert look(engine, later).state is JobState.COMPLETED
    retried = retry(engine, job)
    assert (retried.deliveries, retried.records) == (0, 0)
    assert "2 refused deliveries are superseded" in retried.refused


def test_a_retry_and_a_later_job_never_wait_for_each_other(engine: Engine) -> None:
    first = with_failures(engine, failed=2, refused=1)
    later = opened(engine, accepted(engine, parallelism=1))
    walk(engine, later)
    look(engine, later)
    retried = retry(engine, first).job
    walk(engine, opened(engine, retried, "run-2", 2), epoch=2)
    with engine.connect() as connection:
        assert effect.blocked_by(connection, later.job_no, "bookings") is None
        assert effect.blocked_by(connection, first.job_no, "bookings") == later.job_no


def test_a_round_after_a_later_jobs_is_not_superseded_by_it(engine: Engine) -> None:
    """The turn of the round that sent counts, not the job's first one."""
    job = with_failures(engine, failed=2)
    later = opened(engine, accepted(engine, parallelism=1))
    walk(engine, later)
    look(engine, later)
    deliver_all(engine, later)
    assert look(engine, later).state is JobState.COMPLETED
    second = opened(engine, retry(engine, job).job, "run-2", 2)
    walk(engine, second, epoch=2)
    look(engine, second)
    deliver_all(engine, second, refused=2)
    assert look(engine, second).state is JobState.COMPLETED_WITH_FAILURES
    assert retry(engine, second).deliveries == 2
