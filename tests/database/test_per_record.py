"""Operations written as a function of one record, on real PostgreSQL."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Column, DateTime, Engine, MetaData, String, Table, Text, event, text
from temporalio.testing import ActivityEnvironment

from bulklane.activities.segment import Segment
from bulklane.contracts.job import JobState
from bulklane.contracts.message import Verb, VerbMessage
from bulklane.contracts.timing import Timing
from bulklane.contracts.walk import SegmentRequest
from bulklane.database import range as ranges
from bulklane.database.retry import retry
from bulklane.operations.operation import OperationError, Records, Registry
from bulklane.operations.per_record import Answer, PerRecord, Record
from tests.database.jobs import (
    Background,
    accepted,
    blocked_sessions,
    common_columns,
    look,
    one_chunk,
    opened,
    registry_of,
    rows,
    stands,
    walk,
)
from tests.support.ledgers import AddParameters, AddToEntries, amounts, entries, make_entries
from tests.support.people import EditPeople, Mood, make_people, people
from tests.support.waiting import until
from tests.support.walking import walk_whole

EDITING = registry_of(EditPeople())
STATES = "SELECT id, n, row_version FROM person WHERE tenant = 'acme' ORDER BY id"


def naming(engine: Engine, **names: str) -> None:
    """People by number (`p3="fail"`) get a name."""
    with engine.begin() as connection:
        for number, name in names.items():
            connection.execute(people.update().where(people.c.id == int(number[1:])).values(name=name))


def setting(values: Any, *columns: Column[Any]) -> Registry:
    """An operation whose function answers these values, or what a function makes of the record."""

    def change_record(self: PerRecord, record: Record, parameters: Any) -> Answer:
        answer: Answer = values(record) if callable(values) else values
        return answer

    made = type("Made", (EditPeople,), {"writes": columns or EditPeople.writes, "change_record": change_record})
    return registry_of(made())


def test_each_record_is_changed_skipped_failed_or_not_found(engine: Engine) -> None:
    make_people(engine, 9)
    make_people(engine, 1, tenant="other")
    naming(engine, p2="skip me", p4="fail", p6="same")
    job = opened(engine, accepted(engine, registry=EDITING, selection={"ids": [*range(1, 8), 77]}))
    naming(engine, p7="fail")
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM person WHERE id = 5"))
    walk(engine, job, size=3, registry=EDITING)
    assert rows(engine, STATES) == [
        (1, 1, 2), (2, 0, 1), (3, 1, 2), (4, 0, 1), (6, 0, 1), (7, 0, 1), (8, 0, 1), (9, 0, 1)
    ]  # fmt: skip
    assert rows(engine, "SELECT n FROM person WHERE tenant = 'other'") == [(0,)]
    assert rows(engine, "SELECT key, kind, code, reason FROM bulklane.outcome ORDER BY key") == [
        ("2", "skipped", "", "asked for"),
        ("4", "failed", "too_odd", "its name says so"),
        ("5", "not_found", "", ""),
        ("6", "skipped", "", "nothing to change"),
        ("7", "failed", "too_odd", "its name says so"),
        ("77", "not_found", "", ""),
    ]
    ended = look(engine, job)
    assert (ended.changed, ended.skipped, ended.failed, ended.not_found) == (2, 2, 2, 2)
    ledger = "SELECT sum(changed), sum(skipped), sum(failed), sum(not_found) FROM bulklane.chunk"
    assert rows(engine, ledger) == [(2, 2, 2, 2)]
    owed = "SELECT key, version, body FROM bulklane.owed, unnest(keys, versions, bodies) u(key, version, body)"
    assert rows(engine, owed) == [("1", 2, '{"n": 1, "id": 1}'), ("3", 2, '{"n": 1, "id": 3}')]


def test_a_retry_takes_the_failed_ones_and_clears_their_outcome(engine: Engine) -> None:
    make_people(engine, 4)
    naming(engine, p2="fail", p3="skip")
    registry = registry_of(type("Quiet", (EditPeople,), {"effects": ()})())
    job = opened(engine, accepted(engine, registry=registry))
    walk(engine, job, registry=registry)
    assert look(engine, job).state is JobState.COMPLETED_WITH_FAILURES
    naming(engine, p2="good")
    with engine.begin() as connection:
        message = VerbMessage("again", Verb.RETRY, "ann", "mended")
        again = retry(connection, job.job_no, message, of_round=1, small_max_records=100)
    assert again.records == 1
    walk(engine, opened(engine, again.job), registry=registry)
    assert rows(engine, STATES) == [(1, 1, 2), (2, 1, 2), (3, 0, 1), (4, 1, 2)]
    assert rows(engine, "SELECT key, kind FROM bulklane.outcome") == [("3", "skipped")]


NEW: dict[str, Any] = {
    "name": "y" * 20,
    "rate": Decimal("12.35"),
    "ratio": 0.1,
    "data": {"a": [1, None, "é"]},
    "mood": Mood.BAD,
    "seen_at": datetime(2026, 3, 29, 1, 2, 3, 4, tzinfo=UTC),
    "born_on": date(1999, 12, 31),
    "lasts": timedelta(days=3, microseconds=5),
    "raw": b"\x00\xff",
    "uuid": UUID(int=7),
    "flag": True,
    "town_id": None,
}


def test_every_type_arrives_as_it_was_answered_and_the_other_columns_stay(engine: Engine) -> None:
    make_people(engine, 6)

    def answer(record: Record) -> Answer:
        match record["id"]:
            case 1:
                return NEW
            case 2:
                return dict.fromkeys(set(NEW) - {"name"})
            case 3:
                return {"rate": 1.5, "ratio": 2}
            case 4:
                return {"rate": 7, "ratio": Decimal("0.5")}
            case 5:
                # what was read goes back as it was
                return {name: record[name] for name in NEW}
            case _:
                return {"name": "z"}

    registry = setting(answer, *(people.c[name] for name in NEW))
    with engine.begin() as connection:
        connection.execute(people.update().where(people.c.id >= 5).values(**{**NEW, "n": 5}))
    walk(engine, opened(engine, accepted(engine, registry=registry)), registry=registry)
    with engine.connect() as connection:
        found = [
            dict(zip(people.c.keys(), row, strict=True))
            for row in connection.execute(people.select().order_by(people.c.id))
        ]
    assert {name: found[0][name] for name in NEW} == NEW
    assert all(found[1][name] is None for name in NEW if name != "name")
    assert [(one["rate"], one["ratio"]) for one in found[2:4]] == [(Decimal("1.50"), 2.0), (Decimal("7.00"), 0.5)]
    assert {name: found[4][name] for name in NEW} == NEW
    assert {name: found[5][name] for name in NEW} == {**NEW, "name": "z"}
    assert [one["n"] for one in found] == [0, 0, 0, 0, 5, 5]


class RenameEntries(PerRecord):
    """A composite key with text and time; the row version is the trigger's."""

    name = "rename_entries"
    parameters = AddParameters
    records = AddToEntries.records
    writes = (entries.c.amount,)

    def change_record(self, record: Record, parameters: AddParameters) -> Answer:
        """The same as the statement of `AddToEntries`."""
        return {"amount": record["amount"] + parameters.cents}


