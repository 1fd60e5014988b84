"""Rival attempts on one live walk at full speed: epochs grow, ranges are shut, connections die, rows are inserted."""

import itertools
import random
from dataclasses import dataclass
from threading import Event
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, text
from sqlalchemy.exc import DBAPIError

from bulklane.activities.plan import plan_course
from bulklane.database import range as ranges
from bulklane.database.range import RangeRef, Standing
from bulklane.operations.operation import CallEffect, Registry
from tests.database.jobs import Background, common_columns, look, registry_of, rows, simple_operation
from tests.database.live_jobs import live_job
from tests.database.test_chunk_rivals import AUDIT, Interrupted, shut_and_reopen

RECORDS = 3_000


@dataclass
class Rival:
    """One of several walkers of a range: takes it, walks for a while, gives up, takes it again."""

    engine: Engine
    registry: Registry
    ref: RangeRef
    epochs: "itertools.count[int]"
    chance: random.Random
    refused: int = 0
    interrupted: int = 0

    def walk(self) -> None:
        """Until the range is done, whoever does it."""
        while not self.attempt():
            pass

    def attempt(self) -> bool:
        """One epoch's walk; whether the range is done."""
        epoch = next(self.epochs)
        with self.engine.begin() as connection:
            standing = ranges.take(connection, self.ref, epoch)
            course = plan_course(connection, self.registry, self.ref, epoch, standing)
        for _ in range(self.chance.randint(1, 12)):
            if standing.done:
                return True
            try:
                standing = self.chunk(course, standing)
            except (Interrupted, DBAPIError):
                self.interrupted += 1
                with self.engine.begin() as connection:
                    standing = ranges.read(connection, self.ref)
        return standing.done

    def chunk(self, course: Any, standing: Standing) -> Standing:
        """A chunk of any size where the range is believed to stand; killed now and then, before or at its commit."""
        with self.engine.begin() as connection:
            piece = course.next_piece(connection, standing, self.chance.choice([1, *range(1, 90)]))
            moved: Standing | None = course.apply(connection, standing, piece)
            if self.chance.random() < 0.05:
                raise Interrupted
            if self.chance.random() < 0.03:
                connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        if moved is not None:
            # now and then the answer to COMMIT is lost, and the walker thinks that it stands where it was
            return standing if self.chance.random() < 0.1 else moved
        self.refused += 1
        with self.engine.begin() as connection:
            # a stale walker goes on from where it thinks it is, under its own epoch
            return ranges.read(connection, self.ref) if self.chance.random() < 0.8 else standing


def insert_between(engine: Engine, ended: Event) -> int:
    """Somebody adds records below the bound all the time; how many."""
    chance = random.Random(3)
    count = 0
    while not ended.is_set():
        with engine.begin() as connection:
            row = "INSERT INTO thing (id, tenant) VALUES (:id, 'acme') ON CONFLICT DO NOTHING"
            connection.execute(text(row), {"id": chance.randrange(RECORDS) * 10 + 5})
        count += 1
    return count


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_rivals_change_each_record_once_and_the_ledger_is_exact(engine: Engine, seed: int) -> None:
    table = Table("thing", MetaData(), Column("id", BigInteger, primary_key=True), *common_columns())
    effects = (CallEffect("call", "calls", {"id": table.c.id}),)
    registry = registry_of(simple_operation(engine, table, ["id"], effects=effects))
    with engine.begin() as connection:
        connection.execute(text(AUDIT))
        connection.execute(
            text("INSERT INTO thing (id, tenant) SELECT i * 10, 'acme' FROM generate_series(1, :n) i"), {"n": RECORDS}
        )
    job = live_job(engine, registry, parallelism=2)
    epochs = itertools.count(1)
    rivals = [
        Rival(engine, registry, RangeRef(job.job_no, 1, n % 2), epochs, random.Random(seed * 10 + n)) for n in range(6)
    ]
    ended = Event()
    third = Background(lambda: shut_and_reopen(engine, job, ended))
    user = Background(lambda: insert_between(engine, ended))
    for walking in [Background(rival.walk) for rival in rivals]:
        walking.result()
    ended.set()
    assert third.result() > 3
    assert user.result() > 3
    assert sum(rival.refused for rival in rivals) > 10
    assert sum(rival.interrupted for rival in rivals) > 3
    assert_exact(engine)
    done = look(engine, job)
    assert done.changed == rows(engine, "SELECT count(*) FROM thing_audit")[0][0]
    assert (done.total, done.failed, done.not_started) == (done.changed, 0, 0)


def assert_exact(engine: Engine) -> None:
    """Audit, rows, ledger and owed effects all say the same; each record of the start was changed, none twice."""
    assert rows(engine, "SELECT count(*), min(n), max(n) FROM thing WHERE id % 10 = 0") == [(RECORDS, 1, 1)]
    assert rows(engine, "SELECT max(n) FROM thing") == [(1,)]
    ((changed, distinct),) = rows(engine, "SELECT count(*), count(DISTINCT id) FROM thing_audit")
    assert changed == distinct
    assert rows(engine, "SELECT sum(changed) FROM bulklane.chunk") == [(changed,)]
    owed = "SELECT count(*), count(DISTINCT key), count(*) FILTER (WHERE (body::jsonb->>'id') = key)"
    owed += " FROM bulklane.owed, unnest(keys, bodies) u(key, body)"
    assert rows(engine, owed) == [(changed, changed, changed)]
    window = "WINDOW w AS (PARTITION BY range_no ORDER BY seq)"
    gaps = "SELECT count(*) FROM (SELECT lo, lag(hi, 1, lo) OVER w AS before, from_key, seq,"
    gaps += " lag(to_key, 1, from_key) OVER w AS key, epoch, lag(epoch, 1, epoch) OVER w AS older"
    gaps += f" FROM bulklane.chunk {window}) x WHERE lo <> before OR from_key IS DISTINCT FROM key OR epoch < older"
    assert rows(engine, gaps) == [(0,)]
