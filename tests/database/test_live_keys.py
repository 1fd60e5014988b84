"""The live walk over every key type and at every chunk size: each record once, whatever lies between the keys."""

import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, DateTime, Engine, Index, Integer, MetaData, String, Table, Text, Uuid, text

from bulklane.contracts.job import JobState
from bulklane.database.range import RangeRef
from bulklane.operations.request import InvalidRequest
from tests.database.jobs import common_columns, look, registry_of, rows, simple_operation, stands
from tests.database.live_jobs import changed_times, fill, live_chunk, live_job, live_walk, standing_of

SIZES = [1, 2, 7, 100]
CHANCE = random.Random(7)
FIRST = datetime(2026, 3, 29, 1, 59, 59, 999_990, tzinfo=UTC)
KEYS: dict[str, tuple[list[Column[Any]], list[tuple[Any, ...]]]] = {
    "bigint": (
        [Column("id", BigInteger, primary_key=True)],
        [(n,) for n in (-(2**63), -7, 0, 1, 2**53, 2**53 + 1, 2**63 - 1, *range(10, 40, 3))],
    ),
    "integer": ([Column("id", Integer, primary_key=True)], [(n,) for n in (-(2**31), -1, 0, 5, 2**31 - 1)]),
    "text": (
        [Column("id", Text, primary_key=True)],
        [(one,) for one in ("", " ", "a", "A", "a ", "ä", "z", "Z", "%s", "\u200b", "\U0001f600", 'q"', "\\", "10")],
    ),
    "varchar": ([Column("id", String(9), primary_key=True)], [(f"k{n}",) for n in range(12)]),
    "uuid": (
        [Column("id", Uuid, primary_key=True)],
        [(uuid.UUID(int=n),) for n in (0, 2**128 - 1, *(CHANCE.getrandbits(128) for _ in range(20)))],
    ),
    "timestamptz": (
        [Column("at", DateTime(timezone=True), primary_key=True)],
        [(FIRST + timedelta(microseconds=n),) for n in range(25)]
        + [(datetime(1, 1, 2, tzinfo=UTC),), (datetime(9999, 12, 30, tzinfo=UTC),)],
    ),
    "two columns": (
        [Column("account", Text, primary_key=True), Column("at", DateTime(timezone=True), primary_key=True)],
        [(f"a{n % 3}", FIRST + timedelta(microseconds=n // 2)) for n in range(60)],
    ),
    "four columns": (
        [
            Column("a", BigInteger, primary_key=True),
            Column("b", Text, primary_key=True),
            Column("c", Uuid, primary_key=True),
            Column("d", DateTime(timezone=True), primary_key=True),
        ],
        [(n % 2, f"b{n % 3}", uuid.UUID(int=n % 5), FIRST + timedelta(microseconds=n)) for n in range(60)],
    ),
}  # fmt: skip


def make(engine: Engine, name: str, **attributes: Any) -> tuple[Table, Any, list[str]]:
    """A table with such a key, its rows, and an operation on it."""
    columns, keys = KEYS[name]
    names = [column.name for column in columns]
    own = [Column(column.name, column.type, primary_key=True, autoincrement=False) for column in columns]
    table = Table("thing", MetaData(), *own, *common_columns())
    operation = simple_operation(engine, table, names, **attributes)
    fill(engine, table, [dict(zip(names, key, strict=True)) for key in sorted(set(keys))])
    return table, registry_of(operation), names


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", KEYS)
def test_each_record_of_every_key_type_is_changed_once(engine: Engine, name: str, size: int) -> None:
    _, registry, _ = make(engine, name)
    with engine.begin() as connection:
        connection.execute(text("UPDATE thing SET tenant = 'other' WHERE random() < 0.3"))
    mine = rows(engine, "SELECT count(*) FROM thing WHERE tenant = 'acme'")[0][0]
    job = live_job(engine, registry, parallelism=3)
    chunks = live_walk(engine, registry, job, size)
    assert rows(engine, "SELECT tenant, n, count(*) FROM thing GROUP BY 1, 2 ORDER BY 1") == sorted(
        [("acme", 1, mine), *rows(engine, "SELECT tenant, 0, count(*) FROM thing WHERE tenant = 'other' GROUP BY 1")]
    )
    ended = look(engine, job)
    assert (ended.total, ended.changed, ended.not_started, ended.skipped) == (mine, mine, 0, 0)
    assert ended.state is JobState.COMPLETED
    assert chunks >= mine // size


@pytest.mark.parametrize("collation", ["C", "POSIX", "default", "ucs_basic"])
def test_text_is_walked_in_the_order_of_its_own_collation(engine: Engine, collation: str) -> None:
    table = Table("thing", MetaData(), Column("id", Text(collation=collation), primary_key=True), *common_columns())
    registry = registry_of(simple_operation(engine, table, ["id"]))
    fill(engine, table, [{"id": one} for one in ("a", "B", "ä", "Z", "z", "é", "e", "E")])
    live_walk(engine, registry, live_job(engine, registry, parallelism=2), 3)
    assert changed_times(engine, table) == [1] * 8


@pytest.mark.parametrize(
    "size", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 7, 100]
)
def test_gaps_deleted_ranges_and_wholly_rejected_chunks_end_nothing_early(engine: Engine, size: int) -> None:
    table = Table("thing", MetaData(), Column("id", BigInteger, primary_key=True), Column("s", Text), *common_columns())
    registry = registry_of(simple_operation(engine, table, ["id"], fields={"s": table.c.s}))
    fill(engine, table, [{"id": n, "s": "x" if n < 400 or n > 700 else "y"} for n in range(1, 1001) if n % 7])
    job = live_job(engine, registry, {"filter": {"field": "s", "value": "x"}}, parallelism=2)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM thing WHERE id BETWEEN 200 AND 390 OR id = 1000"))
    left = rows(engine, "SELECT count(*) FROM thing WHERE s = 'x'")[0][0]
    live_walk(engine, registry, job, size)
    assert rows(engine, "SELECT s, n, count(*) FROM thing WHERE s = 'x' OR n > 0 GROUP BY 1, 2") == [("x", 1, left)]
    ended = look(engine, job)
    assert (ended.total, ended.changed, ended.skipped, ended.not_started) == (left, left, 0, 0)


def test_a_filter_that_matches_nothing_is_done_at_once(engine: Engine) -> None:
    _, registry, _ = make(engine, "bigint", fields={})
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM thing"))
    job = live_job(engine, registry)
    assert live_walk(engine, registry, job, 10) == 0
    assert (look(engine, job).total, look(engine, job).state) == (0, JobState.COMPLETED)


def test_the_key_needs_not_be_unique(engine: Engine) -> None:
    table = Table(
        "thing", MetaData(), Column("no", BigInteger, primary_key=True), Column("id", BigInteger, nullable=False),
        *common_columns(), Index("by_id", "tenant", "id"),
    )  # fmt: skip
    registry = registry_of(simple_operation(engine, table, ["id"]))
    fill(engine, table, [{"no": n, "id": n % 3} for n in range(142)])
    live_walk(engine, registry, live_job(engine, registry, parallelism=2), 7)
    assert changed_times(engine, table) == [1] * 142


def test_cursor_and_ledger_tell_which_keys_a_chunk_had(engine: Engine) -> None:
    _, registry, _ = make(engine, "two columns")
    job = live_job(engine, registry)
    ref = RangeRef(job.job_no, 1, 0)
    assert live_chunk(engine, registry, ref, 10) is not None
    standing = standing_of(engine, ref)
    live_walk(engine, registry, job, 10)
    ledger = rows(engine, "SELECT lo, hi, from_key, to_key, changed FROM bulklane.chunk ORDER BY seq")
    assert ledger[0] == (0, 10, None, standing.cursor_key, 10)
    assert [row[2] for row in ledger[1:]] == [row[3] for row in ledger[:-1]]
    assert ledger[-1][3] == standing.bound_key
    assert sum(row[4] for row in ledger) == stands(engine, job).total


def test_a_table_without_an_index_in_key_order_is_refused(engine: Engine) -> None:
    table = Table(
        "thing", MetaData(), Column("no", BigInteger, primary_key=True), Column("id", BigInteger, nullable=False),
        *common_columns(), Index("some", "id", postgresql_where=text("id > 5")),
    )  # fmt: skip
    registry = registry_of(simple_operation(engine, table, ["id"]))
    with pytest.raises(InvalidRequest, match=r"selection.live: thing has no index on \(tenant, id\)"):
        live_job(engine, registry)
    assert rows(engine, "SELECT count(*) FROM bulklane.job") == [(0,)]
