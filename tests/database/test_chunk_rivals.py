"""Rival attempts on one job at full speed: epochs grow, ranges are shut, connections die. Each record changes once."""

import itertools
import random
from dataclasses import dataclass
from threading import Event

import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, text
from sqlalchemy.exc import DBAPIError

from bulklane.activities.plan import plan_chunks
from bulklane.database import range as ranges
from bulklane.database.chunk import apply_chunk
from bulklane.database.chunk_plan import ChunkPlan
from bulklane.database.job import Job
from bulklane.database.range import RangeRef
from bulklane.database.selection import slice_at
from bulklane.operations.operation import CallEffect
from tests.database.jobs import (
    Background,
    accepted,
    common_columns,
    look,
    opened,
    registry_of,
    rows,
    simple_operation,
)

RECORDS = 4_000
AUDIT = """
CREATE TABLE thing_audit (id bigint);
CREATE FUNCTION audit_thing() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO thing_audit VALUES (NEW.id); RETURN NULL; END $$;
CREATE TRIGGER audit AFTER UPDATE ON thing FOR EACH ROW EXECUTE FUNCTION audit_thing();
"""


class Interrupted(RuntimeError):
    """A chunk whose process is gone before it commits."""


@dataclass
class Rival:
    """One of several walkers of a range: takes it, walks for a while, gives up, takes it again."""

    engine: Engine
    plan: ChunkPlan
    ref: RangeRef
    selection_no: int
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
        for _ in range(self.chance.randint(1, 12)):
            if standing.done:
                return True
            try:
                standing = self.chunk(epoch, standing)
            except (Interrupted, DBAPIError):
                self.interrupted += 1
                with self.engine.begin() as connection:
                    standing = ranges.read(connection, self.ref)
        return standing.done

    def chunk(self, epoch: int, standing: ranges.Standing) -> ranges.Standing:
        """A chunk of any size where the range is believed to stand; killed now and then, before or at its commit."""
        piece = slice_at(self.selection_no, standing.cursor, standing.hi, self.chance.randint(1, 90))
        with self.engine.begin() as connection:
            result = apply_chunk(connection, self.plan, self.ref, epoch, piece)
            if self.chance.random() < 0.05:
                raise Interrupted
            if self.chance.random() < 0.03:
                connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        if result is not None:
            return standing.at(result.cursor)
        self.refused += 1
        with self.engine.begin() as connection:
            # a stale walker goes on from where it thinks it is, under its own epoch
            return ranges.read(connection, self.ref) if self.chance.random() < 0.8 else standing


def shut_and_reopen(engine: Engine, job: Job, ended: Event) -> int:
    """A third party at the ranges; how often."""
    times = 0
    while not ended.is_set():
        for act in (ranges.shut, ranges.reopen):
            with engine.begin() as connection:
                act(connection, job.job_no, 1)
        times += 1
    return times


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_rivals_change_each_record_once_and_the_ledger_is_exact(engine: Engine, seed: int) -> None:
    table = Table("thing", MetaData(), Column("id", BigInteger, primary_key=True), *common_columns())
    effects = (CallEffect("call", "calls", {"id": table.c.id}),)
    registry = registry_of(simple_operation(engine, table, ["id"], effects=effects))
    with engine.begin() as connection:
        connection.execute(text(AUDIT))
        insert = "INSERT INTO thing (id, tenant) SELECT i, 'acme' FROM generate_series(1, :n) i WHERE i % 10 > 0"
        connection.execute(text(insert), {"n": RECORDS})
    ids = [*range(1, RECORDS + 1)]
    job = opened(engine, accepted(engine, registry=registry, selection={"ids": ids}, parallelism=2))
    with engine.begin() as connection:
        plan, stored = plan_chunks(connection, registry, job)
    epochs = itertools.count(1)
    rivals = [
        Rival(engine, plan, RangeRef(job.job_no, 1, n % 2), stored.selection_no, epochs, random.Random(seed * 10 + n))
        for n in range(6)
    ]
    ended = Event()
    third = Background(lambda: shut_and_reopen(engine, job, ended))
    for walking in [Background(rival.walk) for rival in rivals]:
        walking.result()
    ended.set()
    assert third.result() > 3
    assert sum(rival.refused for rival in rivals) > 10
    assert sum(rival.interrupted for rival in rivals) > 3
    assert_exact(engine)
    done = look(engine, job)
    assert (done.changed, done.not_found, done.failed, done.not_started) == (RECORDS * 9 // 10, RECORDS // 10, 0, 0)


def assert_exact(engine: Engine) -> None:
    """Audit, rows, ledger, exceptions and owed effects all say the same."""
    changed, gone = RECORDS * 9 // 10, RECORDS // 10
    assert rows(engine, "SELECT count(*), count(DISTINCT id) FROM thing_audit") == [(changed, changed)]
    assert rows(engine, "SELECT n, count(*) FROM thing GROUP BY n") == [(1, changed)]
    assert rows(engine, "SELECT sum(changed), sum(not_found), sum(hi - lo) FROM bulklane.chunk") == [
        (changed, gone, RECORDS)
    ]
    assert rows(engine, "SELECT count(*) FROM bulklane.outcome WHERE kind = 'not_found'") == [(gone,)]
    owed = "SELECT count(*), count(DISTINCT key), count(*) FILTER (WHERE (body::jsonb->>'id') = key)"
    owed += " FROM bulklane.owed, unnest(keys, bodies) u(key, body)"
    assert rows(engine, owed) == [(changed, changed, changed)]
    gaps = (
        "SELECT count(*) FROM (SELECT lo, lag(hi, 1, lo) OVER w AS before, epoch, lag(epoch, 1, epoch) OVER w AS older"
    )
    gaps += (
        " FROM bulklane.chunk WINDOW w AS (PARTITION BY range_no ORDER BY seq)) x WHERE lo <> before OR epoch < older"
    )
    assert rows(engine, gaps) == [(0,)]
