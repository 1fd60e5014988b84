"""Between a walker's look for its turn and the chunk's transaction: a wish that comes, or a connection that ends."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from sqlalchemy import Engine, text, update
from sqlalchemy.pool import QueuePool

from bulklane.activities.pace import Allowance
from bulklane.contracts.job import Wish
from bulklane.database.advance import advance
from bulklane.database.engine import connect_engine
from bulklane.database.job import Job
from bulklane.database.tables import range_
from bulklane.database.wish import Wanted, set_wish
from tests.database.jobs import REGISTRY, accepted, freeze, opened, rows
from tests.support.ledgers import amounts, make_entries
from tests.support.walking import PATIENT, range_ended, segment_activity

RECORDS = 2_000
ENDED = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'bulklane walker'"


@dataclass
class AtTurn:
    """A reason to go slower that is none: it does something at one of the walker's turns, counted from 1."""

    number: int
    act: Callable[[], None]
    turns: int = 0

    def __call__(self, wanted: Wanted) -> Allowance | None:
        """Called after the wish was read, and before the chunk begins."""
        self.turns += 1
        if self.turns == self.number:
            self.act()
        return None


@pytest.fixture
def walker(engine: Engine) -> Iterator[Engine]:
    """The walker's own connections."""
    made = connect_engine(engine.url.render_as_string(hide_password=False), role="walker", pool_size=3)
    yield made
    made.dispose()


def bulk_job(engine: Engine) -> Job:
    """Only a bulk job is asked for its reasons."""
    make_entries(engine, RECORDS)
    job = opened(engine, accepted(engine, small=0, parallelism=1))
    freeze(engine, job)
    with engine.begin() as connection:
        connection.execute(update(range_).where(range_.c.job_no == job.job_no).values(chunk_size=100))
        return advance(connection, job.job_no, heard_by="test")


def checked_out(walker: Engine) -> int:
    """How many connections of its pool are in use."""
    assert isinstance(walker.pool, QueuePool)
    return walker.pool.checkedout()


@pytest.mark.parametrize("wish", [Wish.PAUSE, Wish.CANCEL])
def test_a_wish_that_comes_after_the_look_stops_the_chunk(engine: Engine, walker: Engine, wish: Wish) -> None:
    job = bulk_job(engine)

    def say() -> None:
        with engine.begin() as connection:
            set_wish(connection, job.job_no, wish, who="ann", why="enough")

    answer = segment_activity(walker, REGISTRY, job, timing=PATIENT, health=AtTurn(3, say))
    assert answer.end == "wish"
    assert rows(engine, "SELECT count(*), sum(changed) FROM bulklane.chunk") == [(2, answer.processed)]
    with engine.connect() as connection:
        assert sum(amounts(connection)) == answer.processed < RECORDS
    assert checked_out(walker) == 0


def test_a_connection_that_ends_between_two_chunks_costs_nothing(engine: Engine, walker: Engine) -> None:
    job = bulk_job(engine)
    kept: list[int] = []

    def end() -> None:
        kept.append(checked_out(walker))
        with engine.begin() as connection:
            connection.execute(text(ENDED))

    reason = AtTurn(3, end)
    while not range_ended(walker, REGISTRY, job, 0, PATIENT, health=reason):
        pass
    assert kept == [1]
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * RECORDS
    assert rows(engine, "SELECT sum(changed), sum(hi - lo) FROM bulklane.chunk") == [(RECORDS, RECORDS)]
    assert checked_out(walker) == 0
