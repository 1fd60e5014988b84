"""Records whose document can't be read or written: refused alone, with a clear code; their neighbours are indexed."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, DateTime, Engine, MetaData, Table, Text, cast, text, update
from sqlalchemy.dialects.postgresql import JSONB

from bulklane.activities.index_delivery import IndexDelivery
from bulklane.contracts.key import KeyType
from bulklane.database.document import install_row_version
from bulklane.database.index_rows import RowPages
from bulklane.operations.channel import Channel
from bulklane.operations.operation import IndexEffect, Operation, Records, Registry
from bulklane.operations.sender import Answer, Document, Done
from bulklane.operations.senders.search_index import SearchIndex
from tests.database.jobs import accepted, look, opened, rows, walk
from tests.support.ledgers import AddParameters

events = Table(
    "event",
    MetaData(),
    Column("event", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", Text, nullable=False),
    Column("n", BigInteger, nullable=False, server_default=text("0")),
    Column("ends_at", DateTime(timezone=True)),
    Column("extra", JSONB(none_as_null=True)),
    Column("number", Text, nullable=False, server_default=text("'1'")),
    Column("row_version", BigInteger, nullable=False, server_default=text("1")),
)


class TouchEvents(Operation):
    """n = n + 1."""

    name = "touch_events"
    parameters = AddParameters
    records = Records(events, [events.c.event], events.c.tenant, events.c.row_version)
    fields = {"event": events.c.event}
    effects = (
        IndexEffect(
            "document",
            "events",
            {"ends_at": events.c.ends_at, "extra": events.c.extra, "number": cast(events.c.number, BigInteger)},
        ),
    )

    def change(self, parameters: AddParameters) -> Any:
        """One statement."""
        return update(events).values(n=events.c.n + 1)


REGISTRY = Registry({TouchEvents.name: TouchEvents()}, {"events": Channel("events", SearchIndex("events"))})


class Index:
    """Takes everything."""

    def __init__(self) -> None:
        self.written: list[str] = []

    async def index(self, documents: Sequence[Document]) -> list[Answer]:
        self.written += [one.key for one in documents]
        return [Done("200")] * len(documents)

    async def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [
        ("ends_at", "infinity", "DataError"),
        ("ends_at", "12345-01-01T00:00:00Z", "DataError"),
        ("ends_at", "0044-03-15 12:00:00 BC", "DataError"),
        ("number", "a word", "22P02"),
        ("extra", json.dumps({"n": 1}).replace("1", "9" * 5000), "ValueError"),
        ("extra", "[" * 3000 + "]" * 3000, "RecursionError"),
    ],
)
def test_it_is_refused_alone_and_its_neighbours_are_indexed(engine: Engine, column: str, value: str, code: str) -> None:
    with engine.begin() as connection:
        events.create(connection)
        install_row_version(connection, TouchEvents.records)
        connection.execute(
            text("INSERT INTO event (event, tenant) SELECT no, 'acme' FROM generate_series(1, 20) AS no")
        )
        kind = events.c[column].type.compile(engine.dialect)
        bad = text(f"UPDATE event SET {column} = CAST(:v AS {kind}) WHERE event IN (1, 8, 20)")
        connection.execute(bad, {"v": value})
    job = accepted(engine, registry=REGISTRY, operation="touch_events", tenant="acme")
    opened(engine, job)
    walk(engine, job, registry=REGISTRY)
    index = Index()

    async def drain() -> None:
        delivery = IndexDelivery(engine, REGISTRY, look(engine, job), "events", index)
        async with asyncio.timeout(30):
            while await delivery.send_some():
                pass
        assert delivery.settled == 20

    asyncio.run(drain())

    assert sorted(map(int, index.written)) == [no for no in range(1, 21) if no not in (1, 8, 20)]
    refused = rows(engine, "SELECT key, state, code FROM bulklane.delivery ORDER BY key::bigint")
    assert refused == [(key, "refused", code) for key in ("1", "8", "20")]
    assert rows(engine, "SELECT count(*) FROM event WHERE n = 1") == [(20,)]
    assert pages_of(engine) == {no: no not in (1, 8, 20) for no in range(1, 21)}


def pages_of(engine: Engine) -> dict[int, bool]:
    """By key: whether a reindex could read it; each row comes once."""
    records = TouchEvents.records
    pages = RowPages(records, KeyType.TEXT, TouchEvents.effects[0].document, key_is_global=True)
    found: list[tuple[int, bool]] = []
    cursor = None
    with engine.connect() as connection:
        while not found or cursor is not None:
            page, cursor = pages.page(connection, cursor, 8)
            found += [(int(row.key), row.source is not None) for row in page]
    assert len(found) == len(dict(found))
    return dict(found)
