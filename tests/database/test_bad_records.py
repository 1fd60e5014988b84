"""Records whose new values break a rule: found by asking where the catalog can tell, else by bisection."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, Text, Update, delete, text, update
from sqlalchemy.exc import DBAPIError

from bulklane.activities.failures import reason_of
from bulklane.database import range as ranges
from bulklane.database import record_change
from bulklane.operations.operation import Operation
from bulklane.operations.per_record import PerRecord
from tests.database.jobs import accepted, opened, operation_on, registry_of, rows
from tests.support.ledgers import AddParameters
from tests.support.people import EditPeople, make_people, people
from tests.support.statements import counted
from tests.support.walking import PATIENT, walk_whole

OUTCOMES = "SELECT key, kind, code, reason FROM bulklane.outcome ORDER BY key"


class SetPeople(Operation):
    """As one statement; `values` is what is set."""

    name = "set_people"
    parameters = AddParameters
    records = EditPeople.records
    fields = EditPeople.fields
    effects = EditPeople.effects
    values: Mapping[str, Any] = {}

    def change(self, parameters: AddParameters) -> Update:
        """One statement."""
        return update(people).values(**self.values)


def by_statement(**values: Any) -> Operation:
    """An operation that sets these columns to these expressions."""
    made: Operation = type("Made", (SetPeople,), {"values": values})()
    return made


def by_function(function: Callable[[Mapping[str, Any]], Mapping[str, Any]], *columns: Column[Any]) -> PerRecord:
    """The same written per record."""

    def change_record(self: PerRecord, record: Mapping[str, Any], parameters: Any) -> Mapping[str, Any]:
        return function(record)

    made: PerRecord = type("Made", (EditPeople,), {"writes": columns, "change_record": change_record})()
    return made


PLUS = by_statement(n=people.c.n + 1)
WAYS: dict[str, tuple[str, Operation, Operation]] = {
    "check": (
        "UPDATE person SET n = 999 WHERE {bad}",
        PLUS,
        by_function(lambda record: {"n": record["n"] + 1}, people.c.n),
    ),
    "check of a generated and an unchanged column": (
        "UPDATE person SET n = 32 WHERE {bad}",
        PLUS,
        by_function(lambda record: {"n": record["n"] + 1}, people.c.n),
    ),
    "not null": (
        "UPDATE person SET tags = ARRAY['x']; UPDATE person SET tags = NULL WHERE {bad}",
        by_statement(name=people.c.tags[1]),
        by_function(lambda record: {"name": (record["tags"] or [None])[0]}, people.c.name),
    ),
    "foreign key": (
        "INSERT INTO town (town_id) SELECT generate_series(0, 2000); UPDATE person SET ratio = id;"
        "UPDATE person SET ratio = 9999 WHERE {bad}",
        by_statement(town_id=people.c.ratio),
        by_function(lambda record: {"town_id": int(record["ratio"])}, people.c.town_id),
    ),
}


def prepare(engine: Engine, statements: str, bad: str, count: int = 1000) -> None:
    """So many people, the bad ones made so."""
    make_people(engine, count)
    with engine.begin() as connection:
        connection.execute(text(statements.format(bad=bad)))


def expected(engine: Engine, operation: Operation) -> list[tuple[str, str, str, str]]:
    """What the database says of each record changed alone; the operation is one statement."""
    found = []
    change: Any = operation.change(AddParameters())
    for (number,) in rows(engine, "SELECT id FROM person WHERE tenant = 'acme'"):
        with engine.connect() as connection:
            try:
                connection.execute(change.where(people.c.id == number))
            except DBAPIError as error:
                found.append((str(number), "failed", *reason_of(error)))
    return sorted(found)


def walked(engine: Engine, operation: Operation, chunk: int = 1000, **request: Any) -> tuple[int, ranges.Counters]:
    """How many chunk transactions it took, and what became of the records."""
    registry = registry_of(operation)
    job = opened(engine, accepted(engine, registry=registry, parallelism=1, **request))
    with counted(engine) as found:
        walk_whole(engine, registry, job, chunk=chunk, timing=PATIENT)
    with engine.connect() as connection:
        return found.chunks, ranges.counters(connection, job.job_no, 1)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine must not add a transaction because the function took its time."""
    monkeypatch.setattr(record_change, "LONGEST_DECIDING", 20.0)


