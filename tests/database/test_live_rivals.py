"""Rival attempts on one live walk: epochs grow, ranges are shut, connections die, rows come, records break a rule."""

import itertools
import random
from threading import Event

import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, text

from bulklane.database.range import RangeRef
from bulklane.operations.operation import CallEffect
from tests.database.jobs import Background, common_columns, look, registry_of, rows, simple_operation
from tests.database.live_jobs import live_job
from tests.support.rivals import AUDIT, Rival, shut_and_reopen

RECORDS = 1_000
BAD = 10


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
        connection.execute(text("ALTER TABLE thing ADD CONSTRAINT rule CHECK (n = 0 OR id % 1000 <> 70)"))
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
    assert sum(rival.broken for rival in rivals) > 3
    assert_exact(engine)
    done = look(engine, job)
    assert done.changed == rows(engine, "SELECT count(*) FROM thing_audit")[0][0]
    assert (done.total, done.failed, done.not_started) == (done.changed + BAD, BAD, 0)


def assert_exact(engine: Engine) -> None:
    """Audit, rows, ledger and owed effects all say the same; each record of the start was changed, none twice."""
    of_the_start = "SELECT count(*), min(n), max(n) FROM thing WHERE id % 10 = 0 AND"
    assert rows(engine, f"{of_the_start} id % 1000 <> 70") == [(RECORDS - BAD, 1, 1)]
    assert rows(engine, f"{of_the_start} id % 1000 = 70") == [(BAD, 0, 0)]
    assert rows(engine, "SELECT max(n) FROM thing") == [(1,)]
    ((changed, distinct),) = rows(engine, "SELECT count(*), count(DISTINCT id) FROM thing_audit")
    assert changed == distinct
    assert rows(engine, "SELECT sum(changed), sum(failed) FROM bulklane.chunk") == [(changed, BAD)]
    assert rows(engine, "SELECT bool_and(changed + failed <= hi - lo) FROM bulklane.chunk") == [(True,)]
    outcomes = "SELECT count(*), bool_and(kind = 'failed' AND key::int % 1000 = 70) FROM bulklane.outcome"
    assert rows(engine, outcomes) == [(BAD, True)]
    owed = "SELECT count(*), count(DISTINCT key), count(*) FILTER (WHERE (body::jsonb->>'id') = key)"
    owed += " FROM bulklane.owed, unnest(keys, bodies) u(key, body)"
    assert rows(engine, owed) == [(changed, changed, changed)]
    window = "WINDOW w AS (PARTITION BY range_no ORDER BY seq)"
    gaps = "SELECT count(*) FROM (SELECT lo, lag(hi, 1, lo) OVER w AS before, from_key, seq,"
    gaps += " lag(to_key, 1, from_key) OVER w AS key, epoch, lag(epoch, 1, epoch) OVER w AS older"
    gaps += f" FROM bulklane.chunk {window}) x WHERE lo <> before OR from_key IS DISTINCT FROM key OR epoch < older"
    assert rows(engine, gaps) == [(0,)]
