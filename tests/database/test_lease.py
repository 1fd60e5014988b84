"""Leases: all or none, in one order, and a healthy holder is never in anybody's way."""

import itertools
import random

import pytest
from sqlalchemy import Engine, text

from bulklane.database import lease
from tests.database.jobs import Background, accepted, blocked_sessions, look, opened, rows, walk
from tests.support.ledgers import make_entries
from tests.support.waiting import until

ALL = "SELECT resource, job_no FROM bulklane.lease ORDER BY resource"


def take(engine: Engine, resources: list[str], job_no: int) -> bool:
    """All of them or, rolled back, none."""
    with engine.connect() as connection:
        taken = lease.acquire(connection, resources, job_no=job_no, round_no=1)
        if taken:
            connection.commit()
        return taken


def test_all_resources_or_none(engine: Engine) -> None:
    assert take(engine, ["b"], 1)
    assert not take(engine, ["a", "b", "c"], 2)
    assert rows(engine, ALL) == [("b", 1)]
    assert take(engine, ["c", "a", "c"], 2)
    assert rows(engine, ALL) == [("a", 2), ("b", 1), ("c", 2)]


def test_resources_are_compared_byte_for_byte(engine: Engine) -> None:
    names = ["a", "A", "a ", "é", "e\u0301", "", '"', "\\"]
    assert all(take(engine, [name], number) for number, name in enumerate(names))


def test_a_release_frees_only_the_rounds_own(engine: Engine) -> None:
    take(engine, ["a", "b"], 1)
    take(engine, ["c"], 2)
    with engine.begin() as connection:
        assert lease.release(connection, job_no=1, round_no=2) == 0
        assert lease.release(connection, job_no=1, round_no=1) == 2
        assert lease.release(connection, job_no=1, round_no=1) == 0
    assert rows(engine, ALL) == [("c", 2)]


def test_overlapping_sets_in_opposite_order_never_deadlock(engine: Engine) -> None:
    numbers = itertools.count(1)
    names = [f"resource-{n}" for n in range(12)]

    def compete(seed: int) -> int:
        chance, won = random.Random(seed), 0
        for _ in range(60):
            wanted = chance.sample(names, 8)
            number = next(numbers)
            if take(engine, wanted if seed % 2 else wanted[::-1], number):
                won += 1
                with engine.begin() as connection:
                    assert lease.release(connection, job_no=number, round_no=1) == 8
        return won

    winners = [Background(lambda seed=seed: compete(seed)) for seed in range(6)]  # type: ignore[misc]
    assert sum(winner.result() for winner in winners) > 10
    assert rows(engine, ALL) == []
    # a deadlock raises in the thread that PostgreSQL chose, so its result would have
    assert rows(engine, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]


def test_two_acquirers_wait_for_one_another_in_one_direction_only(engine: Engine) -> None:
    with engine.connect() as first:
        lease.acquire(first, ["m"], job_no=1, round_no=1)
        second = Background(lambda: take(engine, ["z", "m", "a"], 2))
        until(lambda: blocked_sessions(engine) == 1)
        # the second has `a` and waits for `m`; it can't have `z` before it has `m`
        assert lease.acquire(first, ["z"], job_no=1, round_no=1)
        first.commit()
    assert second.result() is False
    assert rows(engine, ALL) == [("m", 1), ("z", 1)]


def test_acquirers_do_not_hold_up_a_healthy_holder(engine: Engine) -> None:
    make_entries(engine, 3)
    job = opened(engine, accepted(engine))
    with engine.connect() as competitor:
        competitor.execute(text("SET LOCAL statement_timeout = '5s'"))
        assert not lease.acquire(competitor, ["add_to_entries:acme"], job_no=99, round_no=1)
        # the competitor's transaction is still open: the holder walks, and gives its lease back, without waiting
        holder = Background(lambda: (walk(engine, job), look(engine, job)))
        holder.result()
        assert rows(engine, ALL) == []


@pytest.mark.parametrize("wanted", [["x", "b", "a"], ["a"], ["b", "b"]])
def test_holders_are_named(engine: Engine, wanted: list[str]) -> None:
    make_entries(engine, 1)
    job = accepted(engine, job_id="the-holder")
    with engine.begin() as connection:
        lease.acquire(connection, ["a", "b"], job_no=job.job_no, round_no=1)
        found = lease.holders(connection, wanted)
    assert [holder.resource for holder in found] == sorted(set(wanted) - {"x"})
    assert {(holder.job_id, holder.tenant, holder.state) for holder in found} == {("the-holder", "acme", "accepted")}
