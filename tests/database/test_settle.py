"""Settle: end a job whose workflow is closed, unless it has moved on; and what the control loop asks."""

from typing import Any

import pytest
from sqlalchemy import Engine, text

from bulklane.contracts.job import JobState
from bulklane.contracts.message import Verb
from bulklane.database import control
from bulklane.database import range as ranges
from bulklane.database.advance import JobMovedOn, settle
from bulklane.database.job import Job
from bulklane.database.range import RangeRef
from tests.database.jobs import (
    Background,
    accepted,
    blocked_sessions,
    look,
    one_chunk,
    opened,
    operation_on,
    registry_of,
    rows,
    say,
    stands,
    walk,
)
from tests.support.ledgers import AddToEntries, entries, make_entries
from tests.support.waiting import until

S = JobState
SNAPSHOT = (
    'SELECT (SELECT array_agg(j::text) FROM bulklane.job j), (SELECT array_agg(r::text) FROM bulklane."range" r),'
    " (SELECT count(*) FROM bulklane.lease)"
)


def walking(engine: Engine, **request: Any) -> Job:
    """A job that has walked three records of ten."""
    make_entries(engine, 10)
    job = opened(engine, accepted(engine, **request))
    with engine.begin() as connection:
        one_chunk(connection, job, size=3, epoch=5)
    return job


def settled(engine: Engine, job: Job, **seen: Any) -> bool:
    """Whether the job was settled as it was seen."""
    saw = {"round_no": 1, "run_id": "run-1", "epochs": 5, "state": S.TERMINATED, "reason": "terminated", **seen}
    with engine.begin() as connection:
        return settle(connection, job.job_no, **saw)


def test_a_job_whose_workflow_is_gone_ends_at_once_and_still_owes(engine: Engine) -> None:
    job = walking(engine)
    assert settled(engine, job)
    ended = stands(engine, job)
    assert (ended.state, ended.reason, ended.changed, ended.not_started) == (S.TERMINATED, "terminated", 3, 7)
    assert rows(engine, "SELECT count(*) FROM bulklane.lease") == [(0,)]
    with engine.begin() as connection:
        assert one_chunk(connection, job, size=3, epoch=6) is None
        assert [named.job_no for named in control.owing(connection, most=10)] == [job.job_no]
    assert look(engine, job).state is S.TERMINATED


@pytest.mark.parametrize("seen", [{"round_no": 2}, {"run_id": "run-0"}, {"run_id": None}], ids=str)
def test_a_job_that_is_not_as_it_was_seen_is_left_alone(engine: Engine, seen: dict[str, Any]) -> None:
    job = walking(engine)
    before = rows(engine, SNAPSHOT)
    assert not settled(engine, job, **seen)
    assert rows(engine, SNAPSHOT) == before


def test_a_round_that_no_run_has_opened_is_left_alone(engine: Engine) -> None:
    make_entries(engine, 3)
    job = accepted(engine)
    assert not settled(engine, job, run_id=None, epochs=0)
    assert stands(engine, job).state is S.ACCEPTED


def test_a_job_that_is_over_is_left_alone(engine: Engine) -> None:
    job = walking(engine)
    say(engine, job, Verb.CANCEL)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.owed SET taken_to = size"))
    assert look(engine, job).state is S.CANCELLED
    assert not settled(engine, job)
    assert stands(engine, job).state is S.CANCELLED


def test_an_attempt_that_took_a_range_since_keeps_the_job(engine: Engine) -> None:
    job = walking(engine)
    with engine.begin() as connection:
        ranges.take(connection, RangeRef(job.job_no, 1, 1), 6)
    before = rows(engine, SNAPSHOT)
    with pytest.raises(JobMovedOn, match="an attempt has taken a range"):
        settled(engine, job)
    assert rows(engine, SNAPSHOT) == before
    assert settled(engine, job, epochs=11)


def test_an_attempt_that_takes_a_range_while_settle_waits_keeps_the_job(engine: Engine) -> None:
    job = walking(engine)
    with engine.connect() as attempt:
        ranges.take(attempt, RangeRef(job.job_no, 1, 1), 6)
        settling = Background(lambda: settled(engine, job))
        until(lambda: blocked_sessions(engine) == 1)
        attempt.commit()
    with pytest.raises(JobMovedOn):
        settling.result()
    assert stands(engine, job).state is S.WALKING
    assert rows(engine, 'SELECT count(*) FROM bulklane."range" WHERE open') == [(2,)]


def test_settle_counts_the_chunk_in_flight(engine: Engine) -> None:
    job = walking(engine)
    with engine.connect() as walker:
        one_chunk(walker, job, size=2, epoch=5)
        settling = Background(lambda: settled(engine, job))
        until(lambda: blocked_sessions(engine) == 1)
        walker.commit()
    assert settling.result()
    assert stands(engine, job).changed == 5


@pytest.mark.parametrize("paused", [False, True])
def test_a_lease_held_until_the_effects_are_final_is_freed_by_settle(engine: Engine, paused: bool) -> None:
    make_entries(engine, 10)
    change = AddToEntries().change(AddToEntries.parameters())
    attributes: dict[str, Any] = {"hold_lease_until_effects_final": True, "effects": AddToEntries.effects}
    registry = registry_of(operation_on(entries, ["account", "booked_at"], change, **attributes))
    job = opened(engine, accepted(engine, registry=registry))
    with engine.begin() as connection:
        one_chunk(connection, job, size=3, epoch=5, registry=registry)
    if paused:
        say(engine, job, Verb.PAUSE)
        look(engine, job)
    assert settled(engine, job)
    assert rows(engine, "SELECT count(*) FROM bulklane.lease") == [(0,)]


def test_two_settle_a_job_once(engine: Engine) -> None:
    job = walking(engine)
    answers = [one.result() for one in [Background(lambda: settled(engine, job)) for _ in range(4)]]
    assert sorted(answers) == [False, False, False, True]


def test_the_control_loop_sees_what_is_not_opened_not_heard_and_silent(engine: Engine) -> None:
    make_entries(engine, 10)
    job = accepted(engine)
    with engine.begin() as connection:
        assert [one.job_no for one in control.unopened(connection, older_than=0, most=5)] == [job.job_no]
        assert control.unopened(connection, older_than=60, most=5) == []
        assert control.suspects(connection, silent_for=0, most=5) == []
    opened(engine, job)
    with engine.begin() as connection:
        one_chunk(connection, job, size=3, epoch=5)
        assert control.unopened(connection, older_than=0, most=5) == []
        (suspect,) = control.suspects(connection, silent_for=0, most=5)
        assert control.suspects(connection, silent_for=60, most=5) == []
        assert control.unheard(connection, older_than=0, most=5) == []
    assert (suspect.job_no, suspect.round, suspect.run_id, suspect.epochs) == (job.job_no, 1, "run-1", 5)
    say(engine, job, Verb.PAUSE)
    with engine.begin() as connection:
        assert [one.job_id for one in control.unheard(connection, older_than=0, most=5)] == [job.job_id]
    look(engine, job)
    with engine.begin() as connection:
        assert control.unheard(connection, older_than=0, most=5) == []
        assert control.owing(connection, most=5) == []


def test_a_finished_walk_whose_workflow_is_gone_keeps_its_counters(engine: Engine) -> None:
    make_entries(engine, 10)
    job = opened(engine, accepted(engine))
    walk(engine, job, epoch=4)
    assert look(engine, job).state is S.DELIVERING
    assert settled(engine, job, epochs=8)
    ended = stands(engine, job)
    assert (ended.state, ended.changed, ended.not_started) == (S.TERMINATED, 10, 0)
