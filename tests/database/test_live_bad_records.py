"""Live walks: records whose new values break a rule are found by asking where the catalog can tell."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, Text, delete, event, text, update

from bulklane.activities.plan import plan_chunks, plan_course
from bulklane.database import range as ranges
from bulklane.database.course import Course
from bulklane.database.job import Job
from bulklane.database.live import ColumnMoved, LivePiece, apply_live_to_good
from bulklane.database.live_chain import LivePlan
from bulklane.database.range import RangeRef, Standing
from bulklane.operations.operation import CallEffect, Operation, Registry
from bulklane.operations.request import InvalidRequest
from tests.database.jobs import Background, blocked_sessions, common_columns, look, operation_on, registry_of, rows
from tests.database.live_jobs import fill, live_job, live_walk, standing_of
from tests.database.test_bad_records import (
    LEFT,
    OUTCOMES,
    PLUS,
    WAYS,
    by_function,
    ddl,
    expected,
    patient,
    prepare,
)
from tests.database.test_live_keys import KEYS
from tests.support.people import EditPeople, make_people, people
from tests.support.statements import counted
from tests.support.waiting import until
from tests.support.walking import PATIENT, walk_whole

__all__ = ["patient"]


def walked(engine: Engine, operation: Operation, chunk: int = 1000) -> tuple[int, ranges.Counters]:
    """How many chunk transactions a live walk took, and what became of the records; the ledger says the same."""
    registry = registry_of(operation)
    job = live_job(engine, registry)
    with counted(engine) as found:
        walk_whole(engine, registry, job, chunk=chunk, timing=PATIENT)
    with engine.connect() as connection:
        counters = ranges.counters(connection, job.job_no, 1)
    assert_exact(engine, job, counters)
    return found.chunks, counters


def assert_exact(engine: Engine, job: Job, counters: ranges.Counters) -> None:
    """Ledger, exceptions, owed effects and the job itself say the same; no chunk has more records than keys."""
    ledger = "SELECT sum(changed), sum(skipped), sum(failed), sum(not_found), bool_and(changed + failed <= hi - lo)"
    told = (counters.changed, counters.skipped, counters.failed, 0, True)
    assert rows(engine, f"{ledger} FROM bulklane.chunk") == [told]
    assert rows(engine, "SELECT count(*) FILTER (WHERE kind = 'failed'), count(*) FROM bulklane.outcome") == [
        (counters.failed, counters.failed + counters.skipped)
    ]
    owed = rows(engine, "SELECT count(*), count(DISTINCT k) FROM bulklane.owed, unnest(keys) k")
    assert owed == [(counters.changed, counters.changed)]
    ended = look(engine, job)
    assert (ended.total, ended.not_started) == (counters.processed, 0)


@pytest.mark.case("C35")
@pytest.mark.parametrize("way", [1, 2], ids=["statement", "per record"])
@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("bad", ["id = 1", "id IN (1, 100, 101, 177, 200)"])
def test_a_rule_that_the_catalog_tells_costs_one_more_transaction(
    engine: Engine, kind: str, way: int, bad: str
) -> None:
    statements, *operations = WAYS[kind]
    prepare(engine, statements, bad, count=200)
    wanted = expected(engine, operations[0])
    assert len(wanted) in (1, 5)
    transactions, counters = walked(engine, operations[way - 1])
    assert (transactions, counters) == (2, ranges.Counters(changed=200 - len(wanted), failed=len(wanted)))
    assert rows(engine, OUTCOMES) == wanted
    assert rows(engine, "SELECT count(*) FROM person WHERE row_version > 1") == [(200 - len(wanted),)]


@pytest.mark.case("C35")
@pytest.mark.parametrize("way", [1, 2], ids=["statement", "per record"])
@pytest.mark.parametrize("kind", WAYS)
def test_a_chunk_of_bad_records_only_takes_two_transactions(engine: Engine, kind: str, way: int) -> None:
    statements, *operations = WAYS[kind]
    prepare(engine, statements, "true")
    assert walked(engine, operations[way - 1]) == (2, ranges.Counters(failed=1000))
    assert len(rows(engine, "SELECT DISTINCT code, reason FROM bulklane.outcome")) == 1


@pytest.mark.parametrize("kind", LEFT)
def test_what_no_query_tells_is_found_by_bisection(engine: Engine, kind: str) -> None:
    statements, operation = LEFT[kind]
    prepare(engine, statements, "500")
    transactions, counters = walked(engine, operation)
    assert counters == ranges.Counters(changed=999, failed=1)
    assert [row[0] for row in rows(engine, OUTCOMES)] == ["500"]
    assert transactions - 1 <= 2 * math.log2(1000) + 2


KEYED = ["text", "uuid", "two columns", "four columns"]


def keyed(engine: Engine, name: str, bad: str, change: Callable[[Table], Any] | None = None) -> Registry:
    """An operation on a table with such a key, whose rows of acme break a rule where they are bad."""
    columns, keys = KEYS[name]
    names = [column.name for column in columns]
    own = [Column(column.name, column.type, primary_key=True, autoincrement=False) for column in columns]
    table = Table("thing", MetaData(), *own, Column("s", Text), *common_columns())
    with engine.begin() as connection:
        table.create(connection)
    fill(engine, table, [dict(zip(names, key, strict=True)) for key in sorted(set(keys))])
    ddl(
        engine,
        "INSERT INTO thing SELECT * FROM thing ON CONFLICT DO NOTHING",
        f"UPDATE thing SET s = CASE WHEN {bad} THEN 'bad' ELSE 'good' END",
        "ALTER TABLE thing ADD CONSTRAINT rule CHECK (n = 0 OR s <> 'bad')",
    )
    changed = update(table).values(n=table.c.n + 1) if change is None else change(table)
    effects = (CallEffect("call", "calls", {"n": table.c.n}),)
    return registry_of(operation_on(table, names, changed, effects=effects, fields={"s": table.c.s}))


@pytest.mark.parametrize("size", [2, 7, 100])
@pytest.mark.parametrize("name", KEYED)
def test_every_kind_of_key_is_asked_in_any_chunk(engine: Engine, name: str, size: int) -> None:
    registry = keyed(engine, name, "md5(thing::text) < '6'")
    ((good, bad),) = rows(
        engine, "SELECT count(*) FILTER (WHERE s = 'good'), count(*) FILTER (WHERE s = 'bad') FROM thing"
    )
    assert good > 2 < bad
    ddl(engine, "UPDATE thing SET tenant = 'other' WHERE ctid IN (SELECT ctid FROM thing WHERE s = 'bad' LIMIT 1)")
    job = live_job(engine, registry)
    walk_whole(engine, registry, job, chunk=size, timing=PATIENT)
    with engine.connect() as connection:
        counters = ranges.counters(connection, job.job_no, 1)
    assert counters == ranges.Counters(changed=good, failed=bad - 1)
    assert_exact(engine, job, counters)
    assert rows(engine, "SELECT tenant, s, n, count(*) FROM thing GROUP BY 1, 2, 3 ORDER BY 1, 2") == [
        ("acme", "bad", 0, bad - 1), ("acme", "good", 1, good), ("other", "bad", 0, 1)
    ]  # fmt: skip
    reasons = rows(engine, "SELECT DISTINCT code, reason FROM bulklane.outcome")
    assert reasons == [("23514", "CheckViolation: constraint rule")]


def test_a_key_that_is_not_unique_is_reported_once(engine: Engine) -> None:
    table = Table(
        "thing",
        MetaData(),
        Column("no", BigInteger, primary_key=True),
        Column("id", BigInteger, nullable=False),
        *common_columns(),
    )
    with engine.begin() as connection:
        table.create(connection)
    fill(engine, table, [{"no": n, "id": n // 2, "n": 5 if n in (6, 7) else 0} for n in range(40)])
    ddl(engine, "CREATE INDEX by_id ON thing (tenant, id)", "ALTER TABLE thing ADD CHECK (n < 6)")
    _, counters = walked_plainly(engine, operation_on(table, ["id"], update(table).values(n=table.c.n + 1)))
    assert counters == ranges.Counters(changed=38, failed=1)
    assert [row[0] for row in rows(engine, OUTCOMES)] == ["3"]


def walked_plainly(engine: Engine, operation: Operation) -> tuple[int, ranges.Counters]:
    """As `walked`, of records that have no key of their own."""
    registry = registry_of(operation)
    job = live_job(engine, registry)
    with counted(engine) as found:
        walk_whole(engine, registry, job, chunk=100, timing=PATIENT)
    with engine.connect() as connection:
        return found.chunks, ranges.counters(connection, job.job_no, 1)


def test_records_that_others_refer_to_are_not_deleted(engine: Engine) -> None:
    registry = keyed(engine, "two columns", "account = 'a1'", delete)
    ddl(
        engine,
        "CREATE TABLE part (account text, at timestamptz, tenant text,"
        " CONSTRAINT holds FOREIGN KEY (account, at, tenant) REFERENCES thing (account, at, tenant))",
        "INSERT INTO part SELECT account, at, tenant FROM thing WHERE s = 'bad'",
    )
    ((held,),) = rows(engine, "SELECT count(*) FROM part")
    ((all_,),) = rows(engine, "SELECT count(*) FROM thing")
    assert walked(engine, registry.operations["made"]) == (2, ranges.Counters(changed=all_ - held, failed=held))
    assert rows(engine, "SELECT DISTINCT code, reason FROM bulklane.outcome") == [
        ("23503", "ForeignKeyViolation: constraint holds")
    ]


class Stepper:
    """One attempt at the only range of a live walk over people, step by step."""

    def __init__(self, engine: Engine, registry: Registry, **request: Any) -> None:
        self.engine, self.registry = engine, registry
        self.job = live_job(engine, registry, **request)
        self.ref = RangeRef(self.job.job_no, 1, 0)

    def to_good(self, size: int) -> Standing | None:
        """The next chunk, its bad records asked for."""
        with self.engine.begin() as connection:
            standing = ranges.take(connection, self.ref, 1)
            course: Course[Any] = plan_course(connection, self.registry, self.ref, 1, standing)
            return course.apply_to_good(connection, standing, course.next_piece(connection, standing, size))


NAMED = {"filter": {"field": "name", "value": "mine"}}
MEANWHILE = {
    "one is mended": ("SET n = 0 WHERE id = 3", 10, 0),
    "one is spoiled": ("SET n = 999 WHERE id = 5", 8, 2),
    "a bad one leaves": ("SET name = 'other' WHERE id = 3", 9, 0),
    "a good one leaves": ("SET name = 'other' WHERE id = 5", 8, 1),
}


@pytest.mark.parametrize("kind", MEANWHILE)
@pytest.mark.parametrize("way", ["statement", "per record"])
def test_what_another_transaction_does_to_a_record_meanwhile_counts(engine: Engine, kind: str, way: str) -> None:
    change, changed, failed = MEANWHILE[kind]
    made = PLUS if way == "statement" else by_function(lambda record: {"n": record["n"] + 1}, people.c.n)
    prepare(engine, "UPDATE person SET n = 999 WHERE {bad}; UPDATE person SET name = 'mine'", "id = 3", count=10)
    made.fields = {"name": people.c.name}
    stepper = Stepper(engine, registry_of(made), selection=NAMED)
    with engine.begin() as other:
        other.execute(text(f"UPDATE person {change}"))
        walking = Background(lambda: stepper.to_good(100))
        until(lambda: blocked_sessions(engine) == 1, what="the walk waits for the record")
    standing = walking.result()
    assert standing is not None and standing.done
    with engine.connect() as connection:
        counters = ranges.counters(connection, stepper.job.job_no, 1)
    assert (counters.changed, counters.failed) == (changed, failed)
    assert_exact(engine, stepper.job, counters)
    assert rows(engine, "SELECT count(*) FROM person WHERE n = 1") == [(changed,)]


def meanwhile(engine: Engine, statement: str) -> Callable[..., None]:
    """Another's transaction, once, between the question and the change."""
    pending = [statement]

    def act(connection: Any, cursor: Any, asked: str, parameters: Any, context: Any, many: bool) -> None:
        if "INSERT INTO bulklane.chunk" in asked and "_bulklane_end_key" in asked and pending:
            ddl(engine, pending.pop())

    event.listen(engine, "before_cursor_execute", act)
    return act


