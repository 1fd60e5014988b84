"""The balance of a live job: what it selected is read from the audit of its own transactions, never from counters."""

from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, DateTime, Engine, MetaData, Select, Table, Text, cast, select, text

from bulklane.contracts.job import Wish
from bulklane.database.job import Job
from bulklane.database.range import RangeRef
from bulklane.database.tables import TransactionId
from bulklane.database.wish import set_wish
from bulklane.operations.operation import Registry
from bulklane.starter.verify import verify_job
from tests.database.jobs import common_columns, look, registry_of, simple_operation
from tests.database.live_jobs import fill, live_chunk, live_job, live_walk

things = Table("thing", MetaData(), Column("id", BigInteger, primary_key=True), *common_columns())
audit = Table(
    "thing_audit", MetaData(), Column("id", BigInteger), Column("changed_at", DateTime(timezone=True)),
    Column("transaction_id", TransactionId),
)  # fmt: skip
AUDIT = """
CREATE TABLE thing_audit (id bigint, changed_at timestamptz DEFAULT clock_timestamp(),
  transaction_id xid8 DEFAULT pg_current_xact_id());
CREATE FUNCTION audit_thing() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO thing_audit (id) VALUES (NEW.id); RETURN NULL; END $$;
CREATE TRIGGER audit AFTER UPDATE ON thing FOR EACH ROW EXECUTE FUNCTION audit_thing();
"""


class AuditOfThings:
    """The input is the numbers 1 to 30."""

    def expected(self, tenant: str, kind: str, spec: Mapping[str, Any]) -> set[str] | None:
        """All of them."""
        return {str(number) for number in range(1, 31)}

    def audit(self, tenant: str) -> Select[Any]:
        """What the trigger has noted."""
        return select(cast(audit.c.id, Text).label("key"), audit.c.changed_at, audit.c.transaction_id)

    def applications(self, channel: str, endpoint_url: str, key_prefix: str) -> Mapping[str, int]:
        """No provider."""
        return {}


def begun(engine: Engine) -> tuple[Registry, Job]:
    """An audited live job."""
    registry = registry_of(simple_operation(engine, things, ["id"], verification=AuditOfThings()))
    fill(engine, things, [{"id": number} for number in range(1, 31)])
    with engine.begin() as connection:
        connection.execute(text(AUDIT))
    return registry, live_job(engine, registry)


def broken(engine: Engine, registry: Registry, job: Job) -> list[str]:
    """The lines that don't hold."""
    return [check.name for check in verify_job(engine, registry, job.job_id, {}).checks if not check.holds]


def test_a_whole_walk_balances_also_with_records_made_meanwhile(engine: Engine) -> None:
    registry, job = begun(engine)
    live_chunk(engine, registry, RangeRef(job.job_no, 1, 0), 3)
    fill(engine, things, [{"id": 0}, {"id": 31}])
    live_walk(engine, registry, job, 7)
    look(engine, job)
    assert broken(engine, registry, job) == []


def test_a_cancelled_walk_balances(engine: Engine) -> None:
    registry, job = begun(engine)
    live_chunk(engine, registry, RangeRef(job.job_no, 1, 0), 12)
    with engine.begin() as connection:
        set_wish(connection, job.job_no, Wish.CANCEL, who="ann", why="enough")
    assert look(engine, job).not_started == 18
    assert broken(engine, registry, job) == []


@pytest.mark.parametrize(
    ("tampering", "line"),
    [
        ("INSERT INTO thing_audit SELECT * FROM thing_audit WHERE id = 5", "records changed twice"),
        ("DELETE FROM thing_audit WHERE id = 5", "records of the input selected"),
        ("INSERT INTO thing_audit (id) VALUES (99)", "other records changed"),
        ("UPDATE bulklane.range SET changed = 29", "outcomes add up to the selection"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(engine: Engine, tampering: str, line: str) -> None:
    registry, job = begun(engine)
    live_walk(engine, registry, job, 7)
    look(engine, job)
    with engine.begin() as connection:
        connection.execute(text(tampering))
    assert line in broken(engine, registry, job)
