"""Killed at random times: each goes on from the last committed chunk, and none is executed again."""

import random
import time

import pytest
from sqlalchemy import Engine, text

from bulklane.contracts.key import format_key
from bulklane.contracts.timing import Timing
from bulklane.database import range as ranges
from bulklane.database.job import Job
from bulklane.database.range import RangeRef
from tests.database.jobs import accepted, opened, rows
from tests.support.ledgers import FIRST, amounts, make_entries
from tests.support.mortal import Mortals
from tests.support.waiting import until

KILLS = 50
RECORDS = 12_000
ABSENT = 50
LONGEST_LIFE = 0.12
# small chunks; whoever takes over reads the cursor in the database, so how soon one is found dead changes nothing
TIMING = Timing(chunk_target=0.03)
# a number drawn is not given back by a rollback: it counts the chunks that were executed, committed or not
COUNT_EXECUTED = """
CREATE SEQUENCE executed;
CREATE FUNCTION count_executed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM nextval('executed'); RETURN NULL; END $$;
CREATE TRIGGER executed AFTER INSERT ON bulklane.chunk FOR EACH ROW EXECUTE FUNCTION count_executed();
CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_sleep(0.0005); RETURN NEW; END $$;
CREATE TRIGGER takes_time BEFORE UPDATE OF amount ON entry FOR EACH ROW EXECUTE FUNCTION take_time()
"""
OVERLAPS = """
SELECT count(*) FROM (SELECT lo, lag(hi, 1, 0) OVER (ORDER BY seq) AS before FROM bulklane.chunk) x WHERE lo <> before
"""


def standing(engine: Engine, job: Job) -> int:
    """How many records are done."""
    with engine.connect() as connection:
        return ranges.read(connection, RangeRef(job.job_no, 1, 0)).cursor


@pytest.mark.slow
@pytest.mark.case("C20")
def test_fifty_kills_repeat_no_committed_chunk(engine: Engine, database_url: str) -> None:
    """temporalio/sdk-java#1965: a retry after a kill began at a stale heartbeat."""
    keys = make_entries(engine, RECORDS)
    with engine.begin() as connection:
        connection.execute(text(COUNT_EXECUTED))
    absent = [("absent", FIRST.replace(microsecond=number)) for number in range(ABSENT)]
    ids = [[account, at.isoformat(timespec="microseconds")] for account, at in keys + absent]
    job = opened(engine, accepted(engine, selection={"ids": ids}, parallelism=1))
    chance, mortals = random.Random(20), Mortals()
    for number in range(KILLS):
        before = standing(engine, job)
        walker = mortals.start(database_url, job.job_no, 0, TIMING)
        if number % 5:  # the others are killed wherever they are, also before their first commit
            until(lambda: standing(engine, job) > before, what="a chunk of its own")  # noqa: B023
        time.sleep(chance.uniform(0, LONGEST_LIFE))
        walker.kill()
        walker.join()
        assert walker.exitcode == -9, "it was killed in the middle of the walk"
    with engine.begin() as connection:
        connection.execute(text("DROP TRIGGER takes_time ON entry"))
    last = mortals.start(database_url, job.job_no, 0, TIMING)
    last.join(60)
    assert last.exitcode == 0
    chunks = rows(engine, "SELECT count(*) FROM bulklane.chunk")[0][0]
    executed = rows(engine, "SELECT last_value FROM executed")[0][0]
    assert chunks <= executed <= chunks + KILLS
    assert rows(engine, OVERLAPS) == [(0,)]
    assert rows(engine, "SELECT count(*), count(DISTINCT (account, booked_at)) FROM entry_audit") == [
        (RECORDS, RECORDS)
    ]
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * RECORDS
        counted = ranges.counters(connection, job.job_no, 1)
    assert counted == ranges.Counters(changed=RECORDS, not_found=ABSENT)
    reported = rows(engine, "SELECT key FROM bulklane.outcome ORDER BY key")
    assert reported == [(format_key(key),) for key in absent]
