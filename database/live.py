"""The chunk transaction of a live walk: the next keys beyond the cursor, up to the bound; nothing is frozen.

The cursor moves to the end of the chunk's keys whatever the filter took of them. Keys are in the order of their
columns' own collations, the only one that the user's index has.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, Executable, select, true

from bulklane.contracts.key import Key, format_key
from bulklane.database.bad_records import decide_bad
from bulklane.database.chunk_plan import Decision, Locked
from bulklane.database.key_space import after, bound_key, key_values, up_to
from bulklane.database.live_chain import FAIL_ONE, LivePlan, LiveStatements
from bulklane.database.range import RangeRef
from bulklane.database.record import own_name as parameter
from bulklane.database.record import owned_by

# larger than any number of records: where a live range ends is known when its walk has come to its bound
OPEN_END = 2**62
# PostgreSQL estimates a comparison of rows by its first column only, and may take a chunk for a third of the table
PLANNED_BY_INDEX = {"enable_seqscan": "off"}


Decide = Callable[[Connection, Locked, Mapping[str, Any]], Decision]


class ColumnMoved(RuntimeError):
    """A change moved a record in its own walk; the chunk must roll back. The message names the column."""

    def __init__(self, table: str, column: str) -> None:
        super().__init__(
            f"the change moves {table}.{column} (a trigger?), which the live walk goes or selects by; nothing of its"
            " chunk is kept: start it again without `live`"
        )


@dataclass(frozen=True)
class LivePiece:
    """The next keys beyond `cursor_key`: at most `records`, up to `bound_key`. `only`: the one key that it is about."""

    cursor: int
    cursor_key: Key | None
    bound_key: Key
    records: int
    only: Key | None = None


@dataclass(frozen=True)
class LiveResult:
    """Where a committed chunk has brought its range, and what it did."""

    cursor: int
    hi: int
    cursor_key: str
    changed: int
    failed: int


def read_next_key(connection: Connection, plan: LivePlan, piece: LivePiece) -> Key | None:
    """The first key beyond the piece's cursor; None where there is none up to the bound."""
    records = plan.records
    beyond = true() if piece.cursor_key is None else after(records, bound_key(records, "cursor"))
    statement = (
        select(*records.key)
        .where(owned_by(records, plan.chunk.tenant), beyond, up_to(records, bound_key(records, "bound")))
        .order_by(*records.key)
        .limit(1)
    )
    values = key_values("cursor", piece.cursor_key) | key_values("bound", piece.bound_key)
    row = connection.execute(statement, values).one_or_none()
    return None if row is None else tuple(row)


def apply_live(
    connection: Connection, plan: LivePlan, ref: RangeRef, epoch: int, piece: LivePiece
) -> LiveResult | None:
    """Change the piece's records and all that goes with it; None where the gate was not passed.

    The transaction has `PLANNED_BY_INDEX`. Raises what the operation's statement raises, and ColumnMoved: the caller
    must roll back.
    """
    statements, parameters = _statements(plan, piece), live_parameters(ref, epoch, piece)
    if plan.chunk.decide is None:
        return _result(connection, plan, statements.statement, parameters)
    return _apply_decided(connection, statements, parameters, plan.chunk.decide)


def apply_live_to_good(
    connection: Connection, plan: LivePlan, ref: RangeRef, epoch: int, piece: LivePiece
) -> LiveResult | None:
    """Report the piece's records whose new values break a rule as failed, and change the others; else as `apply_live`.

    Raises what the statement raises where not all could be found by asking.
    """
    statements, parameters = _statements(plan, piece), live_parameters(ref, epoch, piece)
    return _apply_decided(connection, statements, parameters, partial(decide_bad, plan.chunk))


def live_statement(
    connection: Connection, plan: LivePlan, ref: RangeRef, epoch: int, piece: LivePiece
) -> tuple[Executable, Mapping[str, Any]]:
    """What changes the piece's records, with all its parameters, in a transaction that plans it by the key's index.

    Where a function decides it is the statement over all up to the piece's bound. Raises what deciding raises.
    """
    statements, parameters = _statements(plan, piece), live_parameters(ref, epoch, piece)
    if plan.chunk.decide is None:
        return statements.statement, parameters
    end = {parameter("end_key"): format_key(piece.bound_key), **key_values("end", piece.bound_key)}
    return _decided_statement(connection, statements, {**parameters, **end}, plan.chunk.decide)


def _statements(plan: LivePlan, piece: LivePiece) -> LiveStatements:
    if piece.only is not None:
        return plan.one_key
    return plan.from_start if piece.cursor_key is None else plan.beyond_cursor


def _apply_decided(
    connection: Connection, statements: LiveStatements, parameters: Mapping[str, Any], decide: Decide
) -> LiveResult | None:
    """Fix the chunk's end, decide about the records up to there, and change the others.

    Else what is inserted meanwhile would make another chunk of it than the one whose records are locked and decided.
    """
    end = connection.execute(statements.end, parameters).one_or_none()
    if end is None:
        return None
    fixed = {**parameters, parameter("end_key"): end.key, **key_values("end", tuple(end[1:]))}
    return _result(connection, statements.plan, *_decided_statement(connection, statements, fixed, decide))


def _decided_statement(
    connection: Connection, statements: LiveStatements, fixed: Mapping[str, Any], decide: Decide
) -> tuple[Executable, Mapping[str, Any]]:
    decision = decide(connection, statements.locked, fixed)
    return statements.deciding_statement, {**fixed, **decision.values}


def _result(
    connection: Connection, plan: LivePlan, statement: Executable, parameters: Mapping[str, Any]
) -> LiveResult | None:
    row = connection.execute(statement, parameters).one_or_none()
    if row is None:
        return None
    for number, column in enumerate(plan.watched):
        if getattr(row, f"moved{number}"):
            raise ColumnMoved(plan.records.table.name, column.name)
    return LiveResult(row.cursor, row.hi, row.cursor_key, row.changed, row.failed)


def fail_live(
    connection: Connection, ref: RangeRef, epoch: int, piece: LivePiece, code: str, reason: str
) -> LiveResult | None:
    """Report the piece's one key as failed and step over it; None where the gate was not passed."""
    bad = {parameter("bad_code"): code, parameter("bad_reason"): reason[:500]}
    row = connection.execute(FAIL_ONE, live_parameters(ref, epoch, piece) | bad).one_or_none()
    return None if row is None else LiveResult(row.cursor, row.hi, row.cursor_key, row.changed, row.failed)


def live_parameters(ref: RangeRef, epoch: int, piece: LivePiece) -> dict[str, Any]:
    """What the chunk's statement takes; its transaction has `PLANNED_BY_INDEX`."""
    named = {
        "of_job": ref.job_no,
        "of_round": ref.round,
        "of_range": ref.range_no,
        "at_epoch": epoch,
        "from_cursor": piece.cursor,
        "from_key": None if piece.cursor_key is None else format_key(piece.cursor_key),
        "bound_key": format_key(piece.bound_key),
        "only_key": None if piece.only is None else format_key(piece.only),
        "size": piece.records,
    }
    values = {parameter(name): value for name, value in named.items()}
    keys = (("cursor", piece.cursor_key), ("bound", piece.bound_key), ("only", piece.only))
    return values | {name: value for prefix, key in keys for name, value in key_values(prefix, key).items()}
