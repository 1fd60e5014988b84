"""Each record of a chunk has one outcome, or nothing of the chunk stays: on tables that aren't as declared."""

from typing import Any

import pytest
from sqlalchemy import BigInteger, CheckConstraint, Column, DateTime, Engine, Enum, MetaData, Table, text, update

from bulklane.contracts.job import JobState
from bulklane.database import range as ranges
from bulklane.operations.operation import OperationError, Records, Registry
from tests.database.jobs import (
    accepted,
    common_columns,
    look,
    opened,
    operation_on,
    registry_of,
    rows,
    simple_operation,
)
from tests.support.walking import PATIENT, segment_activity, walk_whole

IDS = {"ids": [1, 2, 3, 77]}
RENAME = """
CREATE FUNCTION rename() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.id := NEW.id + 100; RETURN NEW; END $$;
CREATE TRIGGER rename BEFORE UPDATE ON thing FOR EACH ROW EXECUTE FUNCTION rename();
"""


def numbered(engine: Engine, statements: str = "SELECT 1", *, unique: bool = True) -> Table:
    """Nine things; not unique: three by three of one id."""
    table = Table(
        "thing",
        MetaData(),
        Column("row", BigInteger, primary_key=True),
        Column("id", BigInteger, nullable=False, unique=unique),
        *common_columns(),
    )
    with engine.begin() as connection:
        table.create(connection)
        each = "i" if unique else "i / 3"
        insert = f"INSERT INTO thing (row, id, tenant) SELECT i, {each}, 'acme' FROM generate_series(1, 9) i"
        connection.execute(text(insert))
        connection.execute(text(statements))
    return table


def refused(engine: Engine, registry: Registry, chunk: int, **request: Any) -> None:
    """The job fails, says why, and has changed no record twice; its counters stay within the total."""
    job = opened(engine, accepted(engine, registry=registry, **request))
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.range SET chunk_size = :size"), {"size": chunk})
    assert segment_activity(engine, registry, job, timing=PATIENT).end == "wish"
    ended = look(engine, job)
    assert ended.state is JobState.FAILED
    assert "isn't unique within the tenant" in ended.reason
    assert ended.changed + ended.skipped + ended.failed + ended.not_found <= (ended.total or 0)
    assert rows(engine, "SELECT count(*) FROM thing WHERE n > 1") == [(0,)]


@pytest.mark.case("C61")
@pytest.mark.parametrize("selection", [{"all": True}, {"ids": [1, 77]}])
def test_a_key_that_is_not_unique_fails_the_job(engine: Engine, selection: dict[str, object]) -> None:
    table = numbered(engine, unique=False)
    made = operation_on(table, ["id"], update(table).values(n=table.c.n + 1))
    refused(engine, registry_of(made), 1, selection=selection)


@pytest.mark.case("C16")
def test_a_trigger_that_writes_the_key_is_not_counted_twice(engine: Engine) -> None:
    table = numbered(engine, RENAME)
    made = operation_on(table, ["id"], update(table).values(n=table.c.n + 1))
    refused(engine, registry_of(made), 10, selection=IDS)


TIMES = "'infinity', '-infinity', '0044-03-15 BC', '0044-03-15', '12000-01-01', '2020-01-01'"


@pytest.mark.parametrize("what", ["changed", "gone", "failed"])
def test_times_beyond_pythons_have_texts_of_their_own(engine: Engine, what: str) -> None:
    table = Table(
        "thing",
        MetaData(),
        Column("id", DateTime(timezone=True), primary_key=True),
        *common_columns(),
        CheckConstraint("n < 100"),
    )
    registry = registry_of(simple_operation(engine, table, ["id"]))
    start = 99 if what == "failed" else 0
    with engine.begin() as connection:
        insert = f"INSERT INTO thing (id, tenant, n) SELECT i, 'acme', :n FROM unnest(ARRAY[{TIMES}]::timestamptz[]) i"
        connection.execute(text(insert), {"n": start})
    job = opened(engine, accepted(engine, registry=registry))
    if what == "gone":
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM thing"))
    walk_whole(engine, registry, job, timing=PATIENT)
    with engine.connect() as connection:
        counters = ranges.counters(connection, job.job_no, 1)
    assert counters.processed == 6
    keys = [key for (key,) in rows(engine, 'SELECT key FROM bulklane.outcome ORDER BY key COLLATE "C"')]
    wanted = [
        "-infinity", "0044-03-15T00:00:00.000000Z", "0044-03-15T00:00:00.000000Z BC", "12000-01-01T00:00:00.000000Z",
        "2020-01-01T00:00:00.000000Z", "infinity",
    ]  # fmt: skip
    assert keys == ([] if what == "changed" else wanted)


def test_an_enum_is_no_key() -> None:
    table = Table("thing", MetaData(), Column("id", Enum("a", "b", name="kind"), primary_key=True), *common_columns())
    with pytest.raises(OperationError, match="may not be an enum"):
        Records(table, [table.c.id], table.c.tenant, table.c.row_version)
