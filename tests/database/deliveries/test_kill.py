"""C52: kill -9 in the middle of delivery, again and again."""

import time
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.database.jobs import rows
from tests.support.arrivals import note
from tests.support.calling import CHANNELS, Ledger
from tests.support.counting import make_items
from tests.support.delivering import owing_jobs, start_delivering
from tests.support.waiting import until

CONCURRENCY = next(one.concurrency for one in CHANNELS if one.name == "slow")


def done(engine: Engine) -> int:
    """How many calls are known to have been made."""
    return int(rows(engine, "SELECT count(*) FROM bulklane.delivery WHERE state = 'done'")[0][0])


@pytest.mark.slow
@pytest.mark.case("C52")
def test_a_kill_repeats_at_most_the_calls_in_flight(
    counted: Engine,
    database_url: str,
    slow_url: str,
    slow: Ledger,
    tmp_path: Path,
) -> None:
    """5,000 calls of 20 ms; the process is killed after every thousand: the same keys, each applied once."""
    (job,) = owing_jobs(counted, "call_slow", make_items(counted, "killed", 5000), 1)
    kills, began = 0, time.monotonic()
    process = start_delivering(database_url, slow_url, "slow", [job], tmp_path)
    try:
        while kills < 4:
            until(lambda most=kills * 1000 + 500: done(counted) > most, 120, what="calls")  # type: ignore[misc]
            process.kill()
            kills += 1
            process = start_delivering(database_url, slow_url, "slow", [job], tmp_path)
        until(lambda: not process.running, 240, what="all is delivered")
    finally:
        process.kill()
    assert process.returncode == 0, process.tail_of_log()
    calls = slow.calls(job.job_id)
    repeats = len(calls) - len({call["key"] for call in calls})
    note("repeats", f"{repeats} after {kills} kills, {time.monotonic() - began:.1f} s")
    assert repeats <= kills * CONCURRENCY
    applied = slow.applied(job.job_id)
    assert len(applied) == 5000
    assert set(applied.values()) == {1}
    states = "SELECT state, max(generation), count(*) FROM bulklane.delivery GROUP BY state"
    assert rows(counted, states) == [("done", 1, 5000)]