INSERTED = "INSERT INTO person (tenant, id, n) SELECT 'acme', i * 10 + 5, {n} FROM generate_series(1, 5) i"


@pytest.mark.parametrize(("n", "failed"), [("0", 1), ("999", 6)], ids=["good", "bad"])
def test_what_is_inserted_between_question_and_change_is_in_the_ledger(engine: Engine, n: str, failed: int) -> None:
    prepare(
        engine,
        "UPDATE person SET id = -id; UPDATE person SET id = id * -10; UPDATE person SET n = 999 WHERE {bad}",
        "id = 30",
        count=100,
    )
    act = meanwhile(engine, INSERTED.format(n=n))
    _, counters = walked(engine, PLUS, chunk=50)
    event.remove(engine, "before_cursor_execute", act)
    assert rows(engine, "SELECT count(*) FROM person") == [(105,)]
    assert counters == ranges.Counters(changed=105 - failed, failed=failed)
    assert rows(engine, "SELECT count(*) FROM person WHERE n = 1") == [(105 - failed,)]


def test_what_is_deleted_between_question_and_change_is_in_no_count(engine: Engine) -> None:
    prepare(
        engine,
        "UPDATE person SET name = 'mine' WHERE id % 2 = 1; UPDATE person SET n = 999 WHERE {bad}",
        "id = 3",
        count=100,
    )
    PLUS.fields = {"name": people.c.name}
    stepper = Stepper(engine, registry_of(PLUS), selection=NAMED)
    act = meanwhile(engine, "DELETE FROM person WHERE name = ''")
    assert stepper.to_good(20) is not None
    event.remove(engine, "before_cursor_execute", act)
    live_walk(engine, stepper.registry, stepper.job, 20)
    with engine.connect() as connection:
        counters = ranges.counters(connection, stepper.job.job_no, 1)
    assert counters == ranges.Counters(changed=49, failed=1)
    assert_exact(engine, stepper.job, counters)
    assert standing_of(engine, stepper.ref).cursor == 50


