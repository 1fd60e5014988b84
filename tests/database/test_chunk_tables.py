"""The chunk statement on users' tables as they come: odd names, other schemas, collations, deletes, and its plan."""

from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    Uuid,
    delete,
    event,
    text,
    update,
)

from bulklane.contracts.job import JobState
from bulklane.database.document import has_row_version_trigger, install_row_version, read_documents
from bulklane.database.job import Job
from bulklane.operations.operation import CallEffect, IndexEffect, Operation, Records, Registry
from tests.database.jobs import (
    accepted,
    common_columns,
    look,
    one_chunk,
    opened,
    operation_on,
    registry_of,
    rows,
    simple_operation,
)
from tests.database.jobs import walk as walked
from tests.support.ledgers import AddParameters

OUR_NAMES = [
    "size",
    "round",
    "cursor",
    "job_no",
    "key",
    "state",
    "no",
    "seq",
    "lo",
    "hi",
    "epoch",
    "open",
    "turn",
    "place",
    "token",
    "most",
    "version",
    "kind",
    "reason",
    "code",
    "of_job",
    "of_round",
    "of_range",
    "at_epoch",
    "from_cursor",
    "to_cursor",
    "bad_key",
    "key1",
    "body0",
    "ordinal",
    "slice_from",
]


def test_columns_named_as_our_parameters_are_not_touched(engine: Engine) -> None:
    columns = [Column(name, Integer, nullable=False, server_default=text("7")) for name in OUR_NAMES]
    table = Table("thing", MetaData(), Column("id", BigInteger, primary_key=True), *common_columns(), *columns)
    effects = (CallEffect("call", "calls", {"size": table.c.size, "n": table.c.n}),)
    registry = registry_of(simple_operation(engine, table, ["id"], effects=effects))
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO thing (id, tenant) SELECT i, 'acme' FROM generate_series(1, 9) i"))
    job = opened(engine, accepted(engine, registry=registry, selection={"ids": [*range(1, 12)]}))
    walked(engine, job, size=4, registry=registry)
    sevens = ", ".join(f'min("{name}"), max("{name}")' for name in OUR_NAMES)
    assert rows(engine, f"SELECT count(*), min(n), max(n), {sevens} FROM thing") == [
        (9, 1, 1, *[7] * 2 * len(OUR_NAMES))
    ]
    assert rows(engine, "SELECT bodies[1] FROM bulklane.owed LIMIT 1") == [('{"n": 1, "size": 7}',)]


@pytest.mark.parametrize(
    "name",
    [
        "gate", "slice", "changed", "tally", "missing", "reported", "counts", "written", "moved", "owed0", "wanted",
        "all_wanted", "numbered", "job", "range", "chunk", "outcome", "owed", "block", "Mixed Case", 'quo"ted',
    ],
)  # fmt: skip
def test_a_table_of_any_name_is_walked(engine: Engine, name: str) -> None:
    table = Table(
        name,
        MetaData(),
        Column("Id", Text, primary_key=True),
        Column("order", BigInteger, primary_key=True),
        *common_columns(),
    )
    effects = (IndexEffect("index", "search", {"n": table.c.n}),)
    registry = registry_of(simple_operation(engine, table, ["Id", "order"], effects=effects))
    with engine.begin() as connection:
        connection.execute(table.insert(), [{"Id": f"a{n}", "order": n, "tenant": "acme"} for n in range(5)])
    job = opened(engine, accepted(engine, registry=registry))
    with engine.begin() as connection:
        connection.execute(delete(table).where(table.c.order == 3))
    walked(engine, job, size=2, registry=registry)
    with engine.connect() as connection:
        assert connection.execute(table.select().with_only_columns(table.c.n)).scalars().all() == [1] * 4
    assert look(engine, job).not_found == 1


def test_a_table_in_another_schema_with_quoted_columns(engine: Engine) -> None:
    table = Table(
        "Konto",
        MetaData(schema="Sales Dept"),
        Column("Konto-Nr", String(40), primary_key=True, key="account"),
        Column("Mandant", Text, key="tenant"),
        Column("n", Integer, nullable=False, server_default=text("0")),
        Column("Row Version", BigInteger, nullable=False, server_default=text("1"), key="row_version"),
    )
    with engine.begin() as connection:
        connection.execute(text('CREATE SCHEMA "Sales Dept"'))
        table.create(connection)
        connection.execute(table.insert(), [{"account": f"k-{n}", "tenant": "acme"} for n in range(7)])
    records = Records(table, [table.c.account], table.c.tenant, table.c.row_version)
    made = {"name": "made", "parameters": AddParameters, "records": records, "fields": {"account": table.c.account}}
    changed = update(table).values({table.c.n: table.c.n + 1})
    effects = (CallEffect("call", "calls", {"account": table.c.account}),)
    operation: Operation = type("Made", (Operation,), {**made, "effects": effects, "change": lambda *_: changed})()
    with engine.begin() as connection:
        assert not has_row_version_trigger(connection, records)
        install_row_version(connection, records)
        install_row_version(connection, records)
        assert has_row_version_trigger(connection, records)
    registry = registry_of(operation)
    spec = {"field": "account", "op": ">=", "value": "k-2"}
    walked(engine, opened(engine, accepted(engine, registry=registry, selection={"filter": spec})), registry=registry)
    found = rows(engine, 'SELECT count(*) FROM "Sales Dept"."Konto" WHERE n = 1 AND "Row Version" = 2')
    assert found == [(5,)]
    with engine.connect() as connection:
        documents = read_documents(connection, records, "acme", [("k-3",), ("k-0",), ("gone",)], {"n": table.c.n})
    assert documents == {"k-3": (2, {"n": 1}), "k-0": (1, {"n": 0})}


