"""The operation under test of the ownership cases: n = n + 1, one document, one provider call a record.

Not idempotent on purpose, and audited by a trigger that the product doesn't know. A tenant's name tells its input:
`<name>-<first item>-<how many>`. `pause`: how long the database takes over a change of the item, in seconds.
"""

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx
from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Delete,
    Double,
    Engine,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    Update,
    cast,
    create_engine,
    delete,
    func,
    select,
    text,
    update,
)

from bulklane.operations.channel import Channel
from bulklane.operations.development import Development, DevelopmentService
from bulklane.operations.operation import CallEffect, Effect, IndexEffect, Operation, Records
from bulklane.operations.senders.http_provider import HttpProvider
from bulklane.operations.senders.index_reader import create_index
from bulklane.operations.senders.search_index import SearchIndex
from examples.flights.operation import judge_look_up, judge_notice
from examples.flights.tables import TransactionId

MODULE = "tests.support.counting"
FAMILY = "counting"
BLOCK = 100_000

metadata = MetaData()
items = Table(
    "counted",
    metadata,
    Column("item", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", Text, nullable=False, index=True),
    Column("n", Integer, nullable=False, server_default=text("0")),
    Column("pause", Double, nullable=False, server_default=text("0")),
    Column("row_version", BigInteger, nullable=False, server_default=text("1")),
)
audit = Table(
    "counted_audit",
    metadata,
    Column("item", BigInteger, nullable=False),
    Column("tenant", Text, nullable=False, index=True),
    Column("n", Integer, nullable=False),
    Column("changed_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("transaction_id", TransactionId, nullable=False, server_default=func.pg_current_xact_id()),
)
TRIGGERS = """
CREATE FUNCTION audit_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_sleep(NEW.pause) WHERE NEW.pause > 0;
  INSERT INTO counted_audit (item, tenant, n) VALUES (NEW.item, NEW.tenant, NEW.n);
  RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER UPDATE OF n ON counted FOR EACH ROW EXECUTE FUNCTION audit_counted();
CREATE FUNCTION pause_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_sleep(OLD.pause) WHERE OLD.pause > 0;
  RETURN OLD;
END $$;
CREATE TRIGGER pause BEFORE DELETE ON counted FOR EACH ROW EXECUTE FUNCTION pause_counted();
"""
_numbers = itertools.count(1)


def make_items(engine: Engine, name: str, count: int, *, pause: float = 0.0) -> str:
    """A tenant of its own with that many items; its name."""
    first = next(_numbers) * BLOCK
    tenant = f"{name}-{first}-{count}"
    with engine.begin() as connection:
        numbers = func.generate_series(first, first + count - 1).table_valued("no").render_derived()
        rows = select(numbers.c.no, cast(tenant, Text), cast(pause, Double))
        connection.execute(items.insert().from_select(["item", "tenant", "pause"], rows))
    return tenant


def items_of(tenant: str) -> range:
    """The items that the tenant was made with."""
    first, count = (int(part) for part in tenant.rsplit("-", 2)[1:])
    return range(first, first + count)


class CountingVerification:
    """What `verify_job` compares with."""

    def expected(self, tenant: str, kind: str, spec: Mapping[str, Any]) -> set[str] | None:
        """The tenant's items; None for a list of ids, which is its own input."""
        return {str(item) for item in items_of(tenant)} if kind == "all" else None

    def audit(self, tenant: str) -> Select[Any]:
        """What the trigger has noted."""
        key = cast(audit.c.item, Text).label("key")
        return select(key, audit.c.changed_at, audit.c.transaction_id).where(audit.c.tenant == tenant)

    def applications(self, channel: str, endpoint_url: str, key_prefix: str) -> Mapping[str, int]:
        """The provider's ledger."""
        answer = httpx.get(f"{endpoint_url}/ledger", params={"prefix": key_prefix}, timeout=60, trust_env=False)
        entries = [json.loads(line) for line in answer.raise_for_status().text.splitlines()]
        return {entry["key"]: entry["applied"] for entry in entries}


@dataclass(frozen=True)
class CountParameters:
    """By how much."""

    by: int = 1


class CountUp(Operation):
    """Indexed, and told to a provider."""

    name = "count_up"
    family = FAMILY
    parameters = CountParameters
    records = Records(table=items, key=[items.c.item], tenant=items.c.tenant, row_version=items.c.row_version)
    fields = {"item": items.c.item}
    effects: ClassVar[Sequence[Effect]] = (
        IndexEffect("document", channel="counts", document={"n": items.c.n}),
        CallEffect("notice", channel="notices", body={"record": items.c.item, "n": items.c.n}),
    )
    parallelism = 2
    verification = CountingVerification()

    def change(self, parameters: CountParameters) -> Update | Delete:
        """One statement."""
        return update(items).values(n=items.c.n + parameters.by)


class CountUpHolding(CountUp):
    """Keeps its lease until its provider calls are final."""

    name = "count_up_holding"
    effects = (CallEffect("reminder", channel="reminders", body={"record": items.c.item, "n": items.c.n}),)
    hold_lease_until_effects_final = True


class CountAway(CountUp):
    """Deletes the items, and their documents with them."""

    name = "count_away"
    effects = CountUp.effects[:1]

    def change(self, parameters: CountParameters) -> Delete:
        """One statement."""
        return delete(items)


def prepare(database_url: str, opensearch_url: str) -> None:
    """Tables, triggers and the index."""
    engine = create_engine(database_url)
    with engine.begin() as connection:
        metadata.create_all(connection)
        connection.execute(text(TRIGGERS))
    engine.dispose()
    create_index(opensearch_url, "counted", {"n": {"type": "integer"}})


def _provider(port: int, folder: Path) -> list[str]:
    data = str(folder / "provider.sqlite")
    return [sys.executable, "-m", "examples.flights.provider", "--port", str(port), "--data", data]


def _calls() -> HttpProvider:
    return HttpProvider(
        path="/notices", judge=judge_notice, look_up_path="/notices/by-key/{key}", judge_look_up=judge_look_up
    )


DEVELOPMENT = Development(
    prepare=prepare,
    services=[
        DevelopmentService("provider", "notices", _provider),
        DevelopmentService("reminder-provider", "reminders", _provider),
    ],
    index_channels=["counts"],
)
OPERATIONS = [CountUp(), CountUpHolding(), CountAway()]
CHANNELS = [
    Channel("counts", SearchIndex(alias="counted")),
    Channel("notices", _calls(), concurrency=20),
    Channel("reminders", _calls(), concurrency=20),
]
