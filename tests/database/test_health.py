"""The database's health and the job's debt as reasons to go slower, with the real walker on real PostgreSQL."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from bulklane.activities.health import HealthWatch
from bulklane.activities.pace import PaceLimits
from bulklane.database.debt import count_debt
from bulklane.database.engine import connect_engine
from bulklane.database.health import Health, read_health
from bulklane.database.job import Job
from tests.database.jobs import REGISTRY, Background, accepted, freeze, look, one_chunk, opened, rows, throttled
from tests.support.faults import pooler
from tests.support.ledgers import make_entries
from tests.support.waiting import until
from tests.support.walking import segment_activity, walk_whole


@pytest.fixture
def users(database_url: str) -> Iterator[Engine]:
    """The sessions of somebody else's application."""
    engine = create_engine(database_url, connect_args={"application_name": "shop"})
    yield engine
    engine.dispose()


def bulk_job(engine: Engine, count: int) -> Job:
    """A job of the bulk lane that walks."""
    make_entries(engine, count)
    job = opened(engine, accepted(engine, small=0, parallelism=1))
    freeze(engine, job)
    return look(engine, job)


def health_of(engine: Engine) -> Health:
    with engine.connect() as connection:
        return read_health(connection)


@contextmanager
def users_waiting(users: Engine, count: int) -> Iterator[None]:
    """So many sessions wait for a row that another one holds, until the block ends."""
    with users.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS basket (id int PRIMARY KEY)"))
        connection.execute(text("INSERT INTO basket VALUES (1) ON CONFLICT DO NOTHING"))

    def wait() -> None:
        with users.begin() as connection:
            connection.execute(text("SELECT 1 FROM basket FOR UPDATE"))

    with users.begin() as holder:
        holder.execute(text("SELECT 1 FROM basket FOR UPDATE"))
        waiting = [Thread(target=wait) for _ in range(count)]
        for thread in waiting:
            thread.start()
        until(lambda: health_of(users).lock_waits >= count, what="the users wait")
        yield
    for thread in waiting:
        thread.join()


def test_users_who_wait_for_locks_are_counted_and_our_own_are_not(engine: Engine, users: Engine) -> None:
    assert health_of(engine).lock_waits == 0
    with users_waiting(users, 3):
        assert health_of(engine).lock_waits == 3
        ours = Background(lambda: rows(engine, "SELECT 1 FROM basket FOR UPDATE"))
        until(lambda: rows(engine, "SELECT count(*) FROM pg_locks WHERE NOT granted")[0][0] >= 4, what="ours waits")
        time.sleep(0.3)  # longer than what counts as a short wait
        assert health_of(engine).lock_waits == 3
    ours.result()
    assert health_of(engine).lock_waits == 0


def test_connections_are_a_share_of_what_the_server_takes(engine: Engine, users: Engine) -> None:
    most = int(rows(engine, "SHOW max_connections")[0][0])
    before = health_of(engine).connections
    held = [users.connect() for _ in range(5)]
    until(lambda: health_of(engine).connections >= before + 4.5 / most, what="five more are counted")
    for connection in held:
        connection.close()


def test_a_plain_user_reads_what_it_may_see(engine: Engine, users: Engine, database_url: str) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS plain_walker"))
        connection.execute(text("CREATE ROLE plain_walker LOGIN"))
    url = make_url(database_url).set(username="plain_walker").render_as_string(hide_password=False)
    plain = connect_engine(url, role="test", pool_size=1)
    try:
        with users_waiting(users, 2):
            seen = health_of(plain)
        assert (seen.replication_lag, seen.lock_waits) == (None, 2)
        assert 0 < seen.connections < 1
    finally:
        plain.dispose()
        with engine.begin() as connection:
            connection.execute(text("DROP ROLE plain_walker"))


def test_a_strained_database_slows_the_walk_then_holds_it_and_lets_it_go_on(engine: Engine, users: Engine) -> None:
    job = bulk_job(engine, 300)
    limits = PaceLimits(lock_waits_slow=0.5, lock_waits_hold=2.5, slow_rows_per_second=20)
    health = HealthWatch(engine, limits)
    with users_waiting(users, 3):
        answer = segment_activity(engine, REGISTRY, job, health=health, limits=limits)
        assert (answer.end, answer.processed) == ("held", 0)
        assert answer.reason == "the database is strained: lock waits 3 (limit 2.5): no chunk is started"
        assert answer.retry_seconds > 1
        told = rows(engine, 'SELECT slowed_by FROM bulklane."range"')
        assert told == [(answer.reason,)]
    with users_waiting(users, 1):
        time.sleep(1.1)  # the last reading is good for a second
        answer = segment_activity(engine, REGISTRY, job, health=health, limits=limits)
        assert answer.end == "continue"
        assert answer.reason == "the database is strained: lock waits 1 (limit 0.5): 20 rows/s"
        assert 80 <= answer.processed <= 130, "five seconds' rows"
    time.sleep(1.1)
    assert segment_activity(engine, REGISTRY, job, health=health, limits=limits).end == "done"


