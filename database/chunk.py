"""The chunk transaction: gate, apply, owed effects, exceptions, ledger, cursor and counters, as one statement.

It is the only place where records change. Where the gate finds no row, every other part of the chain is empty.
Where records have to be looked at before, they are read and locked by a statement of their own in the same transaction,
behind the same gate; what was decided then goes into the chain.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    Connection,
    Delete,
    Executable,
    Integer,
    Select,
    Text,
    Update,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal,
    null,
    select,
    true,
    type_coerce,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert

from bulklane.contracts.key import KeyType
from bulklane.database.range import RangeRef
from bulklane.database.record import RecordSet, key_text, owned_by, same_key, unnested
from bulklane.database.record import own_name as _p
from bulklane.database.selection import BLOCK_SIZE, Slice
from bulklane.database.tables import KEY_TYPES, block, chunk, key_column, outcome, owed, range_

NO_LONGER_MATCHES = "no longer matches"
LONGEST_REASON = 500
_OUTCOME_PARTS = ("key", "kind", "code", "reason")


@dataclass(frozen=True)
class ChunkResult:
    """What one committed chunk did."""

    cursor: int
    changed: int
    skipped: int
    not_found: int
    failed: int = 0


@dataclass(frozen=True)
class OwedEffect:
    """An effect that each changed record of a chunk owes; `body` is evaluated on the changed row, or None."""

    name: str
    channel: str
    body: ColumnElement[str] | None


@dataclass(frozen=True)
class RecordOutcome:
    """What becomes of a record (key in text form) that is not changed: `skipped` or `failed`, and why."""

    key: str
    kind: str
    code: str
    reason: str


@dataclass(frozen=True)
class Decision:
    """What is known of a chunk's records before its statement runs."""

    outcomes: Sequence[RecordOutcome] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Of the plan's change, by their full names."""


@dataclass(frozen=True)
class ChunkPlan:
    """What an operation does to the records of a chunk: the change, the condition still to hold, the effects owed."""

    records: RecordSet
    tenant: str
    condition: ColumnElement[bool]
    change: Update | Delete
    effects: Sequence[OwedEffect]
    reopened: bool = False
    """Whether the records may have an outcome of an earlier round, which a change takes back."""
    decide: Callable[[Connection, "ChunkPlan", Mapping[str, Any]], Decision] | None = None
    """Reads and locks the chunk's records and decides about each, where the change is written per record."""

    @cached_property
    def statement(self) -> Executable:
        """The whole chain; composed once, compiled once by SQLAlchemy's cache."""
        return _chain(self, None)

    @cached_property
    def deciding_statement(self) -> Executable:
        """The same, where the outcomes of some records are known before."""
        return _chain(self, _decided())


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
    return _decided_statement(plan, parameters, plan.decide(connection, plan, parameters))


def apply_decision(
    connection: Connection, plan: ChunkPlan, parameters: Mapping[str, Any], decision: Decision
) -> ChunkResult | None:
    """The same for a chunk of which some outcomes are decided; the others' records are changed."""
    return _result(connection, *_decided_statement(plan, parameters, decision))


def _decided_statement(
    plan: ChunkPlan, parameters: Mapping[str, Any], decision: Decision
) -> tuple[Executable, Mapping[str, Any]]:
    outcomes = {
        _p(f"decided_{part}"): [getattr(outcome, part) for outcome in decision.outcomes] for part in _OUTCOME_PARTS
    }
    return plan.deciding_statement, {**parameters, **decision.parameters, **outcomes}


def locked_records(plan: ChunkPlan, *columns: ColumnElement[Any]) -> Select[Any]:
    """These columns of the slice's records that the plan is to change, locked, in key order.

    No row unless the gate was passed. The lock is the one that the change itself takes.
    """
    types, key = plan.records.key_types, plan.records.key
    ordered = [one.collate("C") if kind is KeyType.TEXT else one for one, kind in zip(key, types, strict=True)]
    statement = _narrowed(plan, _sliced(types, _GATE), select(*columns).order_by(*ordered))
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
    columns = _sliced(key_types)
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
    return ChunkResult(row.cursor, row.changed, row.skipped, row.not_found, row.failed)


