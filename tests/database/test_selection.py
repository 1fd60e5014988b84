"""Selections: frozen into blocks of keys in key order, whatever the order and number they come in."""

import random
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, Engine, Integer, MetaData, SmallInteger, Table, Text, text

from bulklane.contracts.job import JobState
from bulklane.database.range import counters
from bulklane.database.selection import BLOCK_SIZE, SelectionState, cut_ranges, read_selection
from bulklane.operations.operation import Registry
from tests.database.jobs import (
    accepted,
    common_columns,
    freeze,
    look,
    opened,
    registry_of,
    rows,
    simple_operation,
    stands,
    walk,
)
from tests.support.ledgers import make_entries

BLOCKS = "SELECT no, size, cardinality(key1_bigint) FROM bulklane.block ORDER BY no"


def small_things(engine: Engine, count: int, key: Column[Any] | None = None) -> Registry:
    """An operation on `thing`, whose column `tag` is NULL in every third row and `lot` grows."""
    columns = [key if key is not None else Column("id", BigInteger, primary_key=True), *common_columns()]
    table = Table("thing", MetaData(), *columns, Column("tag", Text), Column("lot", Integer))
    operation = simple_operation(
        engine, table, ["id"], fields={"id": table.c.id, "tag": table.c.tag, "lot": table.c.lot}
    )
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO thing (id, tenant, tag, lot)"
                " SELECT i, 'acme', CASE WHEN i % 3 > 0 THEN 't' || i % 3 END, i / 10 FROM generate_series(1, :n) i"
            ),
            {"n": count},
        )
    return registry_of(operation)


@pytest.mark.parametrize("count", [1, 4_999, 5_000, 5_001, 32_767, 65_536, 300_000])
def test_ids_in_any_order_with_doubles_are_stored_in_blocks_in_order(engine: Engine, count: int) -> None:
    registry = small_things(engine, 0)
    ids = [*range(count), *range(count // 2)]
    random.Random(count).shuffle(ids)
    job = accepted(engine, registry=registry, selection={"ids": ids})
    with engine.connect() as connection:
        stored = read_selection(connection, job.selection_no)
    assert (stored.state, stored.total, stored.duplicates) == (SelectionState.FROZEN, count, count // 2)
    blocks = rows(engine, BLOCKS)
    assert [size for _, size, _ in blocks[:-1]] == [BLOCK_SIZE] * (len(blocks) - 1)
    assert [(no, size) for no, size, _ in blocks] == [(no, held) for no, (_, _, held) in enumerate(blocks)]
    unnested = "SELECT count(*), min(k), max(k), count(*) FILTER (WHERE k <> at) FROM (SELECT k, row_number() OVER"
    unnested += " (ORDER BY b.no, o) - 1 AS at FROM bulklane.block b, unnest(key1_bigint) WITH ORDINALITY AS u(k, o)) x"
    assert rows(engine, unnested) == [(count, 0, count - 1, 0)]


@pytest.mark.parametrize("count", [1, 4_999, 5_000, 5_001, 12_345])
@pytest.mark.parametrize("small", [0, 100_000])
def test_a_frozen_filter_holds_what_a_plain_select_finds_in_order(engine: Engine, count: int, small: int) -> None:
    registry = small_things(engine, count)
    spec = {"or": [{"field": "tag", "value": "t1"}, {"field": "lot", "op": "<", "value": 300}]}
    job = accepted(engine, registry=registry, selection={"filter": spec}, small=small)
    if small == 0:
        assert opened(engine, job).state is JobState.FREEZING
        freeze(engine, job, registry)
        assert stands(engine, job).state is JobState.WALKING
    frozen = rows(
        engine, "SELECT k FROM bulklane.block b, unnest(key1_bigint) WITH ORDINALITY u(k, o) ORDER BY b.no, o"
    )
    plain = rows(engine, "SELECT id FROM thing WHERE tenant = 'acme' AND (tag = 't1' OR lot < 300) ORDER BY id")
    assert frozen == plain
    with engine.connect() as connection:
        assert read_selection(connection, job.selection_no).total == len(plain)
    assert all(size == BLOCK_SIZE for _, size, _ in rows(engine, BLOCKS)[:-1])


def test_text_keys_are_frozen_byte_for_byte_in_order(engine: Engine) -> None:
    registry = small_things(engine, 0, Column("id", Text(collation="pg_c_utf8"), primary_key=True))
    names = ["b", "B", "a", "é", "e\u0301", "Z", "a b", "", "\U0001f600", "\uffff", '"', "\\"]
    with engine.begin() as connection:
        values = [{"id": name} for name in names]
        connection.execute(text("INSERT INTO thing (id, tenant) VALUES (:id, 'acme')"), values)
    accepted(engine, registry=registry)
    frozen = rows(engine, "SELECT k FROM bulklane.block b, unnest(key1_text) WITH ORDINALITY u(k, o) ORDER BY b.no, o")
    assert [name for (name,) in frozen] == sorted(names)


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"field": "tag", "value": "t1"}, "tag = 't1'"),
        ({"field": "tag", "op": "!=", "value": "t1"}, "tag IS DISTINCT FROM 't1'"),
        ({"not": {"field": "tag", "value": "t1"}}, "NOT coalesce(tag = 't1', false)"),
        ({"field": "tag", "op": "is_null", "value": True}, "tag IS NULL"),
        ({"field": "tag", "op": "is_null", "value": False}, "tag IS NOT NULL"),
        ({"field": "tag", "op": "in", "value": ["t1", "t2", "none"]}, "tag IN ('t1', 't2')"),
        ({"or": [{"field": "tag", "op": ">", "value": "t1"}, {"field": "lot", "value": 0}]}, "tag > 't1' OR lot = 0"),
        ({"field": "lot", "op": "in", "value": [1, 2, 2**40]}, "lot IN (1, 2)"),
        ({"field": "lot", "op": "<", "value": 2**40}, "true"),
        ({"field": "lot", "op": ">=", "value": -(2**63)}, "true"),
    ],
    ids=str,
)
def test_filters_select_what_sql_would_and_null_matches_nothing(
    engine: Engine, spec: dict[str, Any], where: str
) -> None:
    registry = small_things(engine, 60)
    job = accepted(engine, registry=registry, selection={"filter": spec})
    walk(engine, opened(engine, job), registry=registry)
    assert rows(engine, "SELECT id FROM thing WHERE n = 1 ORDER BY id") == rows(
        engine, f"SELECT id FROM thing WHERE {where} ORDER BY id"
    )
    assert rows(engine, "SELECT count(*) FROM thing WHERE n > 1") == [(0,)]


