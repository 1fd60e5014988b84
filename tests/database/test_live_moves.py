"""What a live walk can't do is refused beforehand, or the chunk that does it is rolled back and the job fails."""

from typing import Any

import pytest
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Delete,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    Update,
    delete,
    func,
    literal_column,
    select,
    text,
    update,
)

from bulklane.activities.plan import plan_chunks
from bulklane.contracts.job import JobState
from bulklane.database import range as ranges
from bulklane.database.job import Job, get_job
from bulklane.database.live import ColumnMoved, LivePiece, apply_live
from bulklane.database.live_chain import LivePlan
from bulklane.database.range import RangeRef
from bulklane.operations.live import columns_read
from bulklane.operations.operation import Operation, Registry
from bulklane.operations.request import InvalidRequest
from tests.database.jobs import accepted, common_columns, look, opened, operation_on, registry_of, rows
from tests.database.live_jobs import fill, live_job, live_walk
from tests.support.walking import segment_activity

BY_STATE = {"filter": {"or": [{"field": "state", "value": "new"}, {"field": "state", "op": "is_null", "value": True}]}}
things = Table(
    "thing", MetaData(), Column("id", BigInteger, primary_key=True), Column("state", Text),
    Column("marks", ARRAY(Integer)), Column("touched", Integer, onupdate=func.length("x")), *common_columns(),
)  # fmt: skip
other = Table("other", things.metadata, Column("id", BigInteger))
FIELDS = {"state": things.c.state, "touched": things.c.touched, "version": things.c.row_version}


def operation(change: Update | Delete) -> Registry:
    """An operation with this statement."""
    return registry_of(operation_on(things, ["id"], change, fields=FIELDS))


def make_things(engine: Engine, count: int = 10) -> None:
    """New ones."""
    with engine.begin() as connection:
        things.create(connection)
    fill(engine, things, [{"id": n, "state": "new"} for n in range(count)])


@pytest.mark.parametrize(
    ("change", "column"),
    [
        (update(things).values(id=things.c.id + 1), "id"),
        (update(things).values({"id": 5}), "id"),
        (update(things).values({things.c.n: 1, things.c.id: 5}), "id"),
        (update(things).values(n=1).values(state="done"), "state"),
        (update(things).ordered_values((things.c.n, 1), (things.c.state, "done")), "state"),
        (update(things).ordered_values(("n", 1), ("state", "done")), "state"),
        (update(things).values({literal_column("state"): "done"}), "state"),
        (update(things).values(state=select(func.max(other.c.id)).scalar_subquery()), "state"),
    ],
)
def test_a_change_of_a_key_or_filter_column_is_refused(engine: Engine, change: Update, column: str) -> None:
    make_things(engine)
    with pytest.raises(InvalidRequest) as refused:
        live_job(engine, operation(change), BY_STATE)
    (problem,) = refused.value.problems
    assert problem.path == "selection.live"
    assert problem.message.startswith(f"made writes `{column}`")
    assert "leave `live` out" in problem.message
    assert rows(engine, "SELECT count(*) FROM bulklane.job") == [(0,)]
    if column != "id" and not change._maintain_values_ordering:  # no walk writes a key, or can extend an order
        assert accepted(engine, registry=operation(change), selection=BY_STATE).total == 10


@pytest.mark.parametrize(("field", "column"), [("touched", "touched"), ("version", "row_version")])
def test_columns_that_every_update_moves_are_no_filter_of_a_live_walk(engine: Engine, field: str, column: str) -> None:
    make_things(engine)
    with pytest.raises(InvalidRequest, match=f"writes `{column}`"):
        live_job(engine, operation(update(things).values(n=1)), {"filter": {"field": field, "value": 1}})


@pytest.mark.parametrize(
    "change",
    [
        update(things).values({literal_column('"state"'): "done"}),
        update(things).values({literal_column("no_such"): "done"}),
        update(things).values(n=1).add_cte(update(other).values(id=1).returning(other.c.id).cte("more")),
        update(other).values(id=1),
    ],
)
def test_a_statement_that_cannot_be_read_is_refused(engine: Engine, change: Update) -> None:
    make_things(engine)
    with pytest.raises(InvalidRequest, match=r"selection\.live"):
        live_job(engine, operation(change), BY_STATE)


def test_an_operation_that_is_no_statement_is_refused(engine: Engine) -> None:
    make_things(engine)
    plain = operation(update(things).values(n=1)).operations["made"]
    made = {"name": "made", "parameters": plain.parameters, "records": plain.records}
    per_record: Operation = type("PerRecord", (Operation,), made)()
    with pytest.raises(InvalidRequest, match="made isn't one statement"):
        live_job(engine, registry_of(per_record))


@pytest.mark.parametrize(
    "selection", [{"ids": [1], "live": True}, {"live": True}, {"all": True, "live": "yes"}, {"all": True, "live": None}]
)
def test_live_goes_with_filter_and_all_only(engine: Engine, selection: dict[str, Any]) -> None:
    make_things(engine)
    with pytest.raises(InvalidRequest, match="selection"):
        accepted(engine, registry=operation(update(things).values(n=1)), selection=selection)