@pytest.mark.case("C35")
@pytest.mark.parametrize("way", [1, 2], ids=["statement", "per record"])
@pytest.mark.parametrize("kind", WAYS)
def test_a_rule_that_the_catalog_tells_costs_one_more_transaction(engine: Engine, kind: str, way: int) -> None:
    statements, *operations = WAYS[kind]
    prepare(engine, statements, "id IN (1, 100, 101, 177, 200)", count=200)
    wanted = expected(engine, operations[0])
    assert len(wanted) == 5
    transactions, counters = walked(engine, operations[way - 1])
    assert (transactions, counters) == (2, ranges.Counters(changed=195, failed=5))
    assert rows(engine, OUTCOMES) == wanted
    assert rows(engine, "SELECT count(*) FROM person WHERE row_version > 1 AND id IN (1, 101, 200)") == [(0,)]
    assert rows(engine, "SELECT sum(size), sum(cardinality(keys)) FROM bulklane.owed") == [(195, 195)]


@pytest.mark.case("C35")
@pytest.mark.parametrize("way", [1, 2], ids=["statement", "per record"])
@pytest.mark.parametrize("kind", WAYS)
def test_a_chunk_of_bad_records_only_takes_two_transactions(engine: Engine, kind: str, way: int) -> None:
    statements, *operations = WAYS[kind]
    prepare(engine, statements, "true")
    transactions, counters = walked(engine, operations[way - 1])
    assert (transactions, counters) == (2, ranges.Counters(failed=1000))
    assert len(rows(engine, "SELECT DISTINCT code, reason FROM bulklane.outcome")) == 1
    assert rows(engine, "SELECT count(*) FROM bulklane.owed") == [(0,)]


LEFT: dict[str, tuple[str, Operation]] = {
    "unique": (
        "UPDATE person SET email = id WHERE id <> {bad}; UPDATE person SET email = 0 WHERE id = {bad};"
        "INSERT INTO person (tenant, id, email) VALUES ('other', 1, '!')",
        by_statement(email=text("CASE WHEN email = '0' THEN '!' ELSE email END")),
    ),
    "data error": (
        "UPDATE person SET ratio = 1; UPDATE person SET ratio = 0 WHERE id = {bad}",
        by_statement(n=1 / people.c.ratio),
    ),
    "rule of a domain": (
        "CREATE DOMAIN short AS text CHECK (length(VALUE) < 3);"
        "ALTER TABLE person ALTER email TYPE short; UPDATE person SET name = 'long' WHERE id = {bad}",
        by_statement(email=text("nullif(name, '')")),
    ),
    "trigger that refuses": (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.id = {bad} THEN"
        " RAISE check_violation; END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER refuse AFTER UPDATE ON person FOR EACH ROW EXECUTE FUNCTION refuse()",
        PLUS,
    ),
    "deferred foreign key": (
        "INSERT INTO town (town_id) VALUES (1); ALTER TABLE person ALTER CONSTRAINT person_town DEFERRABLE"
        " INITIALLY DEFERRED; UPDATE person SET n = 1; UPDATE person SET n = 2 WHERE id = {bad}",
        by_statement(town_id=people.c.n),
    ),
    "check of the whole row": (
        "ALTER TABLE person ADD CHECK (strpos(person::text, 'never') = 0);"
        "UPDATE person SET name = 'eve' WHERE id = {bad}",
        by_statement(name=text("CASE WHEN name = 'eve' THEN 'never' ELSE name END")),
    ),
}


@pytest.mark.case("C35")
@pytest.mark.parametrize("place", [1, 500, 1000])
@pytest.mark.parametrize("kind", LEFT)
def test_what_no_query_tells_is_found_by_bisection(engine: Engine, kind: str, place: int) -> None:
    statements, operation = LEFT[kind]
    prepare(engine, statements, str(place))
    transactions, counters = walked(engine, operation)
    assert counters == ranges.Counters(changed=999, failed=1)
    assert [row[0] for row in rows(engine, OUTCOMES)] == [str(place)]
    assert transactions - 1 <= 2 * math.log2(1000) + 2


