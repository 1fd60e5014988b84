"""Records whose new values break a rule: found by asking where the catalog can tell, else by bisection."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Update, text, update
from sqlalchemy.exc import DBAPIError

from bulklane.activities.failures import reason_of
from bulklane.database import range as ranges
from bulklane.operations.operation import Operation
from bulklane.operations.per_record import PerRecord
from tests.database.jobs import accepted, opened, registry_of, rows
from tests.support.ledgers import AddParameters
from tests.support.people import EditPeople, make_people, people
from tests.support.statements import counted
from tests.support.walking import walk_whole

OUTCOMES = "SELECT key, kind, code, reason FROM bulklane.outcome ORDER BY key"


class SetPeople(Operation):
    """As one statement; `values` is what is set."""

    name = "set_people"
    parameters = AddParameters
    records = EditPeople.records
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
        walk_whole(engine, registry, job, chunk=chunk)
    with engine.connect() as connection:
        return found.chunks, ranges.counters(connection, job.job_no, 1)


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
