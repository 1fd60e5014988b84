"""C19 with its counts: 20,000 selected records, at least 500 inserts a second meanwhile, and the same walk in peace."""

import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text

from bulklane.database.job import Job
from tests.database.jobs import accepted, opened, rows, stands
from tests.database.test_walk_cases import MARKING, NEW, beside, with_notes
from tests.support.walking import walk_whole

RECORDS = 20_000
PACE = 600
IN_PEACE = """
INSERT INTO entry (tenant, account, booked_at, note) SELECT 'quiet', account, booked_at, note FROM entry
"""
LATE = """
INSERT INTO entry (tenant, account, booked_at, note)
SELECT 'acme', 'late', clock_timestamp() + i * interval '1 us', 'new' FROM generate_series(1, :n) i
"""


class Inserter:
    """Keeps so many inserts a second, whatever else the machine does."""

    def __init__(self, engine: Engine) -> None:
        self.inserted = 0
        self._engine = engine

    def run(self, ended: threading.Event) -> None:
        """Until it is ended."""
        began = time.monotonic()
        while not ended.wait(0.01):
            due = int((time.monotonic() - began) * PACE) - self.inserted
            with self._engine.begin() as connection:
                connection.execute(text(LATE), {"n": due})
            self.inserted += due


def seconds(walk: Callable[[], None]) -> float:
    """How long it takes."""
    began = time.monotonic()
    walk()
    return time.monotonic() - began


def job_of(engine: Engine, tenant: str) -> Job:
    """Accepted, with its keys frozen."""
    return opened(engine, accepted(engine, registry=MARKING, selection=NEW, tenant=tenant, small=2 * RECORDS))


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.case("C19")
def test_five_hundred_inserts_a_second_neither_enter_nor_prolong_the_walk(engine: Engine) -> None:
    with_notes(engine, RECORDS)
    with engine.begin() as connection:
        connection.execute(text(IN_PEACE))
    quiet, busy = job_of(engine, "quiet"), job_of(engine, "acme")
    in_peace = seconds(lambda: walk_whole(engine, MARKING, quiet, chunk=100))
    inserter = Inserter(engine)
    with beside(inserter.run):
        meanwhile = seconds(lambda: walk_whole(engine, MARKING, busy, chunk=100))
        inserted = inserter.inserted
    assert inserted >= 500 * meanwhile
    assert meanwhile <= 3 * in_peace
    assert stands(engine, busy).total == RECORDS
    assert rows(engine, "SELECT count(*) FROM entry WHERE account = 'late' AND amount <> 0") == [(0,)]
    marked = "SELECT count(*), max(amount) FROM entry WHERE tenant = 'acme' AND account <> 'late' AND amount > 0"
    assert rows(engine, marked) == [(RECORDS, 1)]
