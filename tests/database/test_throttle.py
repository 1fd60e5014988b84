"""The throttle: one for all ranges of a job, live, and never a long wait in a slot."""

import time
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Engine, text

from bulklane.contracts.job import JobState, Wish
from bulklane.contracts.message import Throttle, Verb
from bulklane.database import control
from bulklane.database.job import Job
from bulklane.database.throttle import Throttled
from bulklane.database.wish import read_wish
from bulklane.starter.status import JobStatus, read_status
from tests.database.jobs import REGISTRY, Background, accepted, look, opened, rows, say, stands, throttled
from tests.support.ledgers import amounts, make_entries
from tests.support.waiting import until
from tests.support.walking import segment_activity, walk_whole


def walking(engine: Engine, count: int, **request: Any) -> Job:
    """A job over so many entries that walks."""
    make_entries(engine, count)
    return opened(engine, accepted(engine, **request))


def chunks(engine: Engine) -> list[tuple[int, int, datetime]]:
    """Range, rows and time of each chunk, in the order of time."""
    found = rows(engine, "SELECT range_no, hi - lo, written_at FROM bulklane.chunk ORDER BY written_at")
    return [(int(number), int(size), at) for number, size, at in found]


def processed(engine: Engine) -> int:
    return sum(size for _, size, _ in chunks(engine))


def status_of(engine: Engine, job: Job) -> JobStatus:
    with engine.connect() as connection:
        return read_status(connection, job.job_id)


def test_the_rate_is_that_of_the_job_over_uneven_ranges(engine: Engine) -> None:
    job = walking(engine, 1500, parallelism=3)
    with engine.begin() as connection:
        # of 500 records each, made 100, 250 and 1150
        connection.execute(text('UPDATE bulklane."range" SET hi = 100 WHERE no = 0'))
        connection.execute(text('UPDATE bulklane."range" SET lo = 100, cursor = 100, hi = 350 WHERE no = 1'))
        connection.execute(text('UPDATE bulklane."range" SET lo = 350, cursor = 350 WHERE no = 2'))
    throttled(engine, job, rows_per_second=300)
    walk_whole(engine, REGISTRY, job)
    walked = chunks(engine)
    assert max(size for _, size, _ in walked) <= 150, "half a second's rows"
    said = rows(engine, "SELECT received_at FROM bulklane.wish_message")[0][0]
    rate = (1500 - walked[0][1]) / (walked[-1][2] - said).total_seconds()
    # never more; a machine that stands still for longer than the clock's slack makes it less
    assert 300 * 0.9 < rate < 300 * 1.02, f"{rate:.1f} rows/s"
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * 1500


@pytest.mark.slow
def test_no_second_has_more_than_the_rate_and_the_first_chunk_is_small(engine: Engine) -> None:
    job = walking(engine, 80, parallelism=1)
    throttled(engine, job, rows_per_second=20)
    walk_whole(engine, REGISTRY, job)
    walked = chunks(engine)
    assert walked[0][1] == 10
    for _, _, begin in walked:
        second = [size for _, size, at in walked if 0 <= (at - begin).total_seconds() < 0.95]
        assert sum(second) <= 50, "a second's rows, one chunk on its edge, and what the slack makes up for"


def test_records_that_fail_are_taken_from_the_clock_once(engine: Engine) -> None:
    job = walking(engine, 200, parallelism=1)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE entry SET amount = 999 WHERE extract(microseconds FROM booked_at)::int % 50 = 7")
        )
    throttled(engine, job, rows_per_second=100)
    ((began,),) = rows(engine, "SELECT clock_timestamp()")
    walk_whole(engine, REGISTRY, job)
    walked = chunks(engine)
    assert stands(engine, job).state is JobState.WALKING
    assert rows(engine, "SELECT count(*) FROM bulklane.outcome") == [(4,)]
    # two seconds' rows, the first half second's at once
    assert 1.3 < (walked[-1][2] - began).total_seconds() < 2.5


@pytest.mark.slow
def test_a_throttle_takes_hold_in_the_middle_of_a_segment_and_so_does_its_lifting(engine: Engine) -> None:
    job = walking(engine, 6000, parallelism=2)
    throttled(engine, job, rows_per_second=1000)
    walk = Background(lambda: walk_whole(engine, REGISTRY, job))
    until(lambda: processed(engine) >= 1000, what="it walks")
    throttled(engine, job, rows_per_second=10)
    before = processed(engine)
    until(lambda: status_of(engine, job).slowed_by == ("the throttle allows 10 rows/s",), what="told why")
    time.sleep(1.0)  # not a wait: the second in which next to nothing may happen
    assert processed(engine) - before <= 1000 + 20, "the chunks in flight, and a second's rows"
    slowly = processed(engine)
    time.sleep(1.0)
    assert processed(engine) - slowly <= 20
    throttled(engine, job)
    walk.result()
    assert status_of(engine, job).throttle is None
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * 6000


