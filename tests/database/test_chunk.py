"""The chunk transaction on real PostgreSQL: the gate, and what goes with a change."""

import json
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

from bulklane.activities.plan import plan_chunks
from bulklane.contracts.key import KeyType, format_key
from bulklane.database import range as ranges
from bulklane.database.chunk import apply_chunk, fail_chunk, keys_of
from bulklane.database.chunk_plan import ChunkResult
from bulklane.database.job import Job
from bulklane.database.range import RangeRef
from bulklane.database.selection import Slice, slice_at
from tests.database.jobs import REGISTRY, Background, accepted, blocked_sessions, one_chunk, opened, rows, walk
from tests.support.ledgers import FIRST, amounts, make_entries
from tests.support.waiting import until

TYPES = (KeyType.TEXT, KeyType.TIMESTAMPTZ)
TRACES = (
    "SELECT (SELECT count(*) FROM entry_audit), (SELECT count(*) FROM bulklane.owed),"
    " (SELECT count(*) FROM bulklane.outcome), (SELECT count(*) FROM bulklane.chunk),"
    ' (SELECT array_agg((r.cursor, next_seq, changed, skipped, failed, not_found)::text) FROM bulklane."range" r)'
)


def entry_job(engine: Engine, count: int, **request: Any) -> Job:
    """A job over so many entries, in one range, ready to walk."""
    make_entries(engine, count)
    return opened(engine, accepted(engine, **{"parallelism": 1, **request}))


def attempt(engine: Engine, job: Job, *, epoch: int, lo: int, hi: int, round_no: int = 1) -> ChunkResult | None:
    """A chunk of ordinals that an attempt believes to be next."""
    with engine.begin() as connection:
        plan, stored = plan_chunks(connection, REGISTRY, job)
        piece = Slice(stored.selection_no, lo, hi)
        return apply_chunk(connection, plan, RangeRef(job.job_no, round_no, 0), epoch, piece)


def test_two_ranges_of_a_composite_key_change_each_record_once(engine: Engine) -> None:
    job = entry_job(engine, 23, parallelism=2)
    walk(engine, job, size=4, epoch=7)
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * 23
        assert ranges.counters(connection, job.job_no, 1).changed == 23
    assert rows(engine, "SELECT sum(size), sum(cardinality(bodies)) FROM bulklane.owed") == [(23, 23)]


@pytest.mark.parametrize(
    "refused",
    [
        {"epoch": 6, "lo": 4, "hi": 8},
        {"epoch": 8, "lo": 4, "hi": 8},
        {"epoch": 7, "lo": 0, "hi": 4},
        {"epoch": 7, "lo": 2, "hi": 6},
        {"epoch": 7, "lo": 8, "hi": 12},
        {"epoch": 7, "lo": 4, "hi": 8, "round_no": 2},
    ],
    ids=str,
)
def test_a_chunk_that_the_gate_refuses_leaves_nothing_behind(engine: Engine, refused: dict[str, int]) -> None:
    job = entry_job(engine, 12)
    with engine.begin() as connection:
        one_chunk(connection, job, size=4, epoch=7)
        # a record of the next chunk is gone, so that an exception would be stored
        connection.execute(text("DELETE FROM entry WHERE account = 'acc-1'"))
    before = rows(engine, TRACES)
    assert attempt(engine, job, **refused) is None
    assert rows(engine, TRACES) == before
    assert attempt(engine, job, epoch=7, lo=4, hi=8) is not None
    assert rows(engine, TRACES) != before


def test_a_shut_range_refuses_and_goes_on_when_it_is_opened_again(engine: Engine) -> None:
    job = entry_job(engine, 12)
    with engine.begin() as connection:
        one_chunk(connection, job, size=4, epoch=7)
        ranges.shut(connection, job.job_no, 1)
    before = rows(engine, TRACES)
    assert attempt(engine, job, epoch=7, lo=4, hi=8) is None
    assert rows(engine, TRACES) == before
    with engine.begin() as connection:
        ranges.reopen(connection, job.job_no, 1)
    assert attempt(engine, job, epoch=7, lo=4, hi=8) == ChunkResult(8, changed=4, skipped=0, not_found=0)


