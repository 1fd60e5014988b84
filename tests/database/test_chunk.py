"""The chunk transaction on real PostgreSQL: the gate, what goes with a change, and what a chunk can't do."""

from sqlalchemy import Engine, text

from bulklane.activities.plan import plan_chunks
from bulklane.database import range as ranges
from bulklane.database.chunk import RangeRef, apply_chunk, slice_at
from bulklane.database.job import Job
from bulklane.operations.operation import Registry
from bulklane.starter.accept import accept_request
from tests.support.ledgers import AddToEntries, amounts, make_entries

REGISTRY = Registry({"add_to_entries": AddToEntries()}, {})


def accepted(engine: Engine, **request: object) -> Job:
    """A job over the tenant's entries."""
    raw = {"operation": "add_to_entries", "tenant": "acme", "selection": {"all": True}, **request}
    return accept_request(engine, REGISTRY, raw, 10_000).job


def test_two_ranges_of_a_composite_key_change_each_record_once(engine: Engine) -> None:
    make_entries(engine, 23)
    job = accepted(engine)
    for number in range(2):
        ref = RangeRef(job.job_no, 1, number)
        with engine.begin() as connection:
            standing = ranges.take(connection, ref, epoch=7)
            plan, stored = plan_chunks(connection, REGISTRY, job)
        while not standing.done:
            piece = slice_at(stored.selection_no, standing.cursor, standing.hi, size=4)
            with engine.begin() as connection:
                result = apply_chunk(connection, plan, ref, 7, piece)
            assert result is not None
            standing = standing.at(result.cursor)
    with engine.connect() as connection:
        assert list(amounts(connection)) == [1] * 23
        assert ranges.counters(connection, job.job_no, 1).changed == 23
        owed = connection.execute(text("SELECT sum(size), sum(cardinality(bodies)) FROM bulklane.owed")).one()
        assert owed == (23, 23)