def test_who_is_not_past_the_gate_asks_nothing_and_reports_nothing(engine: Engine) -> None:
    prepare(engine, "UPDATE person SET n = 999 WHERE {bad}", "id < 5", count=10)
    stepper = Stepper(engine, registry_of(PLUS))
    with engine.begin() as connection:
        ranges.shut(connection, stepper.job.job_no, 1)
    with engine.begin() as other:
        other.execute(text("SELECT FROM person FOR UPDATE"))
        assert stepper.to_good(100) is None
    assert rows(engine, "SELECT count(*) FROM bulklane.outcome") == [(0,)]


def test_a_trigger_that_moves_a_record_is_found_where_records_are_asked_for(engine: Engine) -> None:
    make_people(engine, 10)
    ddl(
        engine,
        "CREATE FUNCTION turn() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN NEW.id := NEW.id + 100; RETURN NEW; END $$",
        "CREATE TRIGGER turn BEFORE UPDATE ON person FOR EACH ROW WHEN (OLD.id = 7) EXECUTE FUNCTION turn()",
    )
    stepper = Stepper(engine, registry_of(PLUS))
    with pytest.raises(ColumnMoved, match=r"moves person\.id"):
        stepper.to_good(100)
    assert rows(engine, "SELECT count(*) FROM person WHERE n <> 0") == [(0,)]