def test_a_composite_key_and_the_row_version_trigger(engine: Engine) -> None:
    make_entries(engine, 100)
    registry = registry_of(RenameEntries())
    job = opened(engine, accepted(engine, registry=registry, parallelism=2))
    walk_whole(engine, registry, job, chunk=7)
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * 100
    assert rows(engine, "SELECT DISTINCT row_version FROM entry") == [(2,)]


def test_another_schema_quoted_names_and_keys_that_differ_from_names(engine: Engine) -> None:
    table = Table(
        "Konto",
        MetaData(schema="Sales Dept"),
        Column("Konto-Nr", String(40), primary_key=True, key="account"),
        Column("at", DateTime(timezone=True), primary_key=True),
        *common_columns(),
        Column("Text", Text, key="value0"),
    )
    with engine.begin() as connection:
        connection.execute(text('CREATE SCHEMA "Sales Dept"'))
        table.create(connection)
        new = [{"account": f"k-{n}", "at": datetime(2026, 1, n, tzinfo=UTC), "tenant": "acme"} for n in range(1, 8)]
        connection.execute(table.insert(), new)
    made = {
        "name": "made",
        "parameters": AddParameters,
        "records": Records(table, [table.c.account, table.c.at], table.c.tenant, table.c.row_version, "application"),
        "writes": (table.c.n, table.c.value0),
        "change_record": lambda self, record, parameters: {"value0": record["account"], "n": record["at"].day},
    }
    registry = registry_of(type("Made", (PerRecord,), made)())
    walk(engine, opened(engine, accepted(engine, registry=registry)), registry=registry)
    assert rows(engine, 'SELECT count(*) FROM "Sales Dept"."Konto" WHERE "Text" = "Konto-Nr" AND n > 0') == [(7,)]


