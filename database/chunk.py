"""The chunk transaction: gate, apply, owed effects, exceptions, ledger, cursor and counters, as one statement.

It is the only place where records change. Where the gate finds no row, every other part of the chain is empty.
Where records have to be looked at before, they are read and locked by a statement of their own in the same transaction,
behind the same gate; what was decided then goes into the chain.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Executable,
    Select,
    select,
    true,
)

from bulklane.contracts.key import KeyType
from bulklane.database.bad_records import decide_bad
from bulklane.database.chunk_chain import GATE, fail_chain, narrowed, sliced
from bulklane.database.chunk_plan import LONGEST_REASON, ChunkPlan, ChunkResult, Decision, Miscounted
from bulklane.database.range import RangeRef
from bulklane.database.record import key_text, unnested
from bulklane.database.record import own_name as _p
from bulklane.database.selection import BLOCK_SIZE, Slice


def apply_chunk(connection: Connection, plan: ChunkPlan, ref: RangeRef, epoch: int, piece: Slice) -> ChunkResult | None:
    """Change the slice's records and all that goes with it; None where the gate was not passed.

    Raises what the operation's statement raises: nothing is stored then.
    """
    return _result(connection, *chunk_statement(connection, plan, chunk_parameters(ref, epoch, piece)))


def chunk_statement(
    connection: Connection, plan: ChunkPlan, parameters: Mapping[str, Any]
) -> tuple[Executable, Mapping[str, Any]]:
    """What changes the slice's records, with all its parameters; where a function decides, they are locked for it."""
    if plan.decide is None:
        return plan.statement, parameters
    return _decided_statement(plan, parameters, plan.decided(connection, partial(locked_records, plan), parameters))


def apply_to_good(
    connection: Connection, plan: ChunkPlan, ref: RangeRef, epoch: int, piece: Slice
) -> ChunkResult | None:
    """Report the slice's records whose new values break a rule as failed, and change the others.

    None where the gate was not passed. Raises what the statement raises where not all could be found by asking.
    """
    parameters = chunk_parameters(ref, epoch, piece)
    decision = decide_bad(plan, connection, partial(locked_records, plan), parameters)
    return _result(connection, *_decided_statement(plan, parameters, decision))


def _decided_statement(
    plan: ChunkPlan, parameters: Mapping[str, Any], decision: Decision
) -> tuple[Executable, Mapping[str, Any]]:
    return plan.deciding_statement, {**parameters, **decision.values}


def locked_records(plan: ChunkPlan, *columns: ColumnElement[Any]) -> Select[Any]:
    """`Locked` of a slice."""
    types, key = plan.records.key_types, plan.records.key
    ordered = [one.collate("C") if kind is KeyType.TEXT else one for one, kind in zip(key, types, strict=True)]
    statement = narrowed(plan, sliced(types, GATE), select(*columns).order_by(*ordered))
    locked: Select[Any] = statement.with_for_update(
        of=plan.records.table, key_share=not isinstance(plan.change, Delete)
    )
    return locked


def fail_chunk(
    connection: Connection, ref: RangeRef, epoch: int, piece: Slice, key: str, code: str, reason: str
) -> ChunkResult | None:
    """Report the slice's one record as failed and step over it; None where the gate was not passed."""
    bad = {_p("bad_key"): key, _p("bad_code"): code, _p("bad_reason"): reason[:LONGEST_REASON]}
    return _result(connection, _FAIL, chunk_parameters(ref, epoch, piece) | bad)


def keys_of(connection: Connection, piece: Slice, key_types: Sequence[KeyType]) -> list[str]:
    """The text forms of the slice's keys, in order."""
    columns = sliced(key_types)
    rows = unnested(list(columns.c), [f"key{n}" for n in range(1, len(key_types) + 1)], "one")
    names = [rows.c[f"key{n}"] for n in range(1, len(key_types) + 1)]
    statement = select(key_text(names, key_types)).select_from(columns.join(rows, true())).order_by(rows.c.ordinal)
    return list(connection.execute(statement, _slice_parameters(piece)).scalars())


def chunk_parameters(ref: RangeRef, epoch: int, piece: Slice) -> dict[str, Any]:
    """The parameters that every statement about a chunk takes, by their full names."""
    values = {
        "of_job": ref.job_no,
        "of_round": ref.round,
        "of_range": ref.range_no,
        "at_epoch": epoch,
        "from_cursor": piece.lo,
        "to_cursor": piece.hi,
        "size": piece.hi - piece.lo,
    }
    return _slice_parameters(piece) | {_p(name): value for name, value in values.items()}


def _slice_parameters(piece: Slice) -> dict[str, Any]:
    number = piece.lo // BLOCK_SIZE
    first = number * BLOCK_SIZE
    values = {
        "of_selection": piece.selection_no,
        "of_block": number,
        "slice_from": piece.lo - first + 1,
        "slice_to": piece.hi - first,
    }
    return {_p(name): value for name, value in values.items()}


def _result(connection: Connection, statement: Executable, parameters: Mapping[str, Any]) -> ChunkResult | None:
    row = connection.execute(statement, parameters).one_or_none()
    if row is None:
        return None
    outcomes = row.changed + row.skipped + row.not_found + row.failed
    if outcomes != parameters[_p("size")]:
        raise Miscounted(outcomes, parameters[_p("size")])
    return ChunkResult(row.cursor, row.changed, row.skipped, row.not_found, row.failed)


_FAIL = fail_chain()