def test_a_filter_that_matches_nothing_goes_to_its_end(engine: Engine) -> None:
    registry = small_things(engine, 10)
    job = accepted(engine, registry=registry, selection={"filter": {"field": "lot", "value": 99}}, parallelism=8)
    assert opened(engine, job).state is JobState.COMPLETED
    ended = stands(engine, job)
    assert (ended.changed, ended.not_started, ended.not_found) == (0, 0, 0)
    assert rows(engine, "SELECT total FROM bulklane.selection") == [(0,)]
    assert rows(engine, "SELECT * FROM bulklane.lease") == []


@pytest.mark.parametrize("kind", [Integer, SmallInteger])
def test_an_id_too_large_for_the_key_column_is_just_not_found(engine: Engine, kind: Any) -> None:
    registry = small_things(engine, 3, Column("id", kind, primary_key=True, autoincrement=False))
    ids = [2, 2_147_483_648, -(2**63), 2**63 - 1]
    job = opened(engine, accepted(engine, registry=registry, selection={"ids": ids}))
    walk(engine, job, registry=registry)
    assert rows(engine, "SELECT id FROM thing WHERE n = 1") == [(2,)]
    outcomes = rows(engine, "SELECT key, kind FROM bulklane.outcome ORDER BY key::bigint")
    assert outcomes == [(str(number), "not_found") for number in (-(2**63), 2_147_483_648, 2**63 - 1)]
    assert look(engine, job).not_found == 3


def test_records_that_come_later_or_stop_matching_are_left_alone(engine: Engine) -> None:
    registry = small_things(engine, 30)
    job = opened(engine, accepted(engine, registry=registry, selection={"filter": {"field": "lot", "value": 1}}))
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO thing (id, tenant, lot) VALUES (1000, 'acme', 1)"))
        connection.execute(text("UPDATE thing SET lot = 7 WHERE id = 15"))
    walk(engine, job, registry=registry)
    assert rows(engine, "SELECT id FROM thing WHERE n > 0 ORDER BY id") == [(n,) for n in range(10, 20) if n != 15]
    assert rows(engine, "SELECT key, kind, reason FROM bulklane.outcome") == [("15", "skipped", "no longer matches")]


@pytest.mark.parametrize(("total", "parallelism"), [(0, 4), (1, 4), (3, 4), (4, 4), (10_001, 3), (1_000_000, 64)])
def test_ranges_cover_each_ordinal_once(engine: Engine, total: int, parallelism: int) -> None:
    with engine.begin() as connection:
        count = cut_ranges(connection, job_no=1, round_no=1, total=total, parallelism=parallelism)
    bounds = rows(engine, 'SELECT lo, hi, cursor FROM bulklane."range" ORDER BY no')
    assert len(bounds) == count == max(1, min(total, parallelism))
    assert [low for low, _, _ in bounds] == [0, *(high for _, high, _ in bounds[:-1])]
    assert bounds[-1][1] == total
    assert all(low == cursor for low, _, cursor in bounds)
    sizes = [high - low for low, high, _ in bounds]
    assert max(sizes) - min(sizes) <= 1


def test_a_range_that_crosses_blocks_is_walked_whole(engine: Engine) -> None:
    registry = small_things(engine, 12_345)
    job = opened(engine, accepted(engine, registry=registry, small=100_000, parallelism=2))
    chunks = walk(engine, job, size=4_000, registry=registry)
    assert chunks == 5  # 4,000 and 1,000 of the first block, the second one cut where the range ends, ...
    assert rows(engine, "SELECT n, count(*) FROM thing GROUP BY n") == [(1, 12_345)]
    with engine.connect() as connection:
        assert counters(connection, job.job_no, 1).changed == 12_345


def test_another_tenants_records_are_never_selected(engine: Engine) -> None:
    make_entries(engine, 3)
    make_entries(engine, 4, tenant="other")
    job = accepted(engine)
    with engine.connect() as connection:
        assert read_selection(connection, job.selection_no).total == 3
