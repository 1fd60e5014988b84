"""The loss that freezing prevents, on real PostgreSQL: the loops that people write, and beside each our selection.

The loops live here only. A user writes beside them, between two pages.
"""

from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from sqlalchemy import BigInteger, Column, DateTime, Engine, MetaData, Table, Text, func, text, update

from bulklane.operations.operation import Registry
from tests.database.jobs import accepted, common_columns, freeze, opened, operation_on, registry_of, rows, walk

PAGE = 100
RECORDS = 250


def orders(engine: Engine, count: int = RECORDS) -> Registry:
    """Open orders, and an operation that closes them and moves their `updated_at`, as applications do."""
    table = Table(
        "orders",
        MetaData(),
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        *common_columns(),
        Column("state", Text),
        Column("updated_at", DateTime(timezone=True)),
    )
    closed = update(table).values(state="closed", n=table.c.n + 1, updated_at=func.clock_timestamp())
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(
            text(
                "INSERT INTO orders (id, tenant, state, updated_at)"
                " SELECT i, 'acme', 'open', timestamptz '2026-01-01' + i * interval '1 s' FROM generate_series(1, :n) i"
            ),
            {"n": count},
        )
    return registry_of(operation_on(table, ["id"], closed, fields={"state": table.c.state}))


def change(engine: Engine, ids: list[int]) -> None:
    """What the consumer of a page does."""
    statement = "UPDATE orders SET state = 'closed', n = n + 1, updated_at = clock_timestamp() WHERE id = ANY(:ids)"
    with engine.begin() as connection:
        connection.execute(text(statement), {"ids": ids})


def handled_by_offset(engine: Engine) -> Counter[int]:
    """LIMIT and OFFSET over the rows that the loop itself takes out of the set."""
    handled: Counter[int] = Counter()
    page = "SELECT id FROM orders WHERE state = 'open' ORDER BY id LIMIT :page OFFSET :offset"
    offset = 0
    while found := [row[0] for row in rows(engine, page, page=PAGE, offset=offset)]:
        handled.update(found)
        change(engine, found)
        offset += PAGE
    return handled


def handled_by_moving_key(engine: Engine, disturb: Callable[[Engine, int], None]) -> Counter[int]:
    """Keyset paging over a sort key that the change itself moves; ended by hand, since it would go on for ever."""
    handled: Counter[int] = Counter()
    page = """SELECT id, updated_at FROM orders WHERE (updated_at, id) > (:after, :id)
              ORDER BY updated_at, id LIMIT :page"""
    after, last = "-infinity", 0
    for number in range(2 * RECORDS // PAGE):
        found = rows(engine, page, after=after, id=last, page=PAGE)
        if not found:
            break
        after, last = found[-1][1], found[-1][0]
        change(engine, [row[0] for row in found])
        handled.update(row[0] for row in found)
        disturb(engine, number)
    return handled


def ours(engine: Engine, registry: Registry, selection: Mapping[str, object], frozen_at_once: bool) -> Counter[int]:
    """How often each order was changed by a job over the same rows."""
    job = accepted(engine, registry=registry, selection=selection, small=RECORDS if frozen_at_once else 0)
    opened(engine, job)
    freeze(engine, job, registry)
    walk(engine, job, size=PAGE, registry=registry)
    return Counter({int(row[0]): int(row[1]) for row in rows(engine, "SELECT id, n FROM orders WHERE n > 0")})


ONCE = Counter(range(1, RECORDS + 1))


@pytest.mark.case("C60")
@pytest.mark.parametrize("frozen_at_once", [True, False])
def test_offset_over_a_shrinking_set_skips_every_other_page_and_a_frozen_one_none(
    engine: Engine, frozen_at_once: bool
) -> None:
    """param20h/PDF-Assistant-RAG#792: 150 of 250."""
    registry = orders(engine)
    assert sorted(handled_by_offset(engine)) == [*range(1, 101), *range(201, 251)]
    with engine.begin() as connection:
        connection.execute(text("UPDATE orders SET state = 'open', n = 0"))
    selection = {"filter": {"field": "state", "value": "open"}}
    assert ours(engine, registry, selection, frozen_at_once) == ONCE


def touch_behind(engine: Engine, number: int) -> None:
    """A user's import sets old times: rows that are not handled yet fall behind the cursor."""
    statement = "UPDATE orders SET updated_at = timestamptz '2025-01-01' WHERE id = ANY(:ids)"
    with engine.begin() as connection:
        connection.execute(text(statement), {"ids": [RECORDS - 10 * number - n for n in range(10)]})


def test_a_sort_key_that_moves_skips_and_repeats_and_a_frozen_key_does_neither(engine: Engine) -> None:
    registry = orders(engine)
    handled = handled_by_moving_key(engine, touch_behind)
    skipped = set(ONCE) - set(handled)
    repeated = {one for one, times in handled.items() if times > 1}
    # what fell behind before its page came; and the loop that catches up with its own changes
    assert len(skipped) == 20, sorted(skipped)
    assert len(repeated) > PAGE
    with engine.begin() as connection:
        connection.execute(text("UPDATE orders SET state = 'open', n = 0"))
    job = accepted(engine, registry=registry, small=0)
    opened(engine, job)
    freeze(engine, job, registry)
    touch_behind(engine, 0)
    walk(engine, job, size=PAGE, registry=registry)
    assert Counter({int(row[0]): int(row[1]) for row in rows(engine, "SELECT id, n FROM orders WHERE n > 0")}) == ONCE
