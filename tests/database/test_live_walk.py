"""Cases of the live walk, with the real segment activity on real PostgreSQL: others' writes, bad records, the bound."""

import random
import threading

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

from bulklane.activities.plan import plan_course
from bulklane.contracts.job import JobState, Wish
from bulklane.database import range as ranges
from bulklane.database.job import Job, get_job
from bulklane.database.range import RangeRef, largest_after
from bulklane.database.wish import set_wish
from tests.database.jobs import REGISTRY, freeze, look, opened, rows, stands
from tests.database.live_jobs import live_chunk, live_job, live_walk, standing_of
from tests.database.test_retry import deliver_all, retry
from tests.database.test_walk_cases import beside
from tests.support.ledgers import FIRST, amounts, entries, make_entries
from tests.support.waiting import until
from tests.support.walking import walk_whole

NEW = {"filter": {"field": "note", "op": "=", "value": "new"}}


def with_notes(engine: Engine, count: int) -> None:
    """New entries."""
    make_entries(engine, count)
    with engine.begin() as connection:
        connection.execute(text("UPDATE entry SET note = 'new'"))


def all_amounts(engine: Engine) -> list[int]:
    """In key order."""
    with engine.connect() as connection:
        return list(amounts(connection))


@pytest.mark.parametrize("chunk", [1, 2, 7, 100])
@pytest.mark.parametrize("small", [10, 10_000])
def test_it_is_bounded_at_acceptance_or_when_it_is_frozen(engine: Engine, chunk: int, small: int) -> None:
    with_notes(engine, 300)
    job = live_job(engine, REGISTRY, NEW, small=small, parallelism=3)
    if small == 10:
        assert (job.state, job.total) == (JobState.FREEZING, None)
        freeze(engine, job)
        job = look(engine, job)
    assert (job.state, job.total) == (JobState.WALKING, 300)
    walk_whole(engine, REGISTRY, job, chunk=chunk)
    assert all_amounts(engine) == [1] * 300
    ended = look(engine, job)
    assert (ended.state, ended.total, ended.changed) == (JobState.DELIVERING, 300, 300)
    assert rows(engine, "SELECT count(*), count(DISTINCT k) FROM bulklane.owed, unnest(keys) k") == [(300, 300)]
    assert rows(engine, "SELECT count(*) FROM bulklane.block") == [(0,)]
    assert rows(engine, "SELECT count(*) FROM bulklane.range") == [(3,)]


def test_users_edits_never_repeat_a_record(engine: Engine) -> None:
    with_notes(engine, 2000)

    def edit(ended: threading.Event) -> None:
        chance = random.Random(1)
        while not ended.is_set():
            with engine.begin() as connection:
                change = "UPDATE entry SET note = :n WHERE extract(microseconds FROM booked_at) = :at"
                connection.execute(text(change), {"n": chance.choice(["new", "other"]), "at": chance.randrange(2000)})

    job = live_job(engine, REGISTRY, NEW, parallelism=2)
    with beside(edit):
        walk_whole(engine, REGISTRY, job, chunk=20)
    ended = look(engine, job)
    changed = rows(engine, "SELECT count(*) FILTER (WHERE amount = 1), count(*) FILTER (WHERE amount > 1) FROM entry")
    assert changed == [(ended.changed, 0)]
    # one that a user changed in the very chunk that came to it is reported
    assert (ended.total, ended.not_started) == (ended.changed + ended.skipped, 0)
    assert rows(engine, "SELECT count(*) FROM bulklane.outcome WHERE kind = 'skipped'") == [(ended.skipped,)]
    assert ended.changed > 1000


