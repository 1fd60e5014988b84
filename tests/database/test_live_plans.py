"""How PostgreSQL runs a live chunk: one range of the key's index, whatever else is indexed or estimated."""

from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, DateTime, Engine, Index, MetaData, Table, Text, Uuid, event, text

from bulklane.database.range import RangeRef
from tests.database.jobs import common_columns, registry_of, simple_operation
from tests.database.live_jobs import live_chunk, live_job

RECORDS = 60_000
KEYS: dict[str, list[tuple[str, Any, str]]] = {
    "bigint": [("id", BigInteger, "i")],
    "text": [("id", Text, "md5(i::text)")],
    "uuid": [("id", Uuid, "md5(i::text)::uuid")],
    "few firsts": [
        ("account", Text, "'acc-' || i % 3"),
        ("at", DateTime(timezone=True), "timestamptz '2026-01-01 UTC' + i * interval '1 us'"),
    ],
    "many firsts": [
        ("account", Text, "md5((i % 20000)::text)"),
        ("at", DateTime(timezone=True), "timestamptz '2026-01-01 UTC' + i * interval '1 us'"),
    ],
}


@pytest.mark.parametrize("tenant_first", [True, False])
@pytest.mark.parametrize("name", KEYS)
def test_a_chunk_reads_its_own_keys_only(engine: Engine, name: str, tenant_first: bool) -> None:
    key = [Column(one, kind, primary_key=True, autoincrement=False) for one, kind, _ in KEYS[name]]
    tenant, *others = common_columns()
    tenant.primary_key = tenant_first
    columns = [tenant, *key] if tenant_first else [*key, tenant]
    state = Column("state", Text)
    table = Table(
        "thing", MetaData(), *columns, state, *others, Index("by_state", "state"), Index("by_tenant", "tenant")
    )
    registry = registry_of(simple_operation(engine, table, [one.name for one in key], fields={"state": state}))
    with engine.begin() as connection:
        names, values = (", ".join(one[place] for one in KEYS[name]) for place in (0, 2))
        made = f"SELECT 'acme', CASE WHEN i % 20 = 0 THEN 'rare' ELSE 'new' END, {values} FROM generate_series(1, :n) i"
        connection.execute(text(f"INSERT INTO thing (tenant, state, {names}) {made}"), {"n": RECORDS})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE thing"))
    job = live_job(engine, registry, {"filter": {"field": "state", "value": "rare"}}, small=100_000)
    ref = RangeRef(job.job_no, 1, 0)
    for _ in range(3):
        (plan,) = explained(engine, lambda: live_chunk(engine, registry, ref, 1_000))
    assert "Seq Scan on thing" not in plan, plan
    assert "by_state" not in plan and "by_tenant" not in plan, plan
    # the keys that are counted, the rows that are changed, and those that might have been: 1,000 each, of 60,000, and
    # entries of their old versions
    scanned = [float(line.split("actual rows=")[1].split()[0]) for line in plan.splitlines() if "thing_pkey" in line]
    assert len(scanned) == 3 and max(scanned) <= 1_100, plan
    assert "hashed SubPlan" in plan, plan


@pytest.mark.parametrize("name", ["bigint", "few firsts"])
def test_records_are_asked_for_by_their_keys_only(engine: Engine, name: str) -> None:
    key = [Column(one, kind, primary_key=True, autoincrement=False) for one, kind, _ in KEYS[name]]
    state = Column("state", Text)
    table = Table("thing", MetaData(), *key, state, *common_columns(), Index("by_state", "state"))
    registry = registry_of(simple_operation(engine, table, [one.name for one in key], fields={"state": state}))
    with engine.begin() as connection:
        names, values = (", ".join(one[place] for one in KEYS[name]) for place in (0, 2))
        made = f"SELECT 'acme', CASE WHEN i % 20 = 0 THEN 'rare' END, {values} FROM generate_series(1, :n) i"
        connection.execute(text(f"INSERT INTO thing (tenant, state, {names}) {made}"), {"n": RECORDS})
        connection.execute(text("ALTER TABLE thing ADD CHECK (n = 0 OR state <> 'rare')"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE thing"))
    job = live_job(engine, registry, {"filter": {"field": "state", "value": "rare"}}, small=100_000)
    ref = RangeRef(job.job_no, 1, 0)
    for _ in range(3):
        plans = explained(engine, lambda: live_chunk(engine, registry, ref, 1_000, good=True))
    assert len(plans) == 3
    for plan in plans:
        assert "Seq Scan on thing" not in plan and "by_state" not in plan, plan
        scanned = [
            float(line.split("actual rows=")[1].split()[0]) for line in plan.splitlines() if "thing_pkey" in line
        ]
        assert scanned and max(scanned) <= 1_000, plan


def explained(engine: Engine, work: Any) -> list[str]:
    """The plans of the chunk's statements as they were run."""
    plans: list[str] = []

    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if "_bulklane_at_epoch" in statement:
            with cursor.connection.transaction(force_rollback=True):
                found = cursor.connection.execute("EXPLAIN (ANALYZE, TIMING OFF) " + statement, parameters)
                plans.append("\n".join(row[0] for row in found))

    event.listen(engine, "before_cursor_execute", explain)
    assert work() is not None
    event.remove(engine, "before_cursor_execute", explain)
    return plans
