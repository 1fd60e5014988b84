"""An operation under test on a table with a composite key; not idempotent on purpose, and audited by a trigger."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    Update,
    text,
    update,
)

from bulklane.database.document import install_row_version
from bulklane.operations.operation import CallEffect, Effect, Operation, Records

metadata = MetaData()
entries = Table(
    "entry",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("account", Text, primary_key=True),
    Column("booked_at", DateTime(timezone=True), primary_key=True),
    Column("amount", Integer, nullable=False, server_default=text("0")),
    Column("note", Text),
    Column("row_version", BigInteger, nullable=False, server_default=text("1")),
)

_AUDIT = """
CREATE TABLE entry_audit (account text, booked_at timestamptz, amount int, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION audit_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO entry_audit (account, booked_at, amount) VALUES (NEW.account, NEW.booked_at, NEW.amount);
  RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER UPDATE OF amount ON entry FOR EACH ROW EXECUTE FUNCTION audit_entry();
ALTER TABLE entry ADD CONSTRAINT amount_small CHECK (amount < 1000);
"""


@dataclass(frozen=True)
class AddParameters:
    """What is added to each amount."""

    cents: int = 1


class AddToEntries(Operation):
    """Adds to the amount; a second application shows."""

    name = "add_to_entries"
    parameters = AddParameters
    records = Records(
        table=entries,
        key=[entries.c.account, entries.c.booked_at],
        tenant=entries.c.tenant,
        row_version=entries.c.row_version,
    )
    fields = {"account": entries.c.account, "booked_at": entries.c.booked_at, "note": entries.c.note}
    effects: ClassVar[Sequence[Effect]] = (
        CallEffect("booking", channel="bookings", body={"account": entries.c.account, "amount": entries.c.amount}),
    )
    parallelism = 2

    def change(self, parameters: AddParameters) -> Update:
        """One statement."""
        return update(entries).values(amount=entries.c.amount + parameters.cents)


FIRST = datetime(2026, 3, 29, 12, 0, 0, tzinfo=UTC)


def make_entries(engine: Engine, count: int, tenant: str = "acme") -> list[tuple[str, datetime]]:
    """Rows with few accounts and times a microsecond apart; their keys in key order."""
    with engine.begin() as connection:
        metadata.create_all(connection)
        if connection.execute(text("SELECT to_regclass('entry_audit')")).scalar_one() is None:
            connection.execute(text(_AUDIT))
        install_row_version(connection, AddToEntries.records)
        keys = [(f"acc-{n % 3}", FIRST + timedelta(microseconds=n)) for n in range(count)]
        if keys:
            rows = [{"tenant": tenant, "account": account, "booked_at": at} for account, at in keys]
            connection.execute(entries.insert(), rows)
    return sorted(keys)


def amounts(connection: Connection, tenant: str = "acme") -> Sequence[int]:
    """Each entry's amount, in key order."""
    statement = text('SELECT amount FROM entry WHERE tenant = :t ORDER BY account COLLATE "C", booked_at')
    return connection.execute(statement, {"t": tenant}).scalars().all()