@pytest.mark.case("C19")
def test_constant_inserts_never_prolong_it_and_beyond_the_bound_nothing_is_touched(engine: Engine) -> None:
    with_notes(engine, 3000)
    inserted = [0]

    def insert(ended: threading.Event) -> None:
        while not ended.is_set():
            inserted[0] += 1
            row = {"tenant": "acme", "note": "new", "booked_at": FIRST}
            some = [row | {"account": f"{name}{inserted[0]:06}"} for name in ("acc-0-", "acc-1-", "late")]
            with engine.begin() as connection:
                connection.execute(entries.insert(), some)

    job = live_job(engine, REGISTRY, NEW)
    seen: list[tuple[int, int]] = []
    with beside(insert):
        until(lambda: inserted[0] > 5, what="inserts have begun")
        walker = threading.Thread(target=walk_whole, args=(engine, REGISTRY, job), kwargs={"chunk": 30})
        walker.start()
        while walker.is_alive():
            with engine.connect() as connection:
                processed = ranges.counters(connection, job.job_no, 1).processed
            seen.append((processed, max(processed, stands(engine, job).total or 0)))
        walker.join()
        before = inserted[0]
        until(lambda: inserted[0] > before, what="inserts went on")
    assert all(low <= total for low, total in seen)
    assert [low for low, _ in seen] == sorted(low for low, _ in seen)
    assert rows(engine, "SELECT count(*) FROM entry WHERE account LIKE 'late%' AND amount <> 0") == [(0,)]
    assert rows(engine, "SELECT count(*) FROM entry WHERE account ~ '^acc-.$' AND amount = 1") == [(3000,)]
    assert rows(engine, "SELECT count(*) FROM entry WHERE amount > 1") == [(0,)]
    ended = look(engine, job)
    assert (ended.total, ended.not_started) == (ended.changed, 0)
    assert ended.changed == rows(engine, "SELECT count(*) FROM entry WHERE amount = 1")[0][0]


def break_some(engine: Engine, *places: int) -> None:
    """Entries whose change a constraint forbids."""
    with engine.begin() as connection:
        statement = "UPDATE entry SET amount = 999 WHERE extract(microseconds FROM booked_at)::int = ANY(:p)"
        connection.execute(text(statement), {"p": list(places)})


@pytest.mark.case("C30")
@pytest.mark.parametrize("places", [(0,), (299,), (57, 58, 200), (1, 2, 3, 4, 5)])
def test_bad_records_are_found_and_their_neighbours_succeed(engine: Engine, places: tuple[int, ...]) -> None:
    with_notes(engine, 300)
    break_some(engine, *places)
    job = live_job(engine, REGISTRY, NEW)
    walk_whole(engine, REGISTRY, job, chunk=300)
    assert sorted(all_amounts(engine)) == [1] * (300 - len(places)) + [999] * len(places)
    found = rows(engine, "SELECT key, kind, code FROM bulklane.outcome ORDER BY 1")
    expected = sorted(f'["acc-{n % 3}", "2026-03-29T12:00:00.{n:06}Z"]' for n in places)
    assert found == [(key, "failed", "23514") for key in expected]
    ended = look(engine, job)
    assert (ended.changed, ended.failed, ended.total) == (300 - len(places), len(places), 300)


def test_an_insert_between_the_error_and_the_report_is_not_blamed(engine: Engine) -> None:
    with_notes(engine, 6)
    break_some(engine, 0)
    job = live_job(engine, REGISTRY, NEW)
    ref = RangeRef(job.job_no, 1, 0)
    with engine.begin() as connection:
        standing = ranges.take(connection, ref, 1)
        course = plan_course(connection, REGISTRY, job, ref, 1, standing)
        piece = course.next_piece(connection, standing, 1)
    with pytest.raises(IntegrityError), engine.begin() as connection:
        course.apply(connection, standing, piece)
    with engine.begin() as connection:
        connection.execute(entries.insert(), [{"tenant": "acme", "account": "a", "booked_at": FIRST, "note": "new"}])
    with engine.begin() as connection:
        course.fail(connection, standing, piece, "23514", "a constraint")
    live_walk(engine, REGISTRY, job, 2)
    assert rows(engine, "SELECT key FROM bulklane.outcome") == [('["acc-0", "2026-03-29T12:00:00.000000Z"]',)]
    assert sorted(all_amounts(engine)) == [0, 1, 1, 1, 1, 1, 999]


def die_at(engine: Engine, job: Job, killer: int, epoch: int) -> bool:
    """A worker walks as segments do and dies in the chunk with the killer; False where that stands alone."""
    ref = RangeRef(job.job_no, 1, 0)
    with engine.begin() as connection:
        standing = ranges.take(connection, ref, epoch)
    while True:
        size = largest_after(standing.deaths)
        if standing.deaths > ranges.MOST_DEATHS and standing.cursor == killer:
            return False
        if standing.cursor <= killer < standing.cursor + size:
            return True
        assert live_chunk(engine, REGISTRY, ref, size, epoch) is not None
        standing = standing_of(engine, ref)