def test_records_that_a_trigger_mends_are_not_failed(engine: Engine) -> None:
    mend = (
        "CREATE FUNCTION mend() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " NEW.n := least(NEW.n, 999); RETURN NEW; END $$;"
        "CREATE TRIGGER mend BEFORE UPDATE ON person FOR EACH ROW EXECUTE FUNCTION mend();"
        "UPDATE person SET n = 999 WHERE id < 20; UPDATE person SET n = 32 WHERE id = {bad}"
    )
    prepare(engine, mend, "33", count=60)
    assert walked(engine, PLUS)[1] == ranges.Counters(changed=59, failed=1)
    assert [row[0] for row in rows(engine, OUTCOMES)] == ["33"]


def test_rules_that_are_not_enforced_and_old_offences_are_left_alone(engine: Engine) -> None:
    statements = (
        "UPDATE person SET n = 999 WHERE id = {bad}; ALTER TABLE person DISABLE TRIGGER ALL;"
        "UPDATE person SET town_id = 77 WHERE id < 5; ALTER TABLE person ENABLE TRIGGER ALL;"
        "ALTER TABLE person ADD CONSTRAINT loose CHECK (id <> 6) NOT ENFORCED"
    )
    prepare(engine, statements, "9", count=20)
    assert walked(engine, PLUS) == (2, ranges.Counters(changed=19, failed=1))
    assert rows(engine, OUTCOMES) == [("9", "failed", "23514", "CheckViolation: constraint n_small")]


def test_a_chunk_with_bad_records_of_several_kinds(engine: Engine) -> None:
    statements = (
        "UPDATE person SET email = id, ratio = id % 7; UPDATE person SET n = 999 WHERE id % 3 = 0;"
        "UPDATE person SET n = 32 WHERE id % 10 = 1; UPDATE person SET ratio = NULL WHERE id = {bad};"
        "UPDATE person SET email = 'x' WHERE id = 50"
    )
    operation = by_statement(
        n=people.c.n + 1,
        name=people.c.ratio,
        email=text("CASE WHEN id % 25 = 8 THEN 'x' ELSE email END"),
    )
    prepare(engine, statements, "70", count=100)
    wanted = expected(engine, operation)
    assert {code for _, _, code, _ in wanted} == {"23502", "23505", "23514"}
    transactions, counters = walked(engine, operation)
    assert counters.failed == len(wanted)
    assert rows(engine, OUTCOMES) == wanted
    assert transactions < 200


def ddl(engine: Engine, *statements: str) -> None:
    """Statements as they are."""
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def things(engine: Engine, *more: Column[Any], partitions: str | None = None) -> Table:
    """A table for one test, with 100 rows."""
    table = Table(
        "Thing %",
        MetaData(schema="Sales Dept"),
        Column("Tenant", Text, primary_key=True, key="tenant"),
        Column("Id %s:x", BigInteger, primary_key=True, key="id"),
        Column("n", BigInteger),
        Column("row_version", BigInteger, server_default=text("1"), nullable=False),
        *more,
        postgresql_partition_by=partitions,
    )
    ddl(engine, 'CREATE SCHEMA "Sales Dept"')
    table.create(engine)
    for number in (0, 1) if partitions else ():
        of = f'PARTITION OF "Sales Dept"."Thing %" FOR VALUES WITH (MODULUS 2, REMAINDER {number})'
        ddl(engine, f"CREATE TABLE part_{number} {of}")
    with engine.begin() as connection:
        connection.execute(table.insert(), [{"tenant": "acme", "id": n, "n": n} for n in range(1, 101)])
    return table