@pytest.mark.parametrize("size", [3, 100])
def test_a_server_that_returns_no_old_rows_asks_all_the_same(engine: Engine, size: int) -> None:
    """PostgreSQL 17's way."""
    prepare(engine, "UPDATE person SET n = 999 WHERE {bad}", "id % 3 = 0", count=20)
    stepper = Stepper(engine, registry_of(PLUS))
    with engine.begin() as connection:
        standing = ranges.take(connection, stepper.ref, 1)
        chunk, _ = plan_chunks(connection, stepper.registry, stepper.job)
        plan = LivePlan(chunk, [people.c.id], returns_old=False)
    while not standing.done:
        key = None if standing.cursor_key is None else (int(standing.cursor_key),)
        with engine.begin() as connection:
            piece = LivePiece(standing.cursor, key, (20,), size)
            assert apply_live_to_good(connection, plan, stepper.ref, 1, piece) is not None
            standing = ranges.read(connection, stepper.ref)
    with engine.connect() as connection:
        counters = ranges.counters(connection, stepper.job.job_no, 1)
    assert counters == ranges.Counters(changed=14, failed=6)
    assert_exact(engine, stepper.job, counters)


@pytest.mark.parametrize("size", [1, 4, 100])
def test_a_function_of_a_record_is_walked_live(engine: Engine, size: int) -> None:
    make_people(engine, 30)
    make_people(engine, 5, tenant="other")
    ddl(engine, "UPDATE person SET name = CASE id % 3 WHEN 0 THEN 'skip' WHEN 1 THEN 'fail' ELSE 'x' END")
    registry = registry_of(EditPeople())
    job = live_job(engine, registry, parallelism=2)
    live_walk(engine, registry, job, size)
    with engine.connect() as connection:
        counters = ranges.counters(connection, job.job_no, 1)
    assert counters == ranges.Counters(changed=10, skipped=10, failed=10)
    assert_exact(engine, job, counters)
    assert rows(engine, "SELECT tenant, n, row_version, count(*) FROM person GROUP BY 1, 2, 3 ORDER BY 1, 2") == [
        ("acme", 0, 1, 20), ("acme", 1, 2, 10), ("other", 0, 1, 5)
    ]  # fmt: skip
    assert rows(engine, "SELECT DISTINCT kind, code, reason FROM bulklane.outcome ORDER BY 1") == [
        ("failed", "too_odd", "its name says so"), ("skipped", "", "asked for")
    ]  # fmt: skip


def test_a_function_that_may_set_what_the_filter_reads_is_refused(engine: Engine) -> None:
    make_people(engine, 3)
    with pytest.raises(InvalidRequest, match="edit_people writes `name` and its filter reads `name`"):
        live_job(engine, registry_of(EditPeople()), {"filter": {"field": "name", "value": "x"}})
