"""The model's records, under an audit trigger that knows nothing of Bulklane, and operations that overlap."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Column, Engine, Integer, MetaData, Table, Text, Update, text, update

from bulklane.database.tables import job_sequence, metadata, turn_sequence
from bulklane.operations.operation import CallEffect, Effect, IndexEffect, Operation, Records, Registry

TENANTS = {"t1": 12, "t2": 5}
COLORS = ("red", "blue")
CALLS, INDEX = "calls", "index"

items = Table(
    "item",
    MetaData(),
    Column("tenant", Text, primary_key=True),
    Column("id", BigInteger, primary_key=True),
    Column("color", Text, nullable=False),
    Column("n", Integer, nullable=False, server_default=text("0")),
    Column("row_version", BigInteger, nullable=False, server_default=text("1")),
)

_AUDIT = """
CREATE TABLE item_audit (tenant text, id bigint, xid xid8 DEFAULT pg_current_xact_id());
CREATE FUNCTION audit_item() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO item_audit (tenant, id) VALUES (NEW.tenant, NEW.id);
  RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER UPDATE OF n ON item FOR EACH ROW EXECUTE FUNCTION audit_item();
"""


@dataclass(frozen=True)
class Things:
    """What a job names as its resources; `everywhere` is one that all tenants share."""

    things: list[str] = field(default_factory=lambda: ["red"])


class Count(Operation):
    """Adds one to each record: a second application shows."""

    name = "count"
    family = "counts"
    parameters = Things
    records = Records(items, [items.c.id], items.c.tenant, items.c.row_version, row_version_by="application")
    fields = {"color": items.c.color}
    effects: ClassVar[Sequence[Effect]] = (
        CallEffect("notice", CALLS, {"id": items.c.id, "n": items.c.n}),
        IndexEffect("document", INDEX, {"n": items.c.n}),
    )
    parallelism = 2

    def change(self, parameters: Things) -> Update:
        """One statement."""
        return update(items).values(n=items.c.n + 1)

    def resources(self, tenant: str, parameters: Things) -> Sequence[str]:
        """Finer than the tenant's data."""
        return resources(tenant, parameters.things)


class Recount(Count):
    """The same from another family, owing to the provider only; it keeps its lease until its effects are final."""

    name = "recount"
    family = "recounts"
    effects = Count.effects[:1]
    hold_lease_until_effects_final = True
    parallelism = 1


REGISTRY = Registry({"count": Count(), "recount": Recount()}, {})


def resources(tenant: str, things: Sequence[str]) -> list[str]:
    """The names of what a job owns."""
    return [thing if thing == "everywhere" else f"{tenant}/{thing}" for thing in things]


def effects_of(operation: str) -> dict[str, str]:
    """By effect: its channel."""
    return {effect.name: effect.channel for effect in REGISTRY.operation(operation).effects}


def make_world(engine: Engine) -> None:
    """The records' table and its audit. Autovacuum is off: its locks would make a replay differ."""
    with engine.begin() as connection:
        items.create(connection)
        connection.execute(text(_AUDIT))
        for table in (*metadata.sorted_tables, items):
            quoted = connection.dialect.identifier_preparer.format_table(table)
            connection.execute(text(f"ALTER TABLE {quoted} SET (autovacuum_enabled = off)"))


def reset_world(engine: Engine) -> None:
    """Everything as at the beginning, numbers too, so that a replay is exact."""
    with engine.begin() as connection:
        preparer = connection.dialect.identifier_preparer
        tables = ", ".join(preparer.format_table(table) for table in (*metadata.sorted_tables, items))
        connection.execute(text(f"TRUNCATE {tables}, item_audit RESTART IDENTITY"))
        for sequence in (job_sequence, turn_sequence):
            connection.execute(text(f"ALTER SEQUENCE {preparer.format_sequence(sequence)} RESTART"))
        rows: list[dict[str, Any]] = [
            {"tenant": tenant, "id": number, "color": COLORS[number % 2]}
            for tenant, count in TENANTS.items()
            for number in range(count)
        ]
        connection.execute(items.insert(), rows)