def test_a_record_reported_as_failed_needs_the_gate_too(engine: Engine) -> None:
    job = entry_job(engine, 3)
    ref, piece = RangeRef(job.job_no, 1, 0), Slice(job.selection_no, 0, 1)
    with engine.begin() as connection:
        ranges.take(connection, ref, 7)
    before = rows(engine, TRACES)
    with engine.begin() as connection:
        assert fail_chunk(connection, ref, 6, piece, "k", "23514", "no") is None
        assert fail_chunk(connection, ref, 7, Slice(job.selection_no, 1, 2), "k", "23514", "no") is None
        ranges.shut(connection, job.job_no, 1)
        assert fail_chunk(connection, ref, 7, piece, "k", "23514", "no") is None
        ranges.reopen(connection, job.job_no, 1)
    assert rows(engine, TRACES) == before
    with engine.begin() as connection:
        assert fail_chunk(connection, ref, 7, piece, "k", "23514", "no") == ChunkResult(1, 0, 0, 0, failed=1)


def test_absent_and_other_tenants_records_cannot_be_told_apart(engine: Engine) -> None:
    (mine,) = make_entries(engine, 1)
    theirs = ("acc-theirs", FIRST)
    absent = ("acc-absent", FIRST)
    with engine.begin() as connection:
        statement = text("INSERT INTO entry (tenant, account, booked_at) VALUES ('other', :account, :at)")
        connection.execute(statement, {"account": theirs[0], "at": theirs[1]})
    ids = [[account, at.isoformat()] for account, at in (mine, theirs, absent)]
    job = opened(engine, accepted(engine, selection={"ids": ids}, parallelism=1))
    walk(engine, job)
    found = rows(engine, "SELECT kind, code, reason, round FROM bulklane.outcome WHERE key = ANY(:keys)",
                 keys=[format_key(theirs), format_key(absent)])  # fmt: skip
    assert found == [("not_found", "", "", 1)] * 2
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1]
        assert list(amounts(connection, "other")) == [0]
        assert ranges.counters(connection, job.job_no, 1) == ranges.Counters(changed=1, not_found=2)


def test_a_bad_record_raises_and_nothing_of_its_chunk_is_stored(engine: Engine) -> None:
    keys = make_entries(engine, 3)
    with engine.begin() as connection:
        set_amount = text("UPDATE entry SET amount = 999 WHERE account = :account AND booked_at = :at")
        connection.execute(set_amount, {"account": keys[1][0], "at": keys[1][1]})
    job = opened(engine, accepted(engine, parallelism=1))
    ref = RangeRef(job.job_no, 1, 0)
    with engine.begin() as connection:
        ranges.take(connection, ref, 1)
    before = rows(engine, TRACES)
    with pytest.raises(IntegrityError, match="amount_small"), engine.begin() as connection:
        one_chunk(connection, job, size=3)
    assert rows(engine, TRACES) == before
    with engine.begin() as connection:
        one_chunk(connection, job, size=1)
        bad = slice_at(job.selection_no, 1, 3, 1)
        (key,) = keys_of(connection, bad, TYPES)
        assert fail_chunk(connection, ref, 1, bad, key, "23514", "constraint amount_small") is not None
        one_chunk(connection, job, size=1)
    assert rows(engine, "SELECT amount FROM entry ORDER BY account, booked_at") == [(1,), (999,), (1,)]
    outcome = rows(engine, "SELECT key, kind, code, reason FROM bulklane.outcome")
    assert outcome == [(format_key(keys[1]), "failed", "23514", "constraint amount_small")]
    ledger = rows(engine, "SELECT seq, lo, hi, changed, failed FROM bulklane.chunk ORDER BY seq")
    assert ledger == [(1, 0, 1, 1, 0), (2, 1, 2, 0, 1), (3, 2, 3, 1, 0)]


def test_each_body_and_version_owed_belongs_to_its_key(engine: Engine) -> None:
    make_entries(engine, 60)
    with engine.begin() as connection:
        # rows lie in another order than their keys, with versions and amounts that tell them apart
        connection.execute(text("UPDATE entry SET amount = (random() * 900)::int WHERE account <> 'acc-1'"))
        for often in (1, 2, 3):  # the trigger moves the version by one each time
            statement = "UPDATE entry SET note = '' WHERE extract(microsecond FROM booked_at)::int % 7 % 4 >= :often"
            connection.execute(text(statement), {"often": often})
        connection.execute(
            text("DELETE FROM entry WHERE account = 'acc-0' AND extract(microsecond FROM booked_at) = 9")
        )
    job = opened(engine, accepted(engine, parallelism=1))
    walk(engine, job, size=7)
    owed = rows(
        engine,
        "SELECT key, version, body FROM bulklane.owed, unnest(keys, versions, bodies) u(key, version, body)"
        " ORDER BY seq, key",
    )
    statement = "SELECT account, booked_at, amount, row_version FROM entry"
    wanted = {
        format_key((account, at)): (version, {"account": account, "amount": amount})
        for account, at, amount, version in rows(engine, statement)
    }
    assert {key: (version, json.loads(body)) for key, version, body in owed} == wanted
    assert len(owed) == len(wanted) == 59


