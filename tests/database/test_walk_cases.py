"""Cases of the walk, with the real segment activity on real PostgreSQL."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import Engine, Update, text, update

from bulklane.contracts.job import JobState
from bulklane.database import range as ranges
from bulklane.operations.operation import Registry
from tests.database.jobs import REGISTRY, accepted, look, opened, registry_of, rows, stands
from tests.support.ledgers import FIRST, AddParameters, AddToEntries, amounts, entries, make_entries
from tests.support.statements import counted
from tests.support.waiting import until
from tests.support.walking import PATIENT, walk_whole

SIZES = [1, 2, 7, 28, 29, 94, 1000]
NEW = {"filter": {"field": "note", "op": "=", "value": "new"}}


class MarkDone(AddToEntries):
    """Changes the very column that its filter selects by."""

    name = "mark_done"

    def change(self, parameters: AddParameters) -> Update:
        """Out of the selection's own condition."""
        return update(entries).values(amount=entries.c.amount + parameters.cents, note="done")


MARKING: Registry = registry_of(MarkDone())


@contextmanager
def beside(work: object, *arguments: object) -> Iterator[threading.Event]:
    """Somebody else's writes go on until the block ends."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended, *arguments))  # type: ignore[arg-type]
    thread.start()
    try:
        yield ended
    finally:
        ended.set()
        thread.join()


def with_notes(engine: Engine, count: int, note: str = "new") -> None:
    """So many entries with one note."""
    make_entries(engine, count)
    with engine.begin() as connection:
        connection.execute(entries.update().values(note=note))


@pytest.mark.case("C61")
@pytest.mark.parametrize("chunk", SIZES)
def test_three_sort_values_are_handled_alike_at_every_chunk_size(engine: Engine, chunk: int) -> None:
    make_entries(engine, 142)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE entry SET note = CASE WHEN account = 'acc-0' THEN 'a' WHEN account = 'acc-1' THEN 'b' END")
        )
    job = opened(engine, accepted(engine))
    walk_whole(engine, REGISTRY, job, chunk=chunk)
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * 142


@pytest.mark.case("C60")
def test_a_set_that_shrinks_by_its_own_change_is_walked_whole(engine: Engine) -> None:
    with_notes(engine, 250)
    job = opened(engine, accepted(engine, registry=MARKING, selection=NEW))
    walk_whole(engine, MARKING, job, chunk=100)
    assert rows(engine, "SELECT note, amount, count(*) FROM entry GROUP BY 1, 2") == [("done", 1, 250)]


@pytest.mark.case("C18")
def test_users_edits_and_its_own_never_lose_or_repeat_a_record(engine: Engine) -> None:
    with_notes(engine, 3000)
    edits = [0]

    def edit(ended: threading.Event) -> None:
        chance = random.Random(1)
        while not ended.is_set():
            at = FIRST + timedelta(microseconds=chance.randrange(3000))
            with engine.begin() as connection:
                change = "UPDATE entry SET note = 'other' WHERE booked_at = :at AND note = 'new'"
                edits[0] += connection.execute(text(change), {"at": at}).rowcount

    job = opened(engine, accepted(engine, registry=MARKING, selection=NEW))
    began = time.monotonic()
    with beside(edit):
        walk_whole(engine, MARKING, job, chunk=20)
    assert edits[0] >= 50 * (time.monotonic() - began)
    assert edits[0] > 20
    assert rows(engine, "SELECT count(*) FROM entry WHERE amount > 1") == [(0,)]
    with engine.connect() as connection:
        counted = ranges.counters(connection, job.job_no, 1)
    changed = rows(engine, "SELECT count(*) FROM entry WHERE amount = 1")[0][0]
    assert (counted.changed, counted.failed, counted.not_found) == (changed, 0, 0)
    assert counted.processed == stands(engine, job).total
    skipped = rows(engine, "SELECT count(*) FROM bulklane.outcome WHERE reason = 'no longer matches'")
    assert skipped == [(counted.skipped,)] != [(0,)]


@pytest.mark.case("C19")
def test_constant_inserts_neither_prolong_nor_enter_the_walk(engine: Engine) -> None:
    with_notes(engine, 4000)
    inserted = [0]

    def insert(ended: threading.Event) -> None:
        while not ended.is_set():
            inserted[0] += 1
            row = {"tenant": "acme", "account": "late", "note": "new"}
            at = FIRST + timedelta(seconds=inserted[0])
            with engine.begin() as connection:
                connection.execute(entries.insert(), [row | {"booked_at": at}])

    job = opened(engine, accepted(engine, registry=MARKING, selection=NEW))
    with beside(insert):
        walk_whole(engine, MARKING, job, chunk=50)
        until(lambda: inserted[0] > 20, what="inserts went on")
    assert stands(engine, job).total == 4000
    assert rows(engine, "SELECT count(*) FROM entry WHERE account = 'late' AND amount <> 0") == [(0,)]
    assert rows(engine, "SELECT count(*) FROM entry WHERE account <> 'late' AND amount = 1") == [(4000,)]


@pytest.mark.case("C17")
def test_a_row_that_a_user_holds_is_changed_later_in_the_same_job(engine: Engine) -> None:
    make_entries(engine, 300)
    job = opened(engine, accepted(engine, parallelism=1))
    with engine.begin() as user:
        user.execute(
            text("SELECT 1 FROM entry WHERE booked_at = :at FOR UPDATE"), {"at": FIRST + timedelta(microseconds=57)}
        )
        walker = threading.Thread(target=walk_whole, args=(engine, REGISTRY, job), kwargs={"chunk": 50})
        walker.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        for _ in range(3):
            # it waits, gives way to the user, and comes back, again and again
            until(lambda: rows(engine, waits)[0][0], what="the chunk waits for the user's row")
            until(lambda: not rows(engine, waits)[0][0], what="it gives way")
    walker.join()
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * 300
        assert ranges.counters(connection, job.job_no, 1).processed == 300


@pytest.mark.case("C16")
def test_progress_never_falls_and_never_passes_the_total(engine: Engine) -> None:
    make_entries(engine, 2000)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION fail_some() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " IF random() < 0.2 THEN RAISE EXCEPTION 'by chance' USING ERRCODE = '40001'; END IF;"
                " RETURN NULL; END $$;"
                "CREATE CONSTRAINT TRIGGER chance AFTER INSERT ON bulklane.chunk DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION fail_some()"
            )
        )
    job = opened(engine, accepted(engine))
    seen: list[ranges.Counters] = []

    def poll(ended: threading.Event) -> None:
        while not ended.is_set():
            with engine.connect() as connection:
                seen.append(ranges.counters(connection, job.job_no, 1))

    with beside(poll):
        walk_whole(engine, REGISTRY, job, chunk=20)
    processed = [counters.processed for counters in seen]
    assert processed == sorted(processed)
    assert processed[0] >= 0 and processed[-1] <= 2000
    with engine.connect() as connection:
        assert ranges.counters(connection, job.job_no, 1) == ranges.Counters(changed=2000)
        assert list(amounts(connection)) == [1] * 2000


@pytest.mark.case("C21")
def test_a_thousand_rows_in_one_microsecond_and_a_thousand_a_microsecond_apart(engine: Engine) -> None:
    make_entries(engine, 1000)
    same = [{"tenant": "acme", "account": f"same-{n:04}", "booked_at": FIRST} for n in range(1000)]
    with engine.begin() as connection:
        connection.execute(entries.insert(), same)
    job = opened(engine, accepted(engine))
    walk_whole(engine, REGISTRY, job, chunk=7)
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * 2000


@pytest.mark.case("C22")
@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_nulls_in_a_filter_column_are_handled_once(engine: Engine, chunk: int) -> None:
    make_entries(engine, 300)
    with engine.begin() as connection:
        connection.execute(text("UPDATE entry SET note = 'x' WHERE extract(microseconds FROM booked_at)::int % 10 > 2"))
    by_null = {"filter": {"or": [{"field": "note", "op": "is_null", "value": True}, {"field": "note", "value": "x"}]}}
    job = opened(engine, accepted(engine, selection=by_null))
    walk_whole(engine, REGISTRY, job, chunk=chunk)
    assert rows(engine, "SELECT amount, count(*) FROM entry GROUP BY 1") == [(1, 300)]


@pytest.mark.case("C35")
@pytest.mark.parametrize("place", [0, 500, 999])
def test_one_bad_record_fails_alone_and_is_found_in_few_transactions(engine: Engine, place: int) -> None:
    keys = make_entries(engine, 1000)
    with engine.begin() as connection:
        at = {"a": keys[place][0], "b": keys[place][1]}
        connection.execute(text("UPDATE entry SET amount = 999 WHERE account = :a AND booked_at = :b"), at)
    job = opened(engine, accepted(engine, parallelism=1))
    walk_whole(engine, REGISTRY, job, chunk=1000)
    with engine.connect() as connection:
        assert ranges.counters(connection, job.job_no, 1) == ranges.Counters(changed=999, failed=1)
    found = rows(engine, "SELECT kind, code, reason FROM bulklane.outcome")
    assert found == [("failed", "23514", "CheckViolation: constraint amount_small")]
    assert look(engine, job).state is JobState.DELIVERING


@pytest.mark.case("C59")
def test_rows_that_are_gone_before_the_first_chunk_are_not_found(engine: Engine) -> None:
    make_entries(engine, 500)
    job = opened(engine, accepted(engine))
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM entry"))
    walk_whole(engine, REGISTRY, job)
    ended = look(engine, job)
    assert (ended.state, ended.not_found, ended.changed) == (JobState.COMPLETED, 500, 0)
    assert rows(engine, "SELECT count(*) FROM bulklane.owed") == [(0,)]


@pytest.mark.case("C30")
@pytest.mark.parametrize(("count", "by_asking"), [(1000, True), (100, False)])
def test_no_chunk_uses_a_savepoint(engine: Engine, count: int, by_asking: bool) -> None:
    make_entries(engine, count)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE entry SET amount = 999 WHERE extract(microseconds FROM booked_at)::int % 2 = 0")
        )
        if not by_asking:
            connection.execute(text(HIDDEN_RULE))
    job = opened(engine, accepted(engine, parallelism=1))
    with engine.begin() as old, counted(engine) as found:
        old.execute(text("SELECT pg_current_xact_id()"))
        walk_whole(engine, REGISTRY, job, chunk=1000, timing=PATIENT)
        with engine.connect() as connection:
            assert ranges.counters(connection, job.job_no, 1) == ranges.Counters(changed=count // 2, failed=count // 2)
        # the rows of a chunk carry its transaction's id: those of a subtransaction would carry that one's
        written = rows(engine, "SELECT count(DISTINCT xmin::text) FROM entry WHERE amount = 1")
        assert written == rows(engine, "SELECT count(*) FROM bulklane.chunk WHERE changed > 0")
    assert found.savepoints == 0
    assert (found.chunks == 2) is by_asking


HIDDEN_RULE = """
ALTER TABLE entry DROP CONSTRAINT amount_small;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF NEW.amount > 999 THEN RAISE check_violation; END IF; RETURN NULL;
END $$;
CREATE TRIGGER refuse AFTER UPDATE ON entry FOR EACH ROW EXECUTE FUNCTION refuse();
"""


def seconds_of_a_walk(engine: Engine, *, chunk: int) -> float:
    """How long a job over all entries takes, walked in this thread."""
    job = opened(engine, accepted(engine, parallelism=1, small=1_000_000))
    began = time.monotonic()
    walk_whole(engine, REGISTRY, job, chunk=chunk)
    seconds = time.monotonic() - began
    look(engine, job)
    return seconds


def best_ratio(one: Callable[[], float], other: Callable[[], float], rounds: int) -> float:
    """How much longer the other takes; the best of so many rounds each, by turns."""
    pairs = [(one(), other()) for _ in range(rounds)]
    return min(pair[1] for pair in pairs) / min(pair[0] for pair in pairs)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.case("C30")
def test_an_old_transaction_elsewhere_costs_little(engine: Engine) -> None:
    with engine.begin() as connection:
        make_entries(engine, 0)
        connection.execute(
            text(
                "INSERT INTO entry (tenant, account, booked_at) SELECT 'acme', 'acc',"
                " timestamptz '2026-01-01 UTC' + i * interval '1 s' FROM generate_series(1, 20000) i"
            )
        )
        connection.execute(text("UPDATE entry SET amount = 999 WHERE extract(second FROM booked_at)::int % 2 = 0"))

    def with_an_old_one() -> float:
        # a snapshot and a transaction id: nothing newer is cleaned up, and no subtransaction forgotten
        with engine.connect().execution_options(isolation_level="REPEATABLE READ") as old, old.begin():
            old.execute(text("SELECT pg_current_xact_id(), count(*) FROM entry"))
            return seconds_of_a_walk(engine, chunk=1000)

    assert best_ratio(lambda: seconds_of_a_walk(engine, chunk=1000), with_an_old_one, rounds=4) <= 1 / 0.8


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.case("C35")
def test_a_chunk_of_bad_records_only_takes_five_times_as_long_at_most(engine: Engine) -> None:
    make_entries(engine, 1000)

    def with_amounts(amount: int) -> float:
        with engine.begin() as connection:
            connection.execute(text("UPDATE entry SET amount = :amount"), {"amount": amount})
        return seconds_of_a_walk(engine, chunk=1000)

    with_amounts(0), with_amounts(999)
    ratio = best_ratio(lambda: with_amounts(0), lambda: with_amounts(999), rounds=7)
    assert ratio <= 5, "1,000 bad records take so many times as long as good ones"