def test_a_small_job_starts_at_once_whatever_bulk_jobs_did_to_the_database(engine: Engine, users: Engine) -> None:
    make_entries(engine, 100)
    job = opened(engine, accepted(engine, parallelism=1))
    limits = PaceLimits(lock_waits_hold=0.5)
    with users_waiting(users, 1):
        health = HealthWatch(engine, limits)
        assert segment_activity(engine, REGISTRY, job, health=health, limits=limits).end == "done"


def test_a_health_that_cannot_be_read_holds_nothing(engine: Engine) -> None:
    job = bulk_job(engine, 100)
    away = connect_engine("postgresql+psycopg://nobody@/none?host=/nowhere", role="test", pool_size=1)
    assert segment_activity(engine, REGISTRY, job, health=HealthWatch(away, PaceLimits())).end == "done"


@pytest.mark.slow
def test_debt_slows_the_walk_and_never_halts_it(engine: Engine) -> None:
    job = bulk_job(engine, 700)
    limits = PaceLimits(debt_limit=100, slow_rows_per_second=50)
    with engine.begin() as connection:
        one_chunk(connection, job, size=300)
    answer = segment_activity(engine, REGISTRY, job, limits=limits)
    assert answer.end == "continue"
    assert "effects are owed, more than 100: 10 rows/s" in answer.reason
    assert 320 <= answer.processed <= 380, "the first chunk owes more than twice the limit: 10 rows/s from then on"
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.owed SET taken_to = size"))
    # deliveries caught up: what is left, but for what makes new debt, goes at full speed
    assert segment_activity(engine, REGISTRY, job, limits=PaceLimits(debt_limit=400)).end == "done"


def test_what_is_owed_to_a_held_channel_is_no_debt(engine: Engine) -> None:
    job = bulk_job(engine, 300)
    walk_whole(engine, REGISTRY, job)

    def debt() -> int:
        with engine.connect() as connection:
            return count_debt(connection, job.job_no, job.tenant)

    assert debt() == 300
    held = "INSERT INTO bulklane.channel_limit (channel, tenant, held_since) VALUES ('bookings', :t, clock_timestamp())"
    for tenant, left in (("another", 300), ("acme", 0)):
        with engine.begin() as connection:
            connection.execute(text(held), {"t": tenant})
        assert debt() == left
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.channel_limit SET held_since = NULL"))
    assert debt() == 300


@pytest.mark.slow
def test_the_slowest_reason_wins_and_is_shown(engine: Engine, users: Engine) -> None:
    job = bulk_job(engine, 300)
    limits = PaceLimits(lock_waits_slow=0.5, slow_rows_per_second=100)
    with engine.begin() as connection:
        values = {"r": 30.0, "n": job.job_no}
        connection.execute(text("UPDATE bulklane.wish SET rows_per_second = :r WHERE job_no = :n"), values)
    with users_waiting(users, 1):
        answer = segment_activity(engine, REGISTRY, job, health=HealthWatch(engine, limits), limits=limits)
    assert answer.reason == "the throttle allows 30 rows/s"
    assert 130 <= answer.processed <= 180


def test_pace_works_behind_a_transaction_mode_pooler(engine: Engine, users: Engine, database_url: str) -> None:
    job = bulk_job(engine, 60)
    throttled(engine, job, rows_per_second=30)
    limits = PaceLimits(lock_waits_slow=0.5, slow_rows_per_second=20)
    with pooler(database_url, 2) as url:
        through = connect_engine(url, role="test", pool_size=4)
        health = HealthWatch(through, limits)
        with users_waiting(users, 1):
            assert health_of(through).lock_waits == 1
            answer = segment_activity(through, REGISTRY, job, health=health, limits=limits)
        through.dispose()
    assert (answer.end, answer.processed) == ("done", 60)
    assert answer.reason == "the database is strained: lock waits 1 (limit 0.5): 20 rows/s"