@pytest.mark.parametrize("killer", [0, 417, 999])
def test_a_record_that_kills_its_workers_stands_alone_and_is_reported(engine: Engine, killer: int) -> None:
    with_notes(engine, 1000)
    job = live_job(engine, REGISTRY, NEW)
    deaths = 0
    while die_at(engine, job, killer, epoch=deaths + 1):
        deaths += 1
        assert deaths <= 8
    walk_whole(engine, REGISTRY, job)
    assert rows(engine, "SELECT kind, code FROM bulklane.outcome") == [("failed", "worker_died")]
    found = all_amounts(engine)
    assert (found[killer], sum(found)) == (0, 999)


def test_a_stopped_walk_goes_on_where_it_was_with_what_failed(engine: Engine) -> None:
    """What wasn't come to is walked live again; what failed is frozen. Neither is what lies beyond the bound."""
    with_notes(engine, 60)
    break_some(engine, 3)
    job = live_job(engine, REGISTRY, NEW, parallelism=2)
    for number in range(2):
        for _ in range(4):
            walk_some(engine, job, number)
    with engine.begin() as connection:
        set_wish(connection, job.job_no, Wish.STOP, who="bulklane", why="too many failures")
    stopped = look(engine, job)
    deliver_all(engine, job)
    stopped = look(engine, job)
    assert (stopped.state, stopped.failed, stopped.total) == (JobState.FAILED, 1, 60)
    assert stopped.not_started == 60 - stopped.changed - 1
    with engine.begin() as connection:
        connection.execute(text("UPDATE entry SET amount = 0 WHERE amount = 999"))
        row = {"tenant": "acme", "account": "zzz", "booked_at": FIRST, "note": "new"}
        connection.execute(entries.insert(), [row])
    retried = retry(engine, job)
    assert (retried.job.round, retried.records) == (2, 1 + stopped.not_started)
    again = opened(engine, retried.job, "run-2", 2)
    live_walk(engine, REGISTRY, again, 7, epoch=2)
    look(engine, again)
    deliver_all(engine, again)
    ended = look(engine, again)
    assert (ended.state, ended.changed, ended.failed, ended.not_started) == (JobState.COMPLETED, 60, 0, 0)
    assert all_amounts(engine) == [1] * 60 + [0]
    assert rows(engine, "SELECT count(*) FROM bulklane.outcome") == [(0,)]


def walk_some(engine: Engine, job: Job, number: int) -> None:
    """One chunk of two records; where one of them is bad it is reported."""
    ref = RangeRef(job.job_no, 1, number)
    try:
        live_chunk(engine, REGISTRY, ref, 2)
    except IntegrityError:
        fail_one(engine, ref)


def fail_one(engine: Engine, ref: RangeRef) -> None:
    """The next record alone: changed, or reported."""
    with engine.begin() as connection:
        standing = ranges.take(connection, ref, 1)
        course = plan_course(connection, REGISTRY, get_job(connection, ref.job_no), ref, 1, standing)
        piece = course.next_piece(connection, standing, 1)
    try:
        with engine.begin() as connection:
            course.apply(connection, standing, piece)
    except IntegrityError:
        with engine.begin() as connection:
            assert course.fail(connection, standing, piece, "23514", "a constraint") is not None


def test_a_cancelled_walk_counts_what_it_had_still_to_come_to(engine: Engine) -> None:
    with_notes(engine, 50)
    job = live_job(engine, REGISTRY, NEW)
    live_chunk(engine, REGISTRY, RangeRef(job.job_no, 1, 0), 20)
    with engine.begin() as connection:
        set_wish(connection, job.job_no, Wish.CANCEL, who="ann", why="enough")
    ended = look(engine, job)
    assert (ended.changed, ended.total, ended.not_started) == (20, 50, 30)
    assert live_chunk(engine, REGISTRY, RangeRef(job.job_no, 1, 0), 20) is None