def test_a_record_that_a_user_changed_meanwhile_is_asked_about_as_it_is_then(engine: Engine) -> None:
    make_people(engine, 3)
    job = opened(engine, accepted(engine, registry=EDITING))
    with engine.connect() as user:
        user.execute(text("UPDATE person SET n = 100 WHERE id = 2"))
        user.execute(text("UPDATE person SET name = 'skip' WHERE id = 3"))

        def chunk() -> object:
            with engine.begin() as connection:
                return one_chunk(connection, job, size=9, registry=EDITING)

        walking = Background(chunk)
        until(lambda: blocked_sessions(engine) == 1)
        user.commit()
    walking.result()
    assert rows(engine, STATES) == [(1, 1, 2), (2, 101, 2), (3, 0, 1)]


def test_a_stale_attempt_reads_no_record(engine: Engine) -> None:
    make_people(engine, 3)
    seen: list[int] = []

    def answer(record: Record) -> Answer:
        seen.append(record["id"])
        return {"n": 1}

    registry = setting(answer)
    job = opened(engine, accepted(engine, registry=registry))
    with engine.begin() as connection:
        ranges.shut(connection, job.job_no, 1)
        assert one_chunk(connection, job, size=3, registry=registry) is None
    assert seen == []


@pytest.mark.parametrize("bad", ["nul\x00", "y" * 21])
def test_a_value_that_cannot_be_stored_fails_its_record_alone(engine: Engine, bad: str) -> None:
    make_people(engine, 40)
    registry = setting(lambda record: {"name": bad if record["id"] == 17 else "good"}, people.c.name)
    job = opened(engine, accepted(engine, registry=registry))
    walk_whole(engine, registry, job)
    assert rows(engine, "SELECT name, count(*) FROM person GROUP BY 1 ORDER BY 1") == [("", 1), ("good", 39)]
    ((key, kind, code, reason),) = rows(engine, "SELECT key, kind, code, reason FROM bulklane.outcome")
    assert (key, kind) == ("17", "failed")
    assert "nul" not in code + reason and "yy" not in code + reason


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "returned nothing"),
        (7, "returned a int"),
        ({"row_version": 7}, "'row_version', which is not in `writes` \\(n, name\\)"),
        ({"nope": 7}, "set 'nope'"),
        (lambda record: record["nope"], r"raised KeyError at test_per_record.py:\d+ \(record 1\)"),
        (lambda record: record.update(n=1), "raised AttributeError"),
    ],
)
def test_an_answer_that_cannot_be_meant_is_a_bug_and_names_the_rule(engine: Engine, answer: Any, says: str) -> None:
    make_people(engine, 2)
    registry = setting(answer)
    job = opened(engine, accepted(engine, registry=registry))
    with pytest.raises(OperationError, match=says):
        walk_whole(engine, registry, job)
    assert rows(engine, STATES) == [(1, 0, 1), (2, 0, 1)]
    assert rows(engine, "SELECT count(*) FROM bulklane.outcome") == [(0,)]