def test_a_partitioned_table_with_odd_names(engine: Engine) -> None:
    table = things(engine, partitions='HASH ("Id %%s:x")')
    ddl(
        engine,
        'ALTER TABLE "Sales Dept"."Thing %" ADD CONSTRAINT "a:b %" CHECK ("Id %s:x" % 10 <> n) NOT VALID',
        "ALTER TABLE part_0 ADD CONSTRAINT own CHECK (n <> 20) NOT VALID",
        "ALTER TABLE part_1 ADD CONSTRAINT own CHECK (n <> 20) NOT VALID",
    )
    counters = walked(engine, operation_on(table, ["id"], update(table).values(n=table.c.n // 10)))[1]
    wrong = [str(n) for n in range(1, 101) if n % 10 == n // 10]
    assert counters == ranges.Counters(changed=100 - len(wrong), failed=len(wrong))
    found = rows(engine, "SELECT key, reason FROM bulklane.outcome ORDER BY key::int")
    assert found == [(key, "CheckViolation: constraint a:b %") for key in wrong]


def test_a_partition_with_a_rule_of_its_own(engine: Engine) -> None:
    table = things(engine, partitions='HASH ("Id %%s:x")')
    ddl(engine, *(f"ALTER TABLE part_{n} ADD CONSTRAINT own CHECK (n <> 20) NOT VALID" for n in (0, 1)))
    counters = walked(engine, operation_on(table, ["id"], update(table).values(n=table.c.n + 1)))[1]
    assert counters == ranges.Counters(changed=99, failed=1)
    assert rows(engine, OUTCOMES) == [("19", "failed", "23514", "CheckViolation: constraint own")]


def test_records_that_others_refer_to_are_not_deleted(engine: Engine) -> None:
    table = things(engine)
    ddl(
        engine,
        'CREATE TABLE part (t text, id bigint, CONSTRAINT "of %" FOREIGN KEY (id, t)'
        ' REFERENCES "Sales Dept"."Thing %" ("Id %s:x", "Tenant"))',
        "INSERT INTO part SELECT 'acme', generate_series(3, 90, 3)",
    )
    assert walked(engine, operation_on(table, ["id"], delete(table))) == (2, ranges.Counters(changed=70, failed=30))
    reasons = rows(engine, "SELECT DISTINCT code, reason FROM bulklane.outcome")
    assert reasons == [("23503", "ForeignKeyViolation: constraint of %")]


def test_a_delete_that_takes_its_referrers_along_is_left_to_trying(engine: Engine) -> None:
    table = things(engine)
    for name, action in (("goes", "CASCADE"), ("holds", "NO ACTION")):
        ddl(
            engine,
            f"CREATE TABLE {name} (t text, id bigint, FOREIGN KEY (t, id) REFERENCES"
            f' "Sales Dept"."Thing %" ON DELETE {action})',
            f"INSERT INTO {name} VALUES ('acme', 7)",
        )
    counters = walked(engine, operation_on(table, ["id"], delete(table)))[1]
    assert counters == ranges.Counters(changed=99, failed=1)


def test_new_values_from_another_table_are_left_to_trying(engine: Engine) -> None:
    table = things(engine)
    other = Table("other", MetaData(), Column("of", BigInteger), Column("value", BigInteger))
    other.create(engine)
    ddl(
        engine,
        "INSERT INTO other SELECT i, i FROM generate_series(1, 100) i",
        'ALTER TABLE "Sales Dept"."Thing %" ADD CHECK (n <> 42 * 2) NOT VALID',
    )
    change = update(table).where(table.c.id == other.c.of).values(n=other.c.value * 2)
    counters = walked(engine, operation_on(table, ["id"], change))[1]
    assert counters == ranges.Counters(changed=99, failed=1)


def test_columns_that_sqlalchemy_sets_by_itself_are_not_guessed(engine: Engine) -> None:
    table = things(engine, Column("stamp", BigInteger, onupdate=5, server_default=text("4")))
    ddl(
        engine,
        'ALTER TABLE "Sales Dept"."Thing %" ADD CHECK (stamp = 5) NOT VALID',
        'ALTER TABLE "Sales Dept"."Thing %" ADD CHECK (n <> 13) NOT VALID',
    )
    operation = operation_on(table, ["id"], update(table).values(n=table.c.n + 1))
    assert walked(engine, operation) == (2, ranges.Counters(changed=99, failed=1))
    assert [row[0] for row in rows(engine, OUTCOMES)] == ["12"]