_GATE = (
    select(range_.c.next_seq.label("seq"))
    .where(
        range_.c.job_no == bindparam(_p("of_job")),
        range_.c.round == bindparam(_p("of_round")),
        range_.c.no == bindparam(_p("of_range")),
        range_.c.cursor == bindparam(_p("from_cursor")),
        range_.c.epoch == bindparam(_p("at_epoch")),
        range_.c.open,
    )
    .with_for_update()
    .cte(_p("gate"))
    .prefix_with("MATERIALIZED")
)


def _sliced(key_types: Sequence[KeyType], *passed: CTE) -> CTE:
    """The slice's key arrays, one column per key column; no row unless the gate was passed."""
    first, last = bindparam(_p("slice_from"), type_=Integer), bindparam(_p("slice_to"), type_=Integer)
    arrays = []
    for position, key_type in enumerate(key_types, 1):
        array = block.c[key_column(position, key_type)][first:last]
        if key_type is KeyType.TEXT:
            # so that a comparison takes the user's column's collation, which its index has
            texts = type_coerce(cast(array, ARRAY(Text())), Text()).collate("default")
            array = type_coerce(texts, ARRAY(Text()))
        arrays.append(array.label(f"key{position}"))
    statement = select(*arrays).where(
        block.c.selection_no == bindparam(_p("of_selection")), block.c.no == bindparam(_p("of_block"))
    )
    for gate in passed:
        statement = statement.where(select(literal(1)).select_from(gate).exists())
    return statement.cte(_p("slice")).prefix_with("MATERIALIZED")


def _decided() -> CTE:
    """The outcomes that are known before."""
    arrays = [bindparam(_p(f"decided_{part}"), type_=ARRAY(Text())) for part in _OUTCOME_PARTS]
    rows = unnested(arrays, _OUTCOME_PARTS, "one")
    return select(*(rows.c[part] for part in _OUTCOME_PARTS)).cte(_p("decided")).prefix_with("MATERIALIZED")


def _chain(plan: ChunkPlan, decided: CTE | None) -> Executable:
    types = plan.records.key_types
    names = [f"key{position}" for position in range(1, len(types) + 1)]
    slice_ = _sliced(types, _GATE)
    changed = _changed(plan, slice_, decided)
    tally = select(func.count().label("changed")).select_from(changed).cte(_p("tally")).prefix_with("MATERIALIZED")
    missing = _missing(plan, slice_, changed, tally, names, decided)
    reported = _reported(missing)
    counts = (
        select(
            _GATE.c.seq,
            tally.c.changed,
            func.count().filter(missing.c.kind == "skipped").label("skipped"),
            func.count().filter(missing.c.kind == "not_found").label("not_found"),
            func.count().filter(missing.c.kind == "failed").label("failed"),
        )
        .select_from(_GATE.join(tally, true()).outerjoin(missing, true()))
        .group_by(_GATE.c.seq, tally.c.changed)
        .cte(_p("counts"))
    )
    moved, written = _moved(counts), _written(counts)
    debts = [_debt(effect, number, changed) for number, effect in enumerate(plan.effects)]
    cleared = [_cleared(changed)] if plan.reopened else []
    return select(moved).add_cte(reported, written, *debts, *cleared)


def _cleared(changed: CTE) -> CTE:
    """Take back what an earlier round said of a record that is changed now."""
    return (
        delete(outcome)
        .where(outcome.c.job_no == bindparam(_p("of_job")), outcome.c.key.in_(select(changed.c.key)))
        .returning(outcome.c.key)
        .cte(_p("cleared"))
    )