@pytest.mark.parametrize(
    "change",
    [
        update(things).values(n=things.c.n + 1),
        update(things).values({things.c.marks[1]: 4, things.c.n: things.c.n + 1}),
        update(things).values(n=things.c.n + 1).where(things.c.state == "new"),
        delete(things),
    ],
)
def test_what_writes_neither_is_walked(engine: Engine, change: Any) -> None:
    make_things(engine)
    registry = operation(change)
    live_walk(engine, registry, live_job(engine, registry, BY_STATE), 3)
    assert rows(engine, "SELECT count(*) FROM thing WHERE n = 0") == [(0,)]


MOVES = {
    "id": "NEW.id := NEW.id + 100",
    "state": "NEW.state := 'done'",
    "state to NULL": "NEW.state := NULL",
    "state's case": "NEW.state := 'New'",
}


def move_by_trigger(engine: Engine, body: str) -> None:
    """A trigger that the statement doesn't show, from the fifth record on."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF OLD.id >= 5 THEN "
                f"{body}; END IF; RETURN NEW; END $$; "
                "CREATE TRIGGER move BEFORE UPDATE ON thing FOR EACH ROW EXECUTE FUNCTION move()"
            )
        )


@pytest.mark.case("C18")
@pytest.mark.parametrize("name", MOVES)
def test_a_trigger_that_moves_a_watched_column_fails_the_job(engine: Engine, name: str) -> None:
    make_things(engine)
    move_by_trigger(engine, MOVES[name])
    registry = operation(update(things).values(n=things.c.n + 1))
    job = live_job(engine, registry, BY_STATE)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.range SET chunk_size = 4"))
    assert segment_activity(engine, registry, job).end == "wish"
    ended = look(engine, job)
    assert ended.state is JobState.FAILED
    assert f"moves thing.{name.split()[0].removesuffix(chr(39) + 's')}" in ended.reason
    # what came before the move is kept, and of the chunk with the move nothing
    assert rows(engine, "SELECT id, state FROM thing WHERE n = 1 ORDER BY 1") == [(n, "new") for n in range(4)]
    assert (ended.changed, ended.not_started) == (4, 6)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name", MOVES)
def test_a_server_that_returns_no_old_rows_finds_the_move_too(engine: Engine, name: str, size: int) -> None:
    """PostgreSQL 17's way: the rows are locked and read first."""
    make_things(engine)
    move_by_trigger(engine, MOVES[name])
    registry = operation(update(things).values(n=things.c.n + 1))
    job = live_job(engine, registry, BY_STATE)
    with pytest.raises(ColumnMoved, match=r"moves thing\.(id|state)"):
        walk_as_17(engine, registry, RangeRef(job.job_no, 1, 0), size)
    assert rows(engine, "SELECT count(*), min(n) FROM thing WHERE state = 'new' AND id < 10") == [(10, 0)]


@pytest.mark.parametrize("size", [1, 4])
def test_a_server_that_returns_no_old_rows_walks_all_the_same(engine: Engine, size: int) -> None:
    make_things(engine)
    registry = operation(update(things).values(n=things.c.n + 1))
    job = live_job(engine, registry, BY_STATE)
    walk_as_17(engine, registry, RangeRef(job.job_no, 1, 0), size)
    assert rows(engine, "SELECT count(*), min(n), max(n) FROM thing") == [(10, 1, 1)]


def walk_as_17(engine: Engine, registry: Registry, ref: RangeRef, size: int) -> None:
    """The range to its end, without `RETURNING old`."""
    with engine.begin() as connection:
        standing = ranges.take(connection, ref, 1)
        chunk, _ = plan_chunks(connection, registry, opened_job(engine))
        plan = LivePlan(chunk, [things.c.id, *columns_read(chunk.condition)], returns_old=False)
    assert standing.bound_key is not None
    while not standing.done:
        with engine.begin() as connection:
            key = None if standing.cursor_key is None else (int(standing.cursor_key),)
            only = None if size > 1 else ((0,) if key is None else (key[0] + 1,))
            piece = LivePiece(standing.cursor, key, (int(standing.bound_key),), size, only)
            assert apply_live(connection, plan, ref, 1, piece) is not None
            standing = ranges.read(connection, ref)


def opened_job(engine: Engine) -> Job:
    """The only job."""
    number = rows(engine, "SELECT job_no FROM bulklane.job")[0][0]
    with engine.connect() as connection:
        return get_job(connection, number)


def test_a_deploy_that_makes_the_walk_unfit_stops_the_job(engine: Engine) -> None:
    make_things(engine)
    job = opened(
        engine,
        accepted(engine, registry=operation(update(things).values(n=1)), selection={**BY_STATE, "live": True}),
    )
    deployed = operation(update(things).values(state="done"))
    with pytest.raises(Exception, match="made writes `state`"):
        segment_activity(engine, deployed, job)
    assert rows(engine, "SELECT count(*) FROM thing WHERE state = 'new'") == [(10,)]