def test_ranges_beyond_the_parallelism_are_held_until_those_before_are_done(engine: Engine) -> None:
    job = walking(engine, 400, parallelism=4)
    throttled(engine, job, parallelism=2)
    held = segment_activity(engine, REGISTRY, job, 2)
    assert (held.end, held.reason) == ("held", "the throttle lets 2 ranges walk side by side")
    assert held.retry_seconds >= 60
    assert status_of(engine, job).slowed_by == (held.reason,)
    assert segment_activity(engine, REGISTRY, job, 0).end == "done"
    assert segment_activity(engine, REGISTRY, job, 3).end == "held", "ranges 1 and 2 come first"
    assert segment_activity(engine, REGISTRY, job, 2).end == "done"
    throttled(engine, job)
    assert segment_activity(engine, REGISTRY, job, 3).end == "done"
    assert segment_activity(engine, REGISTRY, job, 1).end == "done"
    assert look(engine, job).state is JobState.DELIVERING


def test_a_range_is_held_in_the_middle_of_its_segment(engine: Engine) -> None:
    job = walking(engine, 4000, parallelism=2)
    throttled(engine, job, rows_per_second=200)
    segment = Background(lambda: segment_activity(engine, REGISTRY, job, 1))
    until(lambda: processed(engine) > 0, what="it walks")
    began = time.monotonic()
    throttled(engine, job, parallelism=1)
    assert segment.result().end == "held"
    assert time.monotonic() - began < 2


def test_a_long_wait_for_the_rate_gives_up_the_slot(engine: Engine) -> None:
    job = walking(engine, 10, parallelism=1)
    throttled(engine, job, rows_per_second=0.1)
    answer = segment_activity(engine, REGISTRY, job)
    assert answer.end == "held"
    assert 8 < answer.retry_seconds <= 10
    assert processed(engine) == 1
    throttled(engine, job, rows_per_second=100)
    began = time.monotonic()
    assert segment_activity(engine, REGISTRY, job).end == "done", "the slow rate's wait is forgotten"
    assert time.monotonic() - began < 3


def test_a_pause_is_heard_during_a_wait_in_the_slot(engine: Engine) -> None:
    job = walking(engine, 100, parallelism=1)
    throttled(engine, job, rows_per_second=0.55)
    segment = Background(lambda: segment_activity(engine, REGISTRY, job))
    until(lambda: processed(engine) == 1, what="the first row")
    began = time.monotonic()
    say(engine, job, Verb.PAUSE)
    assert segment.result().end == "wish"
    assert time.monotonic() - began < 1


def test_it_is_written_once_by_its_id_and_asks_for_a_look(engine: Engine) -> None:
    job = walking(engine, 5)
    say(engine, job, Verb.THROTTLE, "m-1", Throttle(rows_per_second=5))
    with engine.connect() as connection:
        assert [named.job_no for named in control.unheard(connection, older_than=0, most=10)] == [job.job_no]
    look(engine, job)
    say(engine, job, Verb.THROTTLE, "m-2", Throttle(parallelism=1))
    say(engine, job, Verb.THROTTLE, "m-1", Throttle(rows_per_second=5))
    assert status_of(engine, job).throttle == Throttled(None, 1, "ann", "because"), "it replaces the one before"
    said = "SELECT message_id, verb, rows_per_second, parallelism, applied FROM bulklane.wish_message ORDER BY 1"
    assert rows(engine, said) == [("m-1", "throttle", 5.0, None, True), ("m-2", "throttle", None, 1, True)]


def test_it_leaves_the_wish_alone_and_changes_nothing_after_a_final_one(engine: Engine) -> None:
    job = walking(engine, 5)
    say(engine, job, Verb.PAUSE)
    throttled(engine, job, rows_per_second=5)
    with engine.connect() as connection:
        assert read_wish(connection, job.job_no).wish is Wish.PAUSE
    assert look(engine, job).state is JobState.PAUSED
    say(engine, job, Verb.CANCEL)
    throttled(engine, job, rows_per_second=7)
    with engine.connect() as connection:
        assert read_wish(connection, job.job_no).throttle == Throttle(rows_per_second=5)


@pytest.mark.parametrize("rate", [0.01, 1_000_000.0])
def test_the_limits_of_a_rate_can_be_kept(engine: Engine, rate: float) -> None:
    job = walking(engine, 200, parallelism=1)
    throttled(engine, job, rows_per_second=rate)
    assert segment_activity(engine, REGISTRY, job).end == ("held" if rate < 1 else "done")
