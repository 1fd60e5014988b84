"""A job beside users who write the same rows: it gives way to them, and changes each row once all the same."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, event, text

from bulklane.database import range as ranges
from bulklane.database.engine import connect_engine
from bulklane.database.job import Job
from bulklane.database.range import RangeRef
from bulklane.operations.operation import Registry
from tests.database.jobs import (
    REGISTRY,
    Background,
    accepted,
    common_columns,
    look,
    opened,
    registry_of,
    rows,
    simple_operation,
)
from tests.support.ledgers import amounts, make_entries
from tests.support.waiting import until
from tests.support.walking import walk_whole

RECORDS = 50_000
CLIENTS = 20
TRANSACTIONS = 10_000
# as a service does it: one transaction, the rows one after the other in the user's own order
USERS_EDIT = """
CREATE FUNCTION users_edit(wanted bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE one bigint;
BEGIN
  FOREACH one IN ARRAY wanted LOOP UPDATE thing SET edits = edits + 1 WHERE id = one; END LOOP;
END $$
"""


@dataclass
class Users:
    """Clients that update five listed rows in random order, again and again."""

    url: str
    done: int = 0
    edits: int = 0
    others: list[str] = field(default_factory=list)
    deadlocks: list[str] = field(default_factory=list)
    """What PostgreSQL said to the client that it chose: it names every process of the circle."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def edit(self, seed: int, ended: threading.Event) -> None:
        """One client, until it is told to end."""
        chance = random.Random(seed)
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not ended.is_set():
                wanted = chance.sample(range(1, RECORDS + 1), 5)
                try:
                    connection.execute("SELECT users_edit(%s)", [wanted])
                except psycopg.errors.DeadlockDetected as error:
                    self.deadlocks.append(error.diag.message_detail or "")
                except psycopg.Error as error:
                    self.others.append(f"{error.sqlstate}: {error}")
                else:
                    with self._lock:
                        self.done += 1
                        self.edits += len(wanted)


@contextmanager
def busy(users: Users) -> Iterator[None]:
    """All clients at work until the block ends."""
    ended = threading.Event()
    clients = [threading.Thread(target=users.edit, args=(seed, ended)) for seed in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        ended.set()
        for client in clients:
            client.join()


@dataclass
class Noted:
    """What an engine's sessions met: their process ids at the server, and the errors by SQLSTATE."""

    pids: set[int] = field(default_factory=set)
    errors: Counter[str] = field(default_factory=Counter)


def noted(engine: Engine) -> Noted:
    """Note from now on."""
    found = Noted()

    @event.listens_for(engine, "connect")
    def connected(connection: psycopg.Connection, _record: object) -> None:
        found.pids.add(connection.info.backend_pid)

    @event.listens_for(engine, "handle_error")
    def failed(context: object) -> None:
        found.errors[str(getattr(context.original_exception, "sqlstate", None))] += 1  # type: ignore[attr-defined]

    return found


def listed_things(engine: Engine) -> Registry:
    """Rows with a number of the job's and one of the users'."""
    edits = Column("edits", BigInteger, nullable=False, server_default=text("0"))
    table = Table("thing", MetaData(), Column("id", BigInteger, primary_key=True), edits, *common_columns())
    registry = registry_of(simple_operation(engine, table, ["id"]))
    with engine.begin() as connection:
        connection.execute(text(USERS_EDIT))
        connection.execute(text("CREATE INDEX ON thing (id)"))
        insert = "INSERT INTO thing (id, tenant) SELECT i, 'acme' FROM generate_series(1, :n) i"
        connection.execute(text(insert), {"n": RECORDS})
        connection.execute(text("ANALYZE thing"))
    return registry


@pytest.mark.slow
@pytest.mark.case("C33")
def test_users_who_write_the_same_rows_in_any_order_are_never_the_victims(engine: Engine, database_url: str) -> None:
    registry = listed_things(engine)
    ids = [*range(1, RECORDS + 1)]
    random.Random(1).shuffle(ids)
    walker = connect_engine(database_url, role="walker", pool_size=4)
    ours = noted(walker)
    users = Users(database_url.replace("+psycopg", "", 1))
    jobs = 0
    with busy(users):
        while users.done < TRANSACTIONS:
            job = opened(engine, accepted(engine, registry=registry, selection={"ids": ids}, parallelism=2))
            walk_whole(walker, registry, job)
            with engine.connect() as connection:
                assert ranges.counters(connection, job.job_no, 1) == ranges.Counters(changed=RECORDS)
            look(engine, job)
            jobs += 1
    walker.dispose()
    killed_by_us = [told for told in users.deadlocks if any(f"rocess {pid} " in told for pid in ours.pids)]
    assert killed_by_us == []
    assert ours.errors["40P01"] == 0
    assert users.others == []
    assert rows(engine, "SELECT n, count(*) FROM thing GROUP BY n") == [(jobs, RECORDS)]
    assert rows(engine, "SELECT sum(edits) FROM thing") == [(users.edits,)]
    assert rows(engine, "SELECT count(*) FROM bulklane.outcome") == [(0,)]


@pytest.mark.case("C17")
def test_a_row_that_a_user_holds_holds_up_only_itself(engine: Engine) -> None:
    keys = make_entries(engine, 300)
    job = opened(engine, accepted(engine, parallelism=1))
    held = {"account": keys[57][0], "at": keys[57][1]}
    with engine.begin() as user:
        user.execute(text("SELECT 1 FROM entry WHERE account = :account AND booked_at = :at FOR UPDATE"), held)
        walking = Background(lambda: walk_whole(engine, REGISTRY, job, chunk=50))
        until(lambda: standing(engine, job) == 57, what="all before it are changed")
    walking.result()
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * 300


def standing(engine: Engine, job: Job) -> int:
    """Up to which record the only range is walked."""
    with engine.connect() as connection:
        return ranges.read(connection, RangeRef(job.job_no, 1, 0)).cursor
