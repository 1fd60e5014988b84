"""What the tests of the database layer do with jobs: accept, open, walk, say verbs; operations on their own tables."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from threading import Thread
from typing import Any
from uuid import uuid4

from sqlalchemy import BigInteger, Column, Connection, Delete, Engine, Table, Text, Update, text, update
from temporalio.testing import ActivityEnvironment

from bulklane.activities.freeze import Freeze
from bulklane.activities.plan import plan_chunks
from bulklane.contracts.message import Throttle, Verb, VerbMessage
from bulklane.contracts.timing import Timing
from bulklane.contracts.walk import FreezeRequest
from bulklane.database import range as ranges
from bulklane.database.advance import advance, apply_message, open_round
from bulklane.database.chunk import apply_chunk
from bulklane.database.chunk_plan import ChunkResult
from bulklane.database.job import Job, get_job, stamp_run
from bulklane.database.range import RangeRef
from bulklane.database.selection import slice_at
from bulklane.database.tables import metadata
from bulklane.operations.operation import Operation, Records, Registry
from bulklane.starter.accept import accept_request
from tests.support.ledgers import AddParameters, AddToEntries

REGISTRY = Registry({"add_to_entries": AddToEntries()}, {})
BACKGROUND_SECONDS = 30.0


def registry_of(*operations: Operation) -> Registry:
    """A registry of these operations."""
    return Registry({operation.name: operation for operation in operations}, {})


def operation_on(
    table: Table, key: Sequence[str], change: Update | Delete, name: str = "made", **attributes: Any
) -> Operation:
    """An operation on a table with columns `tenant` and `row_version`, which the application moves."""
    records = Records(table, [table.c[one] for one in key], table.c.tenant, table.c.row_version, "application")
    made = {"name": name, "parameters": AddParameters, "records": records, "change": lambda self, parameters: change}
    operation: Operation = type("Made", (Operation,), made | attributes)()
    return operation


def simple_operation(engine: Engine, table: Table, key: Sequence[str], **attributes: Any) -> Operation:
    """The table made, and an operation that sets its column `n` to one more."""
    with engine.begin() as connection:
        table.create(connection)
    return operation_on(table, key, update(table).values({table.c.n: table.c.n + 1}), **attributes)


def common_columns() -> list[Column[Any]]:
    """Tenant, a number to change, and the row version."""
    return [
        Column("tenant", Text, primary_key=True),
        Column("n", BigInteger, nullable=False, server_default=text("0")),
        Column("row_version", BigInteger, nullable=False, server_default=text("1")),
    ]


def accepted(engine: Engine, *, registry: Registry = REGISTRY, small: int = 10_000, **request: Any) -> Job:
    """A job over all of acme's entries, unless the request says otherwise."""
    name = next(iter(registry.operations))
    raw = {"operation": name, "tenant": "acme", "selection": {"all": True}, **request}
    return accept_request(engine, registry, raw, small).job


def opened(engine: Engine, job: Job, run_id: str = "run-1", scheduled: int = 1) -> Job:
    """The job after `open_job` of that run."""
    with engine.begin() as connection:
        stamp_run(connection, job.job_no, run_id=run_id, scheduled=scheduled)
        open_round(connection, job.job_no)
        return advance(connection, job.job_no, heard_by="test")


def freeze(engine: Engine, job: Job, registry: Registry = REGISTRY, round_no: int = 1) -> None:
    """The activity that expands a selection, in this thread."""
    activity = Freeze(engine, registry, Timing())
    ActivityEnvironment().run(activity.freeze, FreezeRequest(job.job_no, round_no))


def look(engine: Engine, job: Job) -> Job:
    """Every step that is due."""
    with engine.begin() as connection:
        return advance(connection, job.job_no, heard_by="test")


def say(engine: Engine, job: Job, verb: Verb, message_id: str = "", throttle: Throttle | None = None) -> Job:
    """A verb written as a row."""
    message = VerbMessage(message_id or str(uuid4()), verb, "ann", "because", throttle)
    with engine.begin() as connection:
        return apply_message(connection, job.job_no, message)


def throttled(engine: Engine, job: Job, rows_per_second: float | None = None, parallelism: int | None = None) -> Job:
    """A throttle written as a row; without any limit it lifts the one before."""
    return say(engine, job, Verb.THROTTLE, throttle=Throttle(rows_per_second, parallelism))


def stands(engine: Engine, job: Job) -> Job:
    """The job as its row says now."""
    with engine.connect() as connection:
        return get_job(connection, job.job_no)


def one_chunk(
    connection: Connection, job: Job, *, size: int, epoch: int = 1, range_no: int = 0, registry: Registry = REGISTRY
) -> ChunkResult | None:
    """The next chunk of a range, under an epoch that takes it first."""
    ref = RangeRef(job.job_no, job.round, range_no)
    standing = ranges.take(connection, ref, epoch)
    plan, stored = plan_chunks(connection, registry, job)
    piece = slice_at(stored.selection_no, standing.cursor, standing.hi, size)
    return apply_chunk(connection, plan, ref, epoch, piece)


def walk(engine: Engine, job: Job, *, size: int = 1000, epoch: int = 1, registry: Registry = REGISTRY) -> int:
    """Every range to its end; how many chunks that took."""
    chunks = 0
    with engine.connect() as connection:
        count = ranges.count_ranges(connection, job.job_no, job.round)
    for number in range(count):
        while True:
            with engine.begin() as connection:
                if ranges.read(connection, RangeRef(job.job_no, job.round, number)).done:
                    break
                result = one_chunk(connection, job, size=size, epoch=epoch, range_no=number, registry=registry)
                assert result is not None
                chunks += 1
    return chunks


def rows(engine: Engine, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    """What a statement answers."""
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(statement), values)]


def counts(engine: Engine) -> dict[str, int]:
    """How many rows each of our tables has."""
    with engine.connect() as connection:
        return {
            table.name: int(connection.execute(text(f'SELECT count(*) FROM bulklane."{table.name}"')).scalar_one())
            for table in metadata.sorted_tables
        }


class Background:
    """A function in a thread of its own; what it raised is raised where its result is asked for."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error

    @property
    def waits(self) -> bool:
        """Whether it hasn't come back."""
        return self._thread.is_alive()

    def result(self) -> Any:
        """What it gave back."""
        self._thread.join(BACKGROUND_SECONDS)
        assert not self._thread.is_alive(), "still waiting"
        if self._error is not None:
            raise self._error
        return self._result


def blocked_sessions(engine: Engine) -> int:
    """How many sessions of this database wait for a lock."""
    statement = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return int(rows(engine, statement)[0][0])


def at_second(second: int) -> datetime:
    """A moment."""
    return datetime(2026, 3, 29, 12, 0, second, tzinfo=UTC)
