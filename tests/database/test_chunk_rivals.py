"""Rival attempts on one job at full speed: epochs grow, ranges are shut, connections die. Each record changes once."""

import itertools
import random
from threading import Event

import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, text

from bulklane.database.range import RangeRef
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
from tests.support.rivals import AUDIT, Rival, shut_and_reopen

RECORDS = 4_000


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
    epochs = itertools.count(1)
    rivals = [
        Rival(engine, registry, RangeRef(job.job_no, 1, n % 2), epochs, random.Random(seed * 10 + n)) for n in range(6)
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
