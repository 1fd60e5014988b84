"""Previews by the client, each of which must leave nothing behind: no row of ours, and no other version of a user's."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, text

from bulklane import Channel, Client, Operation, Preview
from bulklane.operations.operation import Registry
from tests.database.jobs import counts

_TABLES = """SELECT quote_ident(relname) FROM pg_class
             WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY relname"""


def versions(engine: Engine) -> dict[str, list[str]]:
    """By table of the user's: every row as it is stored, with the transaction that wrote it."""
    with engine.connect() as connection:
        names = connection.execute(text(_TABLES)).scalars().all()
        return {
            name: list(connection.execute(text(f"SELECT (xmin, ctid, t)::text FROM {name} t ORDER BY ctid")).scalars())
            for name in names
        }


@contextmanager
def nothing_left(engine: Engine) -> Iterator[None]:
    """Also where an error leaves it."""
    ours, users = counts(engine), versions(engine)
    try:
        yield
    finally:
        assert counts(engine) == ours
        assert versions(engine) == users


def previewed(
    engine: Engine,
    operation: Operation,
    selection: Mapping[str, Any],
    *,
    channels: Mapping[str, Channel] | None = None,
    small: int = 100,
    **options: Any,
) -> Preview:
    """Of acme's records."""
    client = Client(engine, Registry({operation.name: operation}, channels or {}), small_max_records=small)
    with nothing_left(engine):
        return asyncio.run(client.preview(operation.name, **{"tenant": "acme", "selection": selection, **options}))
