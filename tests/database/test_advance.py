"""`advance`, the one function that moves a job: each arrow, release and close, and that it repeats harmlessly."""

from typing import Any

import pytest
from sqlalchemy import Engine, text

from bulklane.contracts.job import JobState, Wish
from bulklane.contracts.message import Verb
from bulklane.database.advance import advance
from bulklane.database.engine import limited_transaction
from bulklane.database.job import Job, JobUnknown
from bulklane.database.selection import lock_selection
from bulklane.database.wish import set_wish
from tests.database.jobs import (
    REGISTRY,
    Background,
    accepted,
    blocked_sessions,
    counts,
    freeze,
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
PAUSE, RESUME, CANCEL = Verb.PAUSE, Verb.RESUME, Verb.CANCEL
LEASES = "SELECT count(*) FROM bulklane.lease"
OPEN = 'SELECT count(*) FILTER (WHERE open) FROM bulklane."range"'
SNAPSHOT = (
    'SELECT (SELECT array_agg(j::text) FROM bulklane.job j), (SELECT array_agg(r::text) FROM bulklane."range" r),'
    " (SELECT array_agg((wish, who, why, wished_at)::text) FROM bulklane.wish), (SELECT count(*) FROM bulklane.lease)"
)


def entry_job(engine: Engine, count: int = 10, **request: Any) -> Job:
    """A job over so many entries."""
    make_entries(engine, count)
    return accepted(engine, **request)


def settle_debts(engine: Engine) -> None:
    """As if every effect were delivered."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.owed SET taken_to = size"))
        connection.execute(text("UPDATE bulklane.delivery SET state = 'done'"))


def wish(engine: Engine, job: Job, wanted: Wish) -> None:
    """What the system wants."""
    with engine.begin() as connection:
        set_wish(connection, job.job_no, wanted, who="bulklane", why="too many failures")


def at(engine: Engine, state: JobState) -> Job:
    """A job in that state, reached by its own steps."""
    if state is S.FREEZING:
        return opened(engine, entry_job(engine, small=1))
    job = entry_job(engine)
    if state is S.ACCEPTED:
        return job
    job = opened(engine, job)
    if state in (S.PAUSING, S.PAUSED):
        job = say(engine, job, PAUSE)
    if state is S.PAUSED:
        job = look(engine, job)
    if state in (S.DELIVERING, S.COMPLETED):
        walk(engine, job)
        job = look(engine, job)
    if state is S.CANCELLING:
        with engine.begin() as connection:
            one_chunk(connection, job, size=3)
        job = say(engine, job, CANCEL)
    if state is S.COMPLETED:
        settle_debts(engine)
        job = look(engine, job)
    assert job.state is state
    return job


def test_a_job_goes_from_accepted_to_completed(engine: Engine) -> None:
    job = entry_job(engine)
    assert look(engine, job).state is S.ACCEPTED  # only a run of the workflow opens it
    assert opened(engine, job).state is S.WALKING
    walk(engine, job)
    assert (look(engine, job).state, rows(engine, LEASES)) == (S.DELIVERING, [(0,)])
    settle_debts(engine)
    done = look(engine, job)
    assert (done.state, done.changed, done.not_started) == (S.COMPLETED, 10, 0)
    assert done.released_at is not None
    assert done.over_at is not None
    assert done.opened_at is not None
    assert done.accepted_at <= done.opened_at <= done.released_at <= done.over_at


@pytest.mark.parametrize(
    "state", [S.ACCEPTED, S.FREEZING, S.WALKING, S.PAUSING, S.PAUSED, S.DELIVERING, S.CANCELLING, S.COMPLETED]
)
def test_a_step_repeated_or_late_changes_nothing(engine: Engine, state: JobState) -> None:
    job = at(engine, state)
    job = look(engine, job) if state is not S.ACCEPTED else job
    before = rows(engine, SNAPSHOT)
    for _ in range(3):
        assert look(engine, job) == job
        assert opened(engine, job).state is job.state if state is not S.ACCEPTED else True
        if state is not S.FREEZING:
            freeze(engine, job)
    assert rows(engine, SNAPSHOT) == before if state is not S.ACCEPTED else True


def test_a_job_is_released_only_when_every_range_is_done(engine: Engine) -> None:
    job = opened(engine, entry_job(engine, parallelism=2))
    with engine.begin() as connection:
        one_chunk(connection, job, size=5)
        one_chunk(connection, job, size=4, range_no=1)
    assert (look(engine, job).state, rows(engine, LEASES)) == (S.WALKING, [(1,)])
    with engine.begin() as connection:
        one_chunk(connection, job, size=1, range_no=1)
    released = look(engine, job)
    assert (released.state, released.changed, rows(engine, LEASES)) == (S.DELIVERING, 10, [(0,)])
    assert rows(engine, OPEN) == [(0,)]


@pytest.mark.parametrize("open_state", ["sending", "later", "unknown"])
def test_a_job_closes_only_when_nothing_is_owed(engine: Engine, open_state: str) -> None:
    job = at(engine, S.DELIVERING)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.owed SET taken_to = size - 1 WHERE range_no = 1"))
    assert look(engine, job).state is S.DELIVERING
    settle_debts(engine)
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO bulklane.delivery (job_no, effect, key, channel, turn, round, range_no, seq, place, state)"
                " VALUES (:no, 'booking', 'k', 'bookings', 1, 1, 0, 1, 0, :state)"
            ),
            {"no": job.job_no, "state": open_state},
        )
    assert look(engine, job).state is S.DELIVERING
    settle_debts(engine)
    assert look(engine, job).state is S.COMPLETED


@pytest.mark.parametrize("final", ["refused", "undecided", "given_up"])
def test_a_final_delivery_that_is_not_done_shows_in_the_end(engine: Engine, final: str) -> None:
    job = at(engine, S.DELIVERING)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.owed SET taken_to = size"))
        connection.execute(
            text(
                "INSERT INTO bulklane.delivery (job_no, effect, key, channel, turn, round, range_no, seq, place, state)"
                " VALUES (:no, 'booking', 'k', 'bookings', 1, 1, 0, 1, 0, :state)"
            ),
            {"no": job.job_no, "state": final},
        )
    assert look(engine, job).state is S.COMPLETED_WITH_FAILURES


def test_pause_waits_for_the_chunk_in_flight_and_only_then_is_paused(engine: Engine) -> None:
    job = opened(engine, entry_job(engine))
    with engine.connect() as walker:
        one_chunk(walker, job, size=3)
        assert say(engine, job, PAUSE).state is S.PAUSING
        pausing = Background(lambda: look(engine, job))
        until(lambda: blocked_sessions(engine) == 1)
        assert stands(engine, job).state is S.PAUSING
        walker.commit()
    assert pausing.result().state is S.PAUSED
    assert rows(engine, OPEN) == [(0,)]
    with engine.begin() as connection:
        assert one_chunk(connection, job, size=3) is None
    assert say(engine, job, RESUME).state is S.PAUSED
    assert look(engine, job).state is S.WALKING
    assert rows(engine, LEASES) == [(1,)]
    walk(engine, job)
    assert look(engine, job).changed == 10


def test_a_resume_that_comes_before_the_shut_goes_on(engine: Engine) -> None:
    job = at(engine, S.PAUSING)
    say(engine, job, RESUME)
    assert look(engine, job).state is S.WALKING
    assert rows(engine, OPEN) == [(2,)]


def test_a_pause_while_delivering_goes_back_to_delivering(engine: Engine) -> None:
    job = at(engine, S.DELIVERING)
    assert say(engine, job, PAUSE).state is S.PAUSING
    assert look(engine, job).state is S.PAUSED
    settle_debts(engine)
    assert look(engine, job).state is S.PAUSED  # nobody resumed it
    say(engine, job, RESUME)
    assert look(engine, job).state is S.COMPLETED


@pytest.mark.parametrize("state", [S.ACCEPTED, S.FREEZING])
def test_a_pause_before_the_walk_holds_it_when_it_begins(engine: Engine, state: JobState) -> None:
    job = at(engine, state)
    assert say(engine, job, PAUSE).state is state
    if state is S.FREEZING:
        freeze(engine, job)
    paused = opened(engine, job)
    assert (paused.state, rows(engine, OPEN)) == (S.PAUSED, [(0,)])
    say(engine, job, RESUME)
    assert look(engine, job).state is S.WALKING


@pytest.mark.parametrize("wanted", [Wish.CANCEL, Wish.STOP])
@pytest.mark.parametrize("state", [S.ACCEPTED, S.FREEZING, S.WALKING, S.PAUSING, S.PAUSED, S.DELIVERING, S.CANCELLING])
def test_cancel_and_stop_end_a_job_in_any_state(engine: Engine, state: JobState, wanted: Wish) -> None:
    job = at(engine, state)
    wish(engine, job, wanted)
    look(engine, job)
    settle_debts(engine)
    ended = look(engine, job)
    # a cancel by a person is final; the system's stop comes too late for it
    expected = S.CANCELLED if wanted is Wish.CANCEL or state is S.CANCELLING else S.FAILED
    assert (ended.state, rows(engine, LEASES)) == (expected, [(0,)])
    if state is not S.ACCEPTED:
        total = 0 if state is S.FREEZING else 10
        assert ended.changed + ended.not_started == total
    before = rows(engine, SNAPSHOT)
    assert say(engine, job, RESUME).state is expected
    assert say(engine, job, PAUSE).state is expected
    assert look(engine, job).state is expected
    assert rows(engine, SNAPSHOT) == before


def test_cancel_waits_for_the_chunk_in_flight_and_counts_it(engine: Engine) -> None:
    job = opened(engine, entry_job(engine))
    with engine.connect() as walker:
        one_chunk(walker, job, size=3)
        assert say(engine, job, CANCEL).state is S.CANCELLING
        cancelling = Background(lambda: look(engine, job))
        until(lambda: blocked_sessions(engine) == 1)
        walker.commit()
    cancelled = cancelling.result()
    assert (cancelled.changed, cancelled.not_started) == (3, 7)
    assert cancelled.state is S.CANCELLING  # three effects are owed
    settle_debts(engine)
    assert look(engine, job).state is S.CANCELLED


def test_a_cancelled_job_that_is_opened_by_a_later_run_stays_cancelled(engine: Engine) -> None:
    job = at(engine, S.WALKING)
    say(engine, job, CANCEL)
    assert look(engine, job).state is S.CANCELLED
    assert opened(engine, job, run_id="reset", scheduled=99).state is S.CANCELLED
    assert counts(engine)["lease"] == 0


def test_a_cancel_does_not_wait_for_the_freeze(engine: Engine) -> None:
    """A freeze holds its selection for as long as its statement takes, and then asks for the job."""
    job = at(engine, S.FREEZING)
    with engine.connect() as freezing:
        lock_selection(freezing, job.selection_no)
        say(engine, job, CANCEL)
        with limited_transaction(engine, statement=2, transaction=3) as connection:
            assert advance(connection, job.job_no, heard_by="test").state is S.CANCELLED


@pytest.mark.parametrize("verb", [CANCEL, PAUSE])
def test_a_freeze_that_ends_late_brings_nothing_back(engine: Engine, verb: Verb) -> None:
    job = at(engine, S.FREEZING)
    with engine.connect() as user:
        user.execute(text("LOCK TABLE entry IN ACCESS EXCLUSIVE MODE"))
        late = Background(lambda: freeze(engine, job))
        until(lambda: blocked_sessions(engine) == 1)
        say(engine, job, verb)
        state = look(engine, job).state
        user.commit()
    late.result()
    if verb is CANCEL:
        assert state is S.CANCELLED
        assert stands(engine, job).state is S.CANCELLED
        assert (counts(engine)["block"], counts(engine)["range"]) == (0, 0)
    else:
        assert (state, look(engine, job).state) == (S.FREEZING, S.PAUSED)


def test_a_freeze_for_an_earlier_round_changes_nothing(engine: Engine) -> None:
    job = at(engine, S.FREEZING)
    freeze(engine, job, REGISTRY, round_no=2)
    assert (stands(engine, job).state, counts(engine)["block"]) == (S.FREEZING, 0)


def test_two_freezes_at_once_freeze_once(engine: Engine) -> None:
    job = at(engine, S.FREEZING)
    for one in [Background(lambda: freeze(engine, job)) for _ in range(3)]:
        one.result()
    assert (counts(engine)["block"], counts(engine)["range"]) == (1, 2)
    walk(engine, look(engine, job))
    assert look(engine, job).changed == 10


def test_an_operation_may_hold_its_lease_until_its_effects_are_final(engine: Engine) -> None:
    make_entries(engine, 10)
    change = AddToEntries().change(AddToEntries.parameters())
    attributes: dict[str, Any] = {"hold_lease_until_effects_final": True, "effects": AddToEntries.effects}
    registry = registry_of(operation_on(entries, ["account", "booked_at"], change, **attributes))
    job = opened(engine, accepted(engine, registry=registry))
    walk(engine, job, registry=registry)
    assert (look(engine, job).state, rows(engine, LEASES)) == (S.DELIVERING, [(1,)])
    settle_debts(engine)
    assert (look(engine, job).state, rows(engine, LEASES)) == (S.COMPLETED, [(0,)])


def test_a_job_without_records_goes_to_its_end_in_one_step(engine: Engine) -> None:
    job = entry_job(engine, 0, parallelism=8)
    ended = opened(engine, job)
    assert (ended.state, ended.changed, ended.not_started) == (S.COMPLETED, 0, 0)
    assert rows(engine, 'SELECT lo, hi FROM bulklane."range"') == [(0, 0)]


def test_many_at_once_advance_a_job_once(engine: Engine) -> None:
    job = opened(engine, entry_job(engine))
    walk(engine, job)
    states = [one.result().state for one in [Background(lambda: look(engine, job)) for _ in range(8)]]
    assert states == [S.DELIVERING] * 8
    settle_debts(engine)
    endings = {one.result().over_at for one in [Background(lambda: look(engine, job)) for _ in range(8)]}
    assert len(endings) == 1


def test_an_unknown_job_is_told(engine: Engine) -> None:
    with engine.begin() as connection, pytest.raises(JobUnknown, match="there is no job number 77"):
        advance(connection, 77, heard_by="test")