def test_a_slow_function_makes_chunks_smaller(engine: Engine) -> None:
    make_people(engine, 24)
    pause = "SELECT pg_sleep(0.05)"
    registry = setting(lambda record: rows(engine, pause) and {"n": 1})
    job = opened(engine, accepted(engine, registry=registry))
    walk_whole(engine, registry, job)
    assert rows(engine, "SELECT n, count(*) FROM person GROUP BY 1") == [(1, 24)]
    assert rows(engine, "SELECT count(*) > 1 FROM bulklane.chunk") == [(True,)]


def test_the_users_index_serves_the_reading_and_the_writing(engine: Engine) -> None:
    make_people(engine, 50_000)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE person"))
    job = opened(engine, accepted(engine, registry=EDITING, small=100_000))
    plans: list[str] = []

    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if "_bulklane_slice" in statement:
            plans.append("\n".join(row[0] for row in cursor.connection.execute("EXPLAIN " + statement, parameters)))

    event.listen(engine, "before_cursor_execute", explain)
    with engine.begin() as connection:
        one_chunk(connection, job, size=1000, registry=EDITING)
    event.remove(engine, "before_cursor_execute", explain)
    assert len(plans) == 2
    for plan in plans:
        assert "Seq Scan on person" not in plan, plan


def test_a_bug_of_the_function_ends_the_job_after_some_attempts_and_says_where(engine: Engine) -> None:
    make_people(engine, 2)
    registry = setting(lambda record: record["secret"])
    job = opened(engine, accepted(engine, registry=registry))
    for attempt in (7, 8):
        environment = ActivityEnvironment()
        scheduled = datetime.now(UTC)
        environment.info = replace(environment.info, attempt=attempt, current_attempt_scheduled_time=scheduled)
        segment = Segment(engine, registry, Timing(), "test")
        with pytest.raises(OperationError):
            environment.run(segment.segment, SegmentRequest(job.job_no, 1, 0, 5.0))
        assert (look(engine, job).state is JobState.FAILED) is (attempt == 8)
    ended = stands(engine, job)
    assert ended.reason.startswith("the operation fails: change_record of 'edit_people' raised KeyError at test_per_")
    assert (ended.failed, ended.not_started) == (0, 2)
    assert "secret" not in ended.reason


def test_a_record_that_python_cannot_hold_fails_alone(engine: Engine) -> None:
    make_people(engine, 30)
    with engine.begin() as connection:
        connection.execute(text("UPDATE person SET seen_at = 'infinity' WHERE id = 5"))
    job = opened(engine, accepted(engine, registry=EDITING))
    walk_whole(engine, EDITING, job)
    assert rows(engine, "SELECT key, kind, code FROM bulklane.outcome") == [("5", "failed", "DataError")]
    assert rows(engine, "SELECT count(*) FROM person WHERE n = 1") == [(29,)]


def test_records_that_no_longer_match_are_skipped_unasked(engine: Engine) -> None:
    make_people(engine, 10)
    asked: list[int] = []

    def answer(record: Record) -> Answer:
        asked.append(record["id"])
        return {"n": 1}

    registry = setting(answer)
    selection = {"filter": {"field": "name", "value": ""}}
    job = opened(engine, accepted(engine, registry=registry, selection=selection))
    naming(engine, p3="other")
    walk(engine, job, registry=registry)
    assert sorted(asked) == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert rows(engine, "SELECT key, kind, reason FROM bulklane.outcome") == [("3", "skipped", "no longer matches")]
