"""Others' transactions while bad records are asked for: what they wrote counts, and the ledger is exact."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from bulklane.activities.plan import plan_chunks
from bulklane.database import range as ranges
from bulklane.database.live import ColumnMoved, LivePiece, apply_live_to_good
from bulklane.database.live_chain import LivePlan
from bulklane.database.range import Counters, RangeRef
from tests.database.jobs import Background, accepted, blocked_sessions, opened, registry_of, rows
from tests.database.live_jobs import exact_counters, live_chunk, live_job, live_walk, standing_of
from tests.database.test_bad_records import PLUS, by_function, ddl, prepare
from tests.support.people import make_people, people
from tests.support.waiting import until
from tests.support.walking import PATIENT, walk_whole

PLUSING = registry_of(PLUS)


NAMED = {"filter": {"field": "name", "value": "mine"}}
MEANWHILE = {
    "one is mended": ("SET n = 0 WHERE id = 3", Counters(changed=10)),
    "one is spoiled": ("SET n = 999 WHERE id = 5", Counters(changed=8, failed=2)),
    "a bad one leaves": ("SET name = 'other' WHERE id = 3", Counters(changed=9, skipped=1)),
    "a good one leaves": ("SET name = 'other' WHERE id = 5", Counters(changed=8, skipped=1, failed=1)),
}


@pytest.mark.parametrize("kind", MEANWHILE)
@pytest.mark.parametrize("way", ["statement", "per record"])
@pytest.mark.parametrize("live", [True, False], ids=["live", "frozen"])
def test_what_another_transaction_does_to_a_record_counts(engine: Engine, kind: str, way: str, live: bool) -> None:
    change, told = MEANWHILE[kind]
    made = PLUS if way == "statement" else by_function(lambda record: {"n": record["n"] + 1}, people.c.n)
    prepare(engine, "UPDATE person SET n = 999 WHERE {bad}; UPDATE person SET name = 'mine'", "id = 3", count=10)
    registry = registry_of(made)
    selection = {**NAMED, "live": live}
    job = opened(engine, accepted(engine, registry=registry, selection=selection, parallelism=1))
    ref = RangeRef(job.job_no, 1, 0)
    with engine.begin() as other:
        other.execute(text(f"UPDATE person {change}"))
        walking = Background(lambda: live_chunk(engine, registry, ref, 100, good=True))
        until(lambda: blocked_sessions(engine) == 1, what="the walk waits for the record")
    standing = walking.result()
    assert standing is not None and standing.done
    # a live walk never selected what it doesn't find
    assert exact_counters(engine, job) == (replace(told, skipped=0) if live else told)
    assert rows(engine, "SELECT count(*) FROM person WHERE n = 1") == [(told.changed,)]


@contextmanager
def meanwhile(engine: Engine, statement: str) -> Iterator[None]:
    """Another's transaction, once, between the question and the change."""
    pending = [statement]

    def act(connection: Any, cursor: Any, asked: str, parameters: Any, context: Any, many: bool) -> None:
        if "INSERT INTO bulklane.chunk" in asked and "_bulklane_end_key" in asked and pending:
            ddl(engine, pending.pop())

    event.listen(engine, "before_cursor_execute", act)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", act)
    assert not pending


INSERTED = "INSERT INTO person (tenant, id, n) SELECT 'acme', i * 10 + 5, {n} FROM generate_series(1, 5) i"


@pytest.mark.parametrize(("n", "failed"), [("0", 1), ("999", 6)], ids=["good", "bad"])
def test_what_is_inserted_between_question_and_change_is_in_the_ledger(engine: Engine, n: str, failed: int) -> None:
    prepare(
        engine,
        "UPDATE person SET id = -id; UPDATE person SET id = id * -10; UPDATE person SET n = 999 WHERE {bad}",
        "id = 30",
        count=100,
    )
    job = live_job(engine, PLUSING)
    with meanwhile(engine, INSERTED.format(n=n)):
        walk_whole(engine, PLUSING, job, chunk=50, timing=PATIENT)
    assert rows(engine, "SELECT count(*) FROM person") == [(105,)]
    assert exact_counters(engine, job) == Counters(changed=105 - failed, failed=failed)
    assert rows(engine, "SELECT count(*) FROM person WHERE n = 1") == [(105 - failed,)]


def test_what_is_deleted_between_question_and_change_is_in_no_count(engine: Engine) -> None:
    prepare(
        engine,
        "UPDATE person SET name = 'mine' WHERE id % 2 = 1; UPDATE person SET n = 999 WHERE {bad}",
        "id = 3",
        count=100,
    )
    job = live_job(engine, PLUSING, NAMED)
    ref = RangeRef(job.job_no, 1, 0)
    with meanwhile(engine, "DELETE FROM person WHERE name = ''"):
        assert live_chunk(engine, PLUSING, ref, 20, good=True) is not None
    live_walk(engine, PLUSING, job, 20)
    assert exact_counters(engine, job) == Counters(changed=49, failed=1)
    assert standing_of(engine, ref).cursor == 50


def test_who_is_not_past_the_gate_asks_nothing_and_reports_nothing(engine: Engine) -> None:
    prepare(engine, "UPDATE person SET n = 999 WHERE {bad}", "id < 5", count=10)
    job = live_job(engine, PLUSING)
    with engine.begin() as connection:
        ranges.shut(connection, job.job_no, 1)
    with engine.begin() as other:
        other.execute(text("SELECT FROM person FOR UPDATE"))
        assert live_chunk(engine, PLUSING, RangeRef(job.job_no, 1, 0), 100, good=True) is None
    assert rows(engine, "SELECT count(*) FROM bulklane.outcome") == [(0,)]


def test_a_trigger_that_moves_a_record_is_found_where_records_are_asked_for(engine: Engine) -> None:
    make_people(engine, 10)
    ddl(
        engine,
        "CREATE FUNCTION turn() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN NEW.id := NEW.id + 100; RETURN NEW; END $$",
        "CREATE TRIGGER turn BEFORE UPDATE ON person FOR EACH ROW WHEN (OLD.id = 7) EXECUTE FUNCTION turn()",
    )
    job = live_job(engine, PLUSING)
    with pytest.raises(ColumnMoved, match=r"moves person\.id"):
        live_chunk(engine, PLUSING, RangeRef(job.job_no, 1, 0), 100, good=True)
    assert rows(engine, "SELECT count(*) FROM person WHERE n <> 0") == [(0,)]


@pytest.mark.parametrize("size", [3, 100])
def test_a_server_that_returns_no_old_rows_asks_all_the_same(engine: Engine, size: int) -> None:
    """PostgreSQL 17's way."""
    prepare(engine, "UPDATE person SET n = 999 WHERE {bad}", "id % 3 = 0", count=20)
    job = live_job(engine, PLUSING)
    ref = RangeRef(job.job_no, 1, 0)
    with engine.begin() as connection:
        standing = ranges.take(connection, ref, 1)
        chunk, _ = plan_chunks(connection, PLUSING, job)
        plan = LivePlan(chunk, [people.c.id], returns_old=False)
    while not standing.done:
        key = None if standing.cursor_key is None else (int(standing.cursor_key),)
        with engine.begin() as connection:
            piece = LivePiece(standing.cursor, key, (20,), size)
            assert apply_live_to_good(connection, plan, ref, 1, piece) is not None
            standing = ranges.read(connection, ref)
    assert exact_counters(engine, job) == Counters(changed=14, failed=6)