def _narrowed(plan: ChunkPlan, slice_: CTE, statement: Any) -> Any:
    """A statement on the records' table, narrowed to the slice, the tenant and the condition."""
    records = plan.records
    table_columns = list(records.key)
    statement = statement.where(owned_by(records, plan.tenant), plan.condition)
    if len(table_columns) == 1:
        array_type = ARRAY(Text() if records.key_types[0] is KeyType.TEXT else KEY_TYPES[records.key_types[0]])
        keys = cast(select(slice_.c.key1).scalar_subquery(), array_type)
        return statement.where(table_columns[0] == func.any(keys))
    names = [f"key{position}" for position in range(1, len(table_columns) + 1)]
    # unnested in a subquery, so that its text has no collation of its own and the user's index serves
    rows = unnested([select(slice_.c[name]).scalar_subquery() for name in names], names, _p("wanted"))
    return statement.where(same_key(table_columns, [rows.c[name] for name in names], records.key_types))


def _changed(plan: ChunkPlan, slice_: CTE, decided: CTE | None) -> CTE:
    records = plan.records
    table_columns = list(records.key)
    text_key = key_text(table_columns, records.key_types)
    change = _narrowed(plan, slice_, plan.change)
    if decided is not None:
        change = change.where(~select(literal(1)).where(decided.c.key.collate("C") == text_key).exists())
    version = records.row_version + 1 if isinstance(plan.change, Delete) else records.row_version
    return change.returning(  # type: ignore[no-any-return]
        *(column.label(f"key{position}") for position, column in enumerate(table_columns, 1)),
        text_key.label("key"),
        cast(version, BigInteger).label("version"),
        *(effect.body.label(f"body{n}") for n, effect in enumerate(plan.effects) if effect.body is not None),
    ).cte(_p("changed"))


def _missing(plan: ChunkPlan, slice_: CTE, changed: CTE, tally: CTE, names: list[str], decided: CTE | None) -> CTE:
    """The slice's keys that were not changed: gone (or never the tenant's), no longer matching, or decided before."""
    types, records = plan.records.key_types, plan.records
    wanted = unnested([slice_.c[name] for name in names], names, _p("all_wanted"))
    keys = [wanted.c[name] for name in names]
    was_changed = select(literal(1)).where(same_key([changed.c[name] for name in names], keys, types)).exists()
    present = (
        select(literal(1))
        .select_from(records.table)
        .where(
            same_key(list(records.key), keys, types),
            owned_by(records, plan.tenant),
        )
        .exists()
    )
    text_key = key_text(keys, types)
    kind: ColumnElement[str] = case((present, "skipped"), else_="not_found")
    code: ColumnElement[str] = literal("", Text())
    reason: ColumnElement[str] = case((present, NO_LONGER_MATCHES), else_="")
    source = slice_.join(wanted, true())
    if decided is not None:
        kind, code, reason = (
            func.coalesce(one, other) for one, other in zip(list(decided.c)[1:], (kind, code, reason), strict=True)
        )
        source = source.outerjoin(decided, decided.c.key.collate("C") == text_key)
    return (
        select(text_key.label("key"), kind.label("kind"), code.label("code"), reason.label("reason"))
        .select_from(source)
        # without it, the anti-join would run for every chunk
        .where(select(tally.c.changed).scalar_subquery() < bindparam(_p("size"), type_=Integer), ~was_changed)
        .cte(_p("missing"))
        .prefix_with("MATERIALIZED")
    )


def _reported(missing: CTE) -> CTE:
    rows = select(
        bindparam(_p("of_job"), type_=BigInteger),
        missing.c.key,
        bindparam(_p("of_round"), type_=Integer),
        missing.c.kind,
        missing.c.code,
        missing.c.reason,
    )
    return _report(rows)


def _report(rows: Any) -> CTE:
    statement = upsert(outcome).from_select(["job_no", "key", "round", "kind", "code", "reason"], rows)
    return (
        statement.on_conflict_do_update(
            index_elements=[outcome.c.job_no, outcome.c.key],
            set_={name: statement.excluded[name] for name in ("round", "kind", "code", "reason")},
        )
        .returning(outcome.c.key)
        .cte(_p("reported"))
    )


_TO_CURSOR = bindparam(_p("to_cursor"), type_=BigInteger)


