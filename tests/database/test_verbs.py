"""Verbs are rows: applied once by their id, in their order, and never against a final wish."""

import itertools

import pytest
from sqlalchemy import Engine

from bulklane.contracts.job import JobState, Wish
from bulklane.contracts.message import Verb
from bulklane.database.job import Job
from bulklane.database.wish import read_wish
from tests.database.jobs import Background, accepted, look, opened, rows, say
from tests.support.ledgers import make_entries

S = JobState
PAUSE, RESUME, CANCEL = Verb.PAUSE, Verb.RESUME, Verb.CANCEL
MESSAGES = "SELECT message_id, verb, applied FROM bulklane.wish_message ORDER BY received_at"


def walking(engine: Engine) -> Job:
    """A job that walks."""
    make_entries(engine, 5)
    return opened(engine, accepted(engine))


def wanted(engine: Engine, job: Job) -> Wish:
    """The wish that stands."""
    with engine.connect() as connection:
        return read_wish(connection, job.job_no).wish


def test_a_message_is_applied_once_by_its_id(engine: Engine) -> None:
    job = walking(engine)
    say(engine, job, PAUSE, "m-1")
    say(engine, job, RESUME, "m-2")
    say(engine, job, PAUSE, "m-1")  # a replay reverses nothing
    assert wanted(engine, job) is Wish.RUN
    assert look(engine, job).state is S.WALKING
    assert rows(engine, MESSAGES) == [("m-1", "pause", True), ("m-2", "resume", True)]


def test_one_message_from_many_threads_is_applied_once(engine: Engine) -> None:
    job = walking(engine)
    for one in [Background(lambda: say(engine, job, PAUSE, "m-1")) for _ in range(8)]:
        one.result()
    assert len(rows(engine, MESSAGES)) == 1
    assert look(engine, job).state is S.PAUSED


@pytest.mark.parametrize("late", [PAUSE, RESUME])
def test_cancel_is_final(engine: Engine, late: Verb) -> None:
    job = walking(engine)
    say(engine, job, CANCEL, "m-1")
    say(engine, job, late, "m-2")
    assert wanted(engine, job) is Wish.CANCEL
    assert look(engine, job).state is S.CANCELLED
    say(engine, job, late, "m-3")
    assert look(engine, job).state is S.CANCELLED
    assert rows(engine, MESSAGES) == [("m-1", "cancel", True), ("m-2", str(late), False), ("m-3", str(late), False)]


def test_an_id_used_for_one_job_does_not_swallow_the_same_id_of_another(engine: Engine) -> None:
    """The ids of signals are chosen by people, who start from 1 for each job."""
    job = walking(engine)
    other = accepted(engine, tenant="other")
    say(engine, other, PAUSE, "1")
    say(engine, job, CANCEL, "1")
    assert wanted(engine, job) is Wish.CANCEL
    assert wanted(engine, other) is Wish.PAUSE


def test_who_and_why_of_the_wish_that_stands_are_kept(engine: Engine) -> None:
    job = walking(engine)
    say(engine, job, CANCEL)
    assert look(engine, job).reason == "because"
    assert rows(engine, "SELECT wish, who, why FROM bulklane.wish") == [("cancel", "ann", "because")]


@pytest.mark.parametrize("verbs", list(itertools.product([PAUSE, RESUME], repeat=3)), ids=str)
def test_the_last_of_several_verbs_counts(engine: Engine, verbs: tuple[Verb, ...]) -> None:
    job = walking(engine)
    for verb in verbs:
        say(engine, job, verb)
    assert look(engine, job).state is (S.PAUSED if verbs[-1] is PAUSE else S.WALKING)


def test_pauses_and_resumes_from_many_threads_leave_a_state_that_agrees(engine: Engine) -> None:
    job = walking(engine)

    def press(number: int) -> None:
        for turn in range(6):
            say(engine, job, PAUSE if (number + turn) % 2 else RESUME)
            look(engine, job)

    for one in [Background(lambda n=n: press(n)) for n in range(4)]:  # type: ignore[misc]
        one.result()
    paused = wanted(engine, job) is Wish.PAUSE
    assert look(engine, job).state is (S.PAUSED if paused else S.WALKING)
    assert rows(engine, 'SELECT DISTINCT open FROM bulklane."range"') == [(not paused,)]