@pytest.mark.parametrize("composite", [False, True])
def test_deletes_are_chunks_like_others_and_owe_the_version_after_the_row(engine: Engine, composite: bool) -> None:
    table = Table("thing", MetaData(), Column("id", BigInteger, primary_key=True), *common_columns())
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(
            text("INSERT INTO thing (id, tenant, row_version) SELECT i, 'acme', i * 10 FROM generate_series(1, 9) i")
        )
        connection.execute(text("INSERT INTO thing (id, tenant) VALUES (100, 'other')"))
    effects = (CallEffect("call", "calls", {"id": table.c.id}), IndexEffect("index", "search", {"n": table.c.n}))
    key = ["id", "n"] if composite else ["id"]
    registry = registry_of(operation_on(table, key, delete(table), effects=effects))
    ids = [[n, 0] if composite else n for n in (1, 2, 3, 100, 101)]
    job = opened(engine, accepted(engine, registry=registry, selection={"ids": ids}))
    walked(engine, job, size=2, registry=registry)
    assert rows(engine, "SELECT id FROM thing ORDER BY id") == [(n,) for n in (4, 5, 6, 7, 8, 9, 100)]
    owed = "SELECT effect, version, body FROM bulklane.owed LEFT JOIN LATERAL unnest(versions, bodies) u(version, body)"
    owed += " ON true ORDER BY effect, version"
    calls = [("call", n * 10 + 1, f'{{"id": {n}}}') for n in (1, 2, 3)]
    assert rows(engine, owed) == [*calls, *[("index", n * 10 + 1, None) for n in (1, 2, 3)]]
    stood = look(engine, job)
    assert (stood.state, stood.changed, stood.not_found) == (JobState.DELIVERING, 3, 2)


KEYS: dict[str, list[Any]] = {
    "bigint": [BigInteger()],
    "int4": [Integer()],
    "uuid": [Uuid()],
    "text": [Text()],
    "text in C": [Text(collation="C")],
    "text in pg_c_utf8": [Text(collation="pg_c_utf8")],
    "text in ucs_basic": [Text(collation="ucs_basic")],
    "varchar": [String(60)],
    "composite": [Text(), DateTime(timezone=True)],
    "composite in pg_c_utf8": [Text(collation="pg_c_utf8"), DateTime(timezone=True)],
}
VALUES = {"bigint": "i", "int4": "i", "uuid": "md5(i::text)::uuid"}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("tenant_first", [False, True])
def test_the_users_index_serves_the_chunk(engine: Engine, kind: str, tenant_first: bool) -> None:
    key = [Column(name, kind, primary_key=True) for name, kind in zip(("id", "at"), KEYS[kind], strict=False)]
    tenant, *others = common_columns()
    tenant.primary_key = tenant_first
    columns = [tenant, *key] if tenant_first else [*key, tenant]
    table = Table("thing", MetaData(), *columns, *others, Index("thing_tenant", "tenant"))
    registry = registry_of(simple_operation(engine, table, [column.name for column in key]))
    value = VALUES.get(kind, "'key-' || md5(i::text)")
    more = ", timestamptz '2026-01-01 UTC' + i * interval '1 s'" if len(key) == 2 else ""
    with engine.begin() as connection:
        names = ", ".join(column.name for column in key)
        insert = f"INSERT INTO thing (tenant, {names}) SELECT 'acme', {value}{more} FROM generate_series(1, 50000) i"
        connection.execute(text(insert))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE thing"))
    job = opened(engine, accepted(engine, registry=registry, small=100_000))
    with engine.begin() as connection:
        # one record is gone, so that the exceptions are looked for too
        connection.execute(text("DELETE FROM thing WHERE ctid = (SELECT ctid FROM thing LIMIT 1)"))
    plan = explained_chunk(engine, job, registry)
    assert "Seq Scan on thing" not in plan, plan
    assert "Index" in plan, plan


def explained_chunk(engine: Engine, job: Job, registry: Registry) -> str:
    """The plan of a job's first chunk of 1,000."""
    plans: list[str] = []

    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if "_bulklane_at_epoch" in statement:
            found = cursor.connection.execute("EXPLAIN " + statement, parameters)
            plans.append("\n".join(row[0] for row in found))

    event.listen(engine, "before_cursor_execute", explain)
    with engine.begin() as connection:
        result = one_chunk(connection, job, size=1_000, registry=registry)
    event.remove(engine, "before_cursor_execute", explain)
    assert result is not None and result.changed + result.not_found == 1_000
    (plan,) = plans
    return plan