def _written(counts: CTE, to_cursor: ColumnElement[int] = _TO_CURSOR, **also: ColumnElement[Any]) -> CTE:
    columns = ["job_no", "round", "range_no", "seq", "lo", "hi", "epoch", "changed", "skipped", "failed", "not_found"]
    rows = select(
        bindparam(_p("of_job"), type_=BigInteger),
        bindparam(_p("of_round"), type_=Integer),
        bindparam(_p("of_range"), type_=Integer),
        counts.c.seq,
        bindparam(_p("from_cursor"), type_=BigInteger),
        to_cursor,
        bindparam(_p("at_epoch"), type_=BigInteger),
        counts.c.changed,
        counts.c.skipped,
        counts.c.failed,
        counts.c.not_found,
        *also.values(),
    )
    return insert(chunk).from_select([*columns, *also], rows).returning(chunk.c.seq).cte(_p("written"))


def _moved(counts: CTE, to_cursor: ColumnElement[int] = _TO_CURSOR, **also: ColumnElement[Any]) -> CTE:
    """Move cursor and counters; deaths are over where the records that they were about are passed."""
    suspects_passed = to_cursor >= func.coalesce(range_.c.suspect_to, 0)
    return (
        update(range_)
        .where(
            range_.c.job_no == bindparam(_p("of_job")),
            range_.c.round == bindparam(_p("of_round")),
            range_.c.no == bindparam(_p("of_range")),
            counts.c.seq == range_.c.next_seq,
        )
        .values(
            cursor=to_cursor,
            next_seq=range_.c.next_seq + 1,
            # what fitted: an attempt after a kill begins with it
            chunk_size=bindparam(_p("size"), type_=Integer),
            deaths=case((suspects_passed, 0), else_=range_.c.deaths),
            troubled_since=None,
            changed=range_.c.changed + counts.c.changed,
            skipped=range_.c.skipped + counts.c.skipped,
            failed=range_.c.failed + counts.c.failed,
            not_found=range_.c.not_found + counts.c.not_found,
            **also,
        )
        .returning(
            range_.c.cursor,
            *(range_.c[name] for name in also),
            counts.c.changed,
            counts.c.skipped,
            counts.c.not_found,
            counts.c.failed,
        )
        .cte(_p("moved"))
    )


def _debt(effect: OwedEffect, number: int, changed: CTE, gate: CTE = _GATE) -> CTE:
    body = func.array_agg(changed.c[f"body{number}"]) if effect.body is not None else cast(null(), ARRAY(Text()))
    rows = (
        select(
            bindparam(_p("of_job"), type_=BigInteger),
            bindparam(_p("of_round"), type_=Integer),
            bindparam(_p("of_range"), type_=Integer),
            select(gate.c.seq).scalar_subquery(),
            literal(effect.name, Text()),
            literal(effect.channel, Text()),
            func.array_agg(changed.c.key),
            func.array_agg(changed.c.version),
            body,
            func.count(),
        )
        .select_from(changed)
        .having(func.count() > 0)
    )
    columns = ["job_no", "round", "range_no", "seq", "effect", "channel", "keys", "versions", "bodies", "size"]
    return insert(owed).from_select(columns, rows).returning(owed.c.seq).cte(_p(f"owed{number}"))


def _fail_chain() -> Executable:
    rows = select(
        bindparam(_p("of_job"), type_=BigInteger),
        bindparam(_p("bad_key"), type_=Text()),
        bindparam(_p("of_round"), type_=Integer),
        literal("failed", Text()),
        bindparam(_p("bad_code"), type_=Text()),
        bindparam(_p("bad_reason"), type_=Text()),
    ).select_from(_GATE)
    zero = literal(0, Integer)
    counts = select(
        _GATE.c.seq,
        zero.label("changed"),
        zero.label("skipped"),
        zero.label("not_found"),
        literal(1, Integer).label("failed"),
    ).cte(_p("counts"))
    return select(_moved(counts)).add_cte(_report(rows), _written(counts))


_FAIL = _fail_chain()

# what the chain of a live chunk shares (database/live_chain.py)
parameter, cleared, debt, moved, report, written = _p, _cleared, _debt, _moved, _report, _written
