"""Live walks: records whose new values break a rule are found by asking where the catalog can tell."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, Text, delete, update

from bulklane.database.range import Counters
from bulklane.operations.operation import CallEffect, Operation, Registry
from bulklane.operations.request import InvalidRequest
from tests.database.jobs import common_columns, operation_on, registry_of, rows
from tests.database.live_jobs import exact_counters, fill, live_job, live_walk
from tests.database.test_bad_records import (
    LEFT,
    OUTCOMES,
    WAYS,
    ddl,
    expected,
    patient,  # noqa: F401
    prepare,
)
from tests.database.test_live_keys import KEYS
from tests.support.people import EditPeople, make_people
from tests.support.statements import counted
from tests.support.walking import PATIENT, walk_whole


def walked(engine: Engine, operation: Operation, chunk: int = 1000) -> tuple[int, Counters]:
    """How many chunk transactions a live walk took, and what became of the records; the ledger says the same."""
    registry = registry_of(operation)
    job = live_job(engine, registry)
    with counted(engine) as found:
        walk_whole(engine, registry, job, chunk=chunk, timing=PATIENT)
    return found.chunks, exact_counters(engine, job)


@pytest.mark.case("C35")
@pytest.mark.parametrize("way", [1, 2], ids=["statement", "per record"])
@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("bad", ["id = 1", "id IN (1, 100, 101, 177, 200)"])
def test_a_rule_that_the_catalog_tells_costs_one_more_transaction(
    engine: Engine, kind: str, way: int, bad: str
) -> None:
    statements, *operations = WAYS[kind]
    prepare(engine, statements, bad, count=200)
    wanted = expected(engine, operations[0])
    assert len(wanted) in (1, 5)
    transactions, counters = walked(engine, operations[way - 1])
    assert (transactions, counters) == (2, Counters(changed=200 - len(wanted), failed=len(wanted)))
    assert rows(engine, OUTCOMES) == wanted
    assert rows(engine, "SELECT count(*) FROM person WHERE row_version > 1") == [(200 - len(wanted),)]


@pytest.mark.case("C35")
@pytest.mark.parametrize("way", [1, 2], ids=["statement", "per record"])
@pytest.mark.parametrize("kind", WAYS)
def test_a_chunk_of_bad_records_only_takes_two_transactions(engine: Engine, kind: str, way: int) -> None:
    statements, *operations = WAYS[kind]
    prepare(engine, statements, "true")
    assert walked(engine, operations[way - 1]) == (2, Counters(failed=1000))
    assert len(rows(engine, "SELECT DISTINCT code, reason FROM bulklane.outcome")) == 1


@pytest.mark.parametrize("kind", LEFT)
def test_what_no_query_tells_is_found_by_bisection(engine: Engine, kind: str) -> None:
    statements, operation = LEFT[kind]
    prepare(engine, statements, "500")
    transactions, counters = walked(engine, operation)
    assert counters == Counters(changed=999, failed=1)
    assert [row[0] for row in rows(engine, OUTCOMES)] == ["500"]
    assert transactions - 1 <= 2 * math.log2(1000) + 2


KEYED = ["text", "uuid", "two columns", "four columns"]


def keyed(engine: Engine, name: str, bad: str, change: Callable[[Table], Any] | None = None) -> Registry:
    """An operation on a table with such a key, whose rows of acme break a rule where they are bad."""
    columns, keys = KEYS[name]
    names = [column.name for column in columns]
    own = [Column(column.name, column.type, primary_key=True, autoincrement=False) for column in columns]
    table = Table("thing", MetaData(), *own, Column("s", Text), *common_columns())
    with engine.begin() as connection:
        table.create(connection)
    fill(engine, table, [dict(zip(names, key, strict=True)) for key in sorted(set(keys))])
    ddl(
        engine,
        "INSERT INTO thing SELECT * FROM thing ON CONFLICT DO NOTHING",
        f"UPDATE thing SET s = CASE WHEN {bad} THEN 'bad' ELSE 'good' END",
        "ALTER TABLE thing ADD CONSTRAINT rule CHECK (n = 0 OR s <> 'bad')",
    )
    changed = update(table).values(n=table.c.n + 1) if change is None else change(table)
    effects = (CallEffect("call", "calls", {"n": table.c.n}),)
    return registry_of(operation_on(table, names, changed, effects=effects, fields={"s": table.c.s}))


@pytest.mark.parametrize("size", [2, 7, 100])
@pytest.mark.parametrize("name", KEYED)
def test_every_kind_of_key_is_asked_in_any_chunk(engine: Engine, name: str, size: int) -> None:
    registry = keyed(engine, name, "md5(thing::text) < '6'")
    ((good, bad),) = rows(
        engine, "SELECT count(*) FILTER (WHERE s = 'good'), count(*) FILTER (WHERE s = 'bad') FROM thing"
    )
    assert good > 2 < bad
    ddl(engine, "UPDATE thing SET tenant = 'other' WHERE ctid IN (SELECT ctid FROM thing WHERE s = 'bad' LIMIT 1)")
    job = live_job(engine, registry)
    walk_whole(engine, registry, job, chunk=size, timing=PATIENT)
    assert exact_counters(engine, job) == Counters(changed=good, failed=bad - 1)
    assert rows(engine, "SELECT tenant, s, n, count(*) FROM thing GROUP BY 1, 2, 3 ORDER BY 1, 2") == [
        ("acme", "bad", 0, bad - 1), ("acme", "good", 1, good), ("other", "bad", 0, 1)
    ]  # fmt: skip
    reasons = rows(engine, "SELECT DISTINCT code, reason FROM bulklane.outcome")
    assert reasons == [("23514", "CheckViolation: constraint rule")]


def test_a_key_that_is_not_unique_is_reported_once(engine: Engine) -> None:
    table = Table(
        "thing",
        MetaData(),
        Column("no", BigInteger, primary_key=True),
        Column("id", BigInteger, nullable=False),
        *common_columns(),
    )
    with engine.begin() as connection:
        table.create(connection)
    fill(engine, table, [{"no": n, "id": n // 2, "n": 5 if n in (6, 7) else 0} for n in range(40)])
    ddl(engine, "CREATE INDEX by_id ON thing (tenant, id)", "ALTER TABLE thing ADD CHECK (n < 6)")
    registry = registry_of(operation_on(table, ["id"], update(table).values(n=table.c.n + 1)))
    job = live_job(engine, registry)
    walk_whole(engine, registry, job, chunk=100, timing=PATIENT)
    assert rows(engine, "SELECT changed, failed FROM bulklane.chunk") == [(38, 1)]
    assert [row[0] for row in rows(engine, OUTCOMES)] == ["3"]


def test_records_that_others_refer_to_are_not_deleted(engine: Engine) -> None:
    registry = keyed(engine, "two columns", "account = 'a1'", delete)
    ddl(
        engine,
        "CREATE TABLE part (account text, at timestamptz, tenant text,"
        " CONSTRAINT holds FOREIGN KEY (account, at, tenant) REFERENCES thing (account, at, tenant))",
        "INSERT INTO part SELECT account, at, tenant FROM thing WHERE s = 'bad'",
    )
    ((held,),) = rows(engine, "SELECT count(*) FROM part")
    ((all_,),) = rows(engine, "SELECT count(*) FROM thing")
    assert walked(engine, registry.operations["made"]) == (2, Counters(changed=all_ - held, failed=held))
    assert rows(engine, "SELECT DISTINCT code, reason FROM bulklane.outcome") == [
        ("23503", "ForeignKeyViolation: constraint holds")
    ]


@pytest.mark.parametrize("size", [1, 4, 100])
def test_a_function_of_a_record_is_walked_live(engine: Engine, size: int) -> None:
    make_people(engine, 30)
    make_people(engine, 5, tenant="other")
    ddl(engine, "UPDATE person SET name = CASE id % 3 WHEN 0 THEN 'skip' WHEN 1 THEN 'fail' ELSE 'x' END")
    registry = registry_of(EditPeople())
    job = live_job(engine, registry, parallelism=2)
    live_walk(engine, registry, job, size)
    assert exact_counters(engine, job) == Counters(changed=10, skipped=10, failed=10)
    assert rows(engine, "SELECT tenant, n, row_version, count(*) FROM person GROUP BY 1, 2, 3 ORDER BY 1, 2") == [
        ("acme", 0, 1, 20), ("acme", 1, 2, 10), ("other", 0, 1, 5)
    ]  # fmt: skip
    assert rows(engine, "SELECT DISTINCT kind, code, reason FROM bulklane.outcome ORDER BY 1") == [
        ("failed", "too_odd", "its name says so"), ("skipped", "", "asked for")
    ]  # fmt: skip


def test_a_function_that_may_set_what_the_filter_reads_is_refused(engine: Engine) -> None:
    make_people(engine, 3)
    with pytest.raises(InvalidRequest, match="edit_people writes `name` and its filter reads `name`"):
        live_job(engine, registry_of(EditPeople()), {"filter": {"field": "name", "value": "x"}})
