"""The index check of a preview: a scan of a large table is named, and an index silences it."""

from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, Text, text, update

from bulklane import Operation
from tests.database.jobs import common_columns, operation_on
from tests.support.ledgers import AddToEntries, make_entries
from tests.support.people import EditPeople, make_people
from tests.support.previews import previewed

MANY = 20_000
RARE = {"filter": {"field": "note", "op": "=", "value": "rare"}}


def run(engine: Engine, *statements: str) -> None:
    """Each commits by itself."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements:
            connection.execute(text(statement))


def many_entries(engine: Engine) -> None:
    """With notes, some of them rare; no index leads to notes."""
    make_entries(engine, 0)
    run(
        engine,
        f"""INSERT INTO entry (tenant, account, booked_at, note)
            SELECT 'acme', 'acc-' || no % 7, timestamptz '2026-01-01Z' + no * interval '1 s',
                   CASE WHEN no % 1000 = 0 THEN 'rare' ELSE 'note ' || no END
            FROM generate_series(1, {MANY}) AS no""",
        "ANALYZE entry",
    )


def test_a_scan_for_a_filter_is_named_until_there_is_an_index(engine: Engine) -> None:
    many_entries(engine)
    found = previewed(engine, AddToEntries(), RARE)
    (named,) = found.scans
    assert (named.statement, named.scan.table, named.expected) == ("selection", "public.entry", False)
    assert 0.9 * MANY < named.scan.reads < 1.1 * MANY
    assert named.scan.finds < 1000
    assert "note" in named.scan.filter
    assert named.advice == "an index on entry (tenant, note) would lead to the rows"
    run(engine, "CREATE INDEX ON entry (tenant, note)", "ANALYZE entry")
    assert previewed(engine, AddToEntries(), RARE).scans == []
    assert found.count.records == MANY // 1000


def test_all_records_are_scanned_rightly(engine: Engine) -> None:
    many_entries(engine)
    (named,) = previewed(engine, AddToEntries(), {"all": True}).scans
    assert (named.statement, named.expected, named.advice) == ("selection", True, "")


def test_a_small_table_is_scanned_rightly(engine: Engine) -> None:
    make_entries(engine, 500)
    run(engine, "ANALYZE entry")
    assert previewed(engine, AddToEntries(), RARE).scans == []


@pytest.mark.parametrize("live", [False, True])
def test_a_live_walk_finds_its_bound_and_its_chunks_by_the_key(engine: Engine, live: bool) -> None:
    many_entries(engine)
    found = previewed(
        engine, AddToEntries(), {"filter": {"field": "account", "op": ">=", "value": "acc-"}, "live": live}
    )
    assert [named.statement for named in found.scans] == ([] if live else ["selection"])


def unindexed(name: str) -> Table:
    """No index on its key, and none on the tenant."""
    columns = [Column(one.name, one.type, server_default=one.server_default) for one in common_columns()]
    return Table(name, MetaData(), Column("id", BigInteger, nullable=False), Column("note", Text), *columns)


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("selection", [{"ids": [5, 9_000]}, {"all": True}], ids=str)
def test_a_chunk_that_no_index_serves_is_named(engine: Engine, selection: dict[str, Any], partitioned: bool) -> None:
    table = unindexed("thing")
    if partitioned:
        columns = "id bigint NOT NULL, note text, tenant text, n bigint DEFAULT 0, row_version bigint DEFAULT 1"
        run(
            engine,
            f"CREATE TABLE thing ({columns}) PARTITION BY HASH (id)",
            *(
                f"CREATE TABLE part{part} PARTITION OF thing FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
                for part in (0, 1)
            ),
        )
    else:
        table.create(engine)
    filled = f"INSERT INTO thing (id, tenant) SELECT no, 'acme' FROM generate_series(1, {MANY}) AS no"
    run(engine, filled, "ANALYZE thing")
    operation: Operation = operation_on(table, ["id"], update(table).values(n=table.c.n + 1))
    found = previewed(engine, operation, selection)
    chunks = [named for named in found.scans if named.statement == "chunk"]
    assert {named.scan.table for named in chunks} == (
        {"public.part0", "public.part1"} if partitioned else {"public.thing"}
    )
    assert not any(named.expected for named in chunks)
    assert chunks[0].advice == "an index on thing (tenant, id) would lead to the rows"
    run(engine, "CREATE INDEX ON thing (id)", "ANALYZE thing")
    again = previewed(engine, operation, selection)
    assert [named.statement for named in again.scans if named.statement == "chunk"] == []


def test_the_chunk_of_a_function_is_looked_at_too(engine: Engine) -> None:
    make_people(engine, MANY)
    run(engine, "ANALYZE person")
    found = previewed(engine, EditPeople(), {"ids": list(range(1, MANY, 100))})
    assert found.scans == []
    live = previewed(engine, EditPeople(), {"all": True, "live": True})
    assert live.scans == []
    run(engine, "ALTER TABLE person DROP CONSTRAINT person_pkey")
    (named, *_) = previewed(engine, EditPeople(), {"ids": list(range(1, MANY, 100))}, sample=2).scans
    assert (named.statement, named.scan.table) == ("chunk", "public.person")