def test_counters_ledger_cursor_and_exceptions_agree(engine: Engine) -> None:
    make_entries(engine, 50)
    job = opened(engine, accepted(engine, selection={"filter": {"field": "note", "op": "is_null", "value": True}}))
    with engine.begin() as connection:
        connection.execute(text("UPDATE entry SET note = 'x' WHERE account = 'acc-1'"))
        connection.execute(text("DELETE FROM entry WHERE account = 'acc-2'"))
    walk(engine, job, size=6)
    sums = "sum(changed), sum(skipped), sum(failed), sum(not_found)"
    assert rows(engine, f"SELECT {sums} FROM bulklane.chunk") == rows(engine, f'SELECT {sums} FROM bulklane."range"')
    assert rows(engine, f"SELECT {sums} FROM bulklane.chunk") == [(17, 17, 0, 16)]
    kinds = rows(engine, "SELECT kind, reason, count(*) FROM bulklane.outcome GROUP BY 1, 2 ORDER BY 1")
    assert kinds == [("not_found", "", 16), ("skipped", "no longer matches", 17)]
    gaps = (
        "SELECT count(*) FROM (SELECT lo, lag(hi, 1, lo) OVER (PARTITION BY range_no ORDER BY seq) AS before, seq,"
        " row_number() OVER (PARTITION BY range_no ORDER BY seq) AS at,"
        " hi - lo - changed - skipped - failed - not_found AS lost"
        " FROM bulklane.chunk) x WHERE lo <> before OR seq <> at OR lost <> 0"
    )
    assert rows(engine, gaps) == [(0,)]
    assert rows(engine, 'SELECT count(*) FROM bulklane."range" WHERE "cursor" <> hi') == [(0,)]


@pytest.mark.parametrize("change", ["note = 'x'", "amount = amount + 100"])
def test_a_chunk_that_waited_for_a_users_write_changes_the_row_as_it_is_then(engine: Engine, change: str) -> None:
    """READ COMMITTED evaluates the row again; the body, version and counters must be those of the new row."""
    make_entries(engine, 9)
    job = opened(
        engine,
        accepted(engine, selection={"filter": {"field": "note", "op": "is_null", "value": True}}, parallelism=1),
    )
    with engine.connect() as user:
        user.execute(text(f"UPDATE entry SET {change} WHERE account = 'acc-1'"))

        def chunk() -> ChunkResult | None:
            with engine.begin() as connection:
                return one_chunk(connection, job, size=9)

        walking = Background(chunk)
        until(lambda: blocked_sessions(engine) == 1)
        user.commit()
    result = walking.result()
    left = 3 if "note" in change else 0
    assert result == ChunkResult(9, changed=9 - left, skipped=left, not_found=0)
    ours = "SELECT count(*) FROM entry e, bulklane.owed o, unnest(keys, versions, bodies) u(key, version, body)"
    ours += " WHERE u.key::jsonb->>0 = e.account AND (u.body::jsonb->>'amount')::int = e.amount"
    ours += " AND (u.key::jsonb->>1)::timestamptz = e.booked_at AND u.version = e.row_version"
    assert rows(engine, ours) == [(9 - left,)]


def test_a_gate_that_waited_for_a_rival_finds_the_range_moved(engine: Engine) -> None:
    job = entry_job(engine, 9)
    with engine.begin() as connection:
        ranges.take(connection, RangeRef(job.job_no, 1, 0), 7)
    with engine.connect() as rival:
        one_chunk(rival, job, size=4, epoch=7)
        waiting = Background(lambda: attempt(engine, job, epoch=7, lo=0, hi=3))
        until(lambda: blocked_sessions(engine) == 1)
        rival.commit()
    assert waiting.result() is None
    assert rows(engine, "SELECT count(*), sum(amount) FROM entry_audit") == [(4, 4)]
    assert rows(engine, "SELECT lo, hi FROM bulklane.chunk") == [(0, 4)]
