"""Live jobs walked step by step, without workers: the real course, chunk by chunk."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Engine, Table

from bulklane.activities.plan import plan_course
from bulklane.database import range as ranges
from bulklane.database.job import Job, get_job
from bulklane.database.range import RangeRef, Standing
from bulklane.operations.operation import Registry
from tests.database.jobs import accepted, look, opened, rows

ALL = {"all": True, "live": True}


def live_job(engine: Engine, registry: Registry, selection: dict[str, Any] | None = None, **request: Any) -> Job:
    """An opened job that walks live."""
    chosen = ALL if selection is None else {**selection, "live": True}
    return opened(engine, accepted(engine, registry=registry, selection=chosen, **{"parallelism": 1, **request}))


def live_chunk(
    engine: Engine, registry: Registry, ref: RangeRef, size: int, epoch: int = 1, *, good: bool = False
) -> Standing | None:
    """One chunk of a range, or of its good records; None where the gate was not passed."""
    with engine.begin() as connection:
        standing = ranges.take(connection, ref, epoch)
        course = plan_course(connection, registry, get_job(connection, ref.job_no), ref, epoch, standing)
        piece = course.next_piece(connection, standing, size)
        return (course.apply_to_good if good else course.apply)(connection, standing, piece)


def live_walk(engine: Engine, registry: Registry, job: Job, size: int, epoch: int = 1) -> int:
    """Every range of the round to its end; how many chunks that took."""
    chunks = 0
    with engine.connect() as connection:
        count = ranges.count_ranges(connection, job.job_no, job.round)
    for number in range(count):
        ref = RangeRef(job.job_no, job.round, number)
        while not standing_of(engine, ref).done:
            assert live_chunk(engine, registry, ref, size, epoch) is not None
            chunks += 1
    return chunks


def standing_of(engine: Engine, ref: RangeRef) -> Standing:
    """Where the range stands."""
    with engine.connect() as connection:
        return ranges.read(connection, ref)


def fill(engine: Engine, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Rows of acme."""
    with engine.begin() as connection:
        connection.execute(table.insert(), [{"tenant": "acme", **row} for row in rows])


def changed_times(engine: Engine, table: Table, *columns: Column[Any]) -> list[Any]:
    """Each row's count of changes, in the order of these columns."""
    with engine.connect() as connection:
        return list(connection.execute(table.select().with_only_columns(table.c.n).order_by(*columns)).scalars())


def exact_counters(engine: Engine, job: Job) -> ranges.Counters:
    """What became of the records: ledger, exceptions, owed effects and job say the same, no chunk beyond its keys."""
    with engine.connect() as connection:
        found = ranges.counters(connection, job.job_no, 1)
    within = "bool_and(changed + skipped + failed <= hi - lo)"
    ledger = rows(
        engine, f"SELECT sum(changed), sum(skipped), sum(failed), sum(not_found), {within} FROM bulklane.chunk"
    )
    assert ledger == [(found.changed, found.skipped, found.failed, 0, True)]
    outcomes = rows(engine, "SELECT count(*) FILTER (WHERE kind = 'failed'), count(*) FROM bulklane.outcome")
    assert outcomes == [(found.failed, found.failed + found.skipped)]
    owed = rows(engine, "SELECT count(*), count(DISTINCT k) FROM bulklane.owed, unnest(keys) k")
    assert owed == [(found.changed, found.changed)]
    ended = look(engine, job)
    assert (ended.total, ended.not_started) == (found.processed, 0)
    return found
