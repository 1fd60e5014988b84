"""One operation for each kind of key, as a team's module; n = n + 1, and parameters of every kind that can go wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Column, DateTime, Engine, Integer, MetaData, Table, Text, Update, Uuid, text, update

from bulklane.operations.operation import Operation, Records

MODULE = "tests.support.kinds"
metadata = MetaData()


@dataclass(frozen=True)
class Kinds:
    """None of them does anything."""

    at: datetime | None = None
    day: date | None = None
    share: float = 0.0
    shares: dict[str, list[float]] = field(default_factory=dict)
    account: UUID | None = None
    label: str = ""


def _operation(name: str, key: Column[Any], **attributes: Any) -> Operation:
    table = Table(
        name,
        metadata,
        key,
        Column("tenant", Text, nullable=False, server_default=text("'acme'")),
        Column("n", BigInteger, nullable=False, server_default=text("0")),
        Column("row_version", BigInteger, nullable=False, server_default=text("1")),
    )

    def change(self: Operation, parameters: Kinds) -> Update:
        del self, parameters
        return update(table).values(n=table.c.n + 1)

    made = {
        "name": name,
        "parameters": Kinds,
        "records": Records(table, [key], table.c.tenant, table.c.row_version, "application"),
        "fields": {"id": key, "n": table.c.n},
        "change": change,
    }
    operation: Operation = type(name.title(), (Operation,), made | attributes)()
    return operation


def _by_account(self: Operation, tenant: str, parameters: Kinds) -> Sequence[str]:
    """Finer than the tenant: what the parameters name."""
    del self
    return [f"account:{tenant}:{parameters.account}:{parameters.label}"]


OPERATIONS = [
    _operation("numbered", Column("id", BigInteger, primary_key=True, autoincrement=False)),
    _operation("narrow", Column("id", Integer, primary_key=True, autoincrement=False)),
    _operation("named", Column("id", Text, primary_key=True)),
    _operation("unique_ids", Column("id", Uuid, primary_key=True)),
    _operation("timed", Column("id", DateTime(timezone=True), primary_key=True)),
    _operation("by_account", Column("id", Uuid, primary_key=True), resources=_by_account),
]
TABLES: Mapping[str, Table] = metadata.tables


def make_tables(engine: Engine, **ids: Sequence[Any]) -> None:
    """All tables; rows with these ids in those that are named."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        for name, values in ids.items():
            connection.execute(TABLES[name].insert(), [{"id": one} for one in values])
