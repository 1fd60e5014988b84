"""Limits as rows: one budget for all senders, blocks and holds that everybody sees, and nothing kept by the dead."""

import itertools
import time
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from bulklane.contracts.limit import Limits
from bulklane.database import hold, limit
from bulklane.database.limit import Grant, Sender
from bulklane.database.share import HORIZON
from tests.database.jobs import Background, accepted, opened, rows, walk
from tests.support.ledgers import make_entries

MANY = Limits(rate=100.0, burst=3)


def sender(engine: Engine, limits: Limits, tenant: str = "acme", *, small: bool = False) -> Sender:
    """A sender that has joined."""
    made = Sender("bookings", tenant, small, limits, uuid4())
    with engine.begin() as connection:
        limit.join_channel(connection, made)
    return made


def take(engine: Engine, who: Sender, wanted: int = 50, calls: int = 0, seconds: float = 5.0) -> Grant:
    """One round."""
    with engine.begin() as connection:
        return limit.take(connection, who, wanted=wanted, calls=calls, waits_seconds=seconds, calls_seconds=seconds)


def test_senders_share_one_bucket(engine: Engine) -> None:
    one, other = sender(engine, MANY), sender(engine, MANY)
    began = time.monotonic()
    starts = take(engine, one).starts
    assert 40 <= len(starts) <= 50
    assert starts[:3] == [0.0, 0.0, 0.0]
    assert all(0.005 < b - a < 0.015 for a, b in itertools.pairwise(starts[2:]))
    more = take(engine, other).starts
    assert len(more) <= 3 + (time.monotonic() - began) * 100 + 43 - len(starts)


def test_rivals_at_once_never_pass_the_rate(engine: Engine) -> None:
    senders = [sender(engine, MANY, f"t{n}") for n in range(6)]
    began = time.monotonic()

    def ask(who: Sender) -> list[float]:
        found: list[float] = []
        while time.monotonic() < began + 2:
            found += [time.monotonic() - began + one for one in take(engine, who, 8).starts]
            time.sleep(0.03)
        return found

    tasks = [Background(lambda who=who: ask(who)) for who in senders]  # type: ignore[misc]
    got = [task.result() for task in tasks]
    total = sum(len(one) for one in got)
    seconds = time.monotonic() - began
    assert total <= 3 + (seconds + HORIZON) * 100
    assert total >= 0.9 * 2 * 100
    assert min(len(one) for one in got) >= 0.5 * total / 6


def test_calls_out_count_for_all_until_their_sender_is_gone(engine: Engine) -> None:
    limits = Limits(concurrency=10)
    one, other = sender(engine, limits), sender(engine, limits)
    assert len(take(engine, one, 7).starts) == 7
    assert len(take(engine, other, 7).starts) == 3
    assert take(engine, other, 7, calls=3).starts == []
    # the first one tells that its calls have ended
    take(engine, one, 0, calls=0)
    assert len(take(engine, other, 5, calls=3).starts) == 5


def test_a_sender_that_died_gives_its_slots_and_its_place_back(engine: Engine) -> None:
    limits = Limits(rate=5.0, concurrency=4)
    dead, alive = sender(engine, limits, "dead", small=True), sender(engine, limits)
    assert take(engine, dead, 40, seconds=0.3).starts
    assert take(engine, alive, 4).starts == []
    time.sleep(1.2)
    assert take(engine, alive, 4).starts
    with engine.begin() as connection:
        limit.leave_channel(connection, alive)
    sender(engine, limits)
    assert rows(engine, "SELECT count(*) FROM bulklane.channel_demand") == [(0,)]


def test_a_block_is_the_tenants_unless_the_account_is_shared(engine: Engine) -> None:
    one, same, other = (sender(engine, MANY, tenant) for tenant in ("acme", "acme", "other"))
    with engine.begin() as connection:
        limit.block(connection, one, 30.0)
        limit.block(connection, one, 2.0)
    for blocked in (one, same):
        grant = take(engine, blocked)
        assert grant.starts == []
        assert 29 < grant.blocked_seconds <= 30
    assert take(engine, other).starts
    shared = sender(engine, Limits(shared_account=True))
    with engine.begin() as connection:
        limit.block(connection, shared, 60.0)
        assert 59 < limit.blocked_seconds(connection, "bookings", "anybody") <= 60
        assert limit.blocked_seconds(connection, "mail", "anybody") == 0
    assert take(engine, other).starts == []


def test_what_is_blocked_stands_in_nobodys_way(engine: Engine) -> None:
    small, bulk = sender(engine, MANY, "blocked", small=True), sender(engine, MANY)
    with engine.begin() as connection:
        limit.block(connection, small, 30.0)
    assert take(engine, small, 1000).starts == []
    assert len(take(engine, bulk).starts) > 30


def test_after_a_block_the_calls_are_spread(engine: Engine) -> None:
    limits = Limits(rate=20.0, burst=10, shared_account=True)
    one = sender(engine, limits)
    with engine.begin() as connection:
        limit.block(connection, one, 0.3)
    time.sleep(0.31)
    starts = take(engine, one).starts
    assert len(starts) <= 10
    # but for what the first came late
    assert all(b - a == pytest.approx(0.05, abs=0.001) for a, b in itertools.pairwise(starts[2:]))
    assert sum(one < 0.04 for one in starts) <= 2


def test_a_hold_is_one_row_with_one_alarm_and_growing_probes(engine: Engine) -> None:
    with engine.begin() as connection:
        assert hold.read_hold(connection, "bookings") is None
        assert hold.hold(connection, "bookings", "401: credentials")
        assert not hold.hold(connection, "bookings", "403, another call")
        found = hold.read_hold(connection, "bookings")
        assert found is not None
        assert found.why == "401: credentials"
        assert not hold.take_probe(connection, "bookings")
    gaps = []
    for _ in range(8):
        with engine.begin() as connection:
            connection.execute(text("UPDATE bulklane.channel_limit SET probe_at = clock_timestamp()"))
            assert hold.take_probe(connection, "bookings")
            assert not hold.take_probe(connection, "bookings")
        gaps += [float(rows(engine, "SELECT extract(epoch FROM probe_at - now()) FROM bulklane.channel_limit")[0][0])]
    assert gaps == pytest.approx(sorted(gaps), abs=0.5)
    assert gaps[0] < 31
    assert 290 < gaps[-1] <= hold.LONGEST_PROBE
    with engine.begin() as connection:
        assert hold.resume_channel(connection, "bookings")
        assert not hold.resume_channel(connection, "bookings")
        assert hold.read_hold(connection, "bookings") is None
        assert hold.hold(connection, "bookings", "again")


def test_channels_and_what_a_job_waits_for(engine: Engine) -> None:
    make_entries(engine, 5)
    job = opened(engine, accepted(engine, parallelism=1))
    walk(engine, job)
    one = sender(engine, MANY)
    with engine.begin() as connection:
        assert hold.waits_of(connection, job.job_no) == {}
        limit.block(connection, one, 30.0)
        assert "wants no call" in hold.waits_of(connection, job.job_no)["bookings"]
        hold.hold(connection, "bookings", "401")
        assert "held since" in hold.waits_of(connection, job.job_no)["bookings"]
        hold.hold(connection, "mail", "401")
        assert list(hold.waits_of(connection, job.job_no)) == ["bookings"]
        bookings, mail = hold.list_channels(connection)
    assert (bookings.channel, bookings.owed, list(bookings.blocked)) == ("bookings", 5, ["acme"])
    assert bookings.held_since is not None
    assert (mail.channel, mail.owed, mail.held_why) == ("mail", 0, "401")
