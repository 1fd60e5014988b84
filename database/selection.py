"""Selections: stored as asked for, then frozen into blocks of keys in key order, and cut into ranges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    bindparam,
    cast,
    func,
    insert,
    literal,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by

from bulklane.contracts.key import Key, KeyType
from bulklane.database.record import RecordSet, owned_by
from bulklane.database.tables import block, key_column, range_, selection

BLOCK_SIZE = 5000


class SelectionState(StrEnum):
    """Whether the keys are known yet; of a live one, its bound."""

    STATED = "stated"
    FROZEN = "frozen"
    BOUNDED = "bounded"


@dataclass(frozen=True)
class StoredSelection:
    """A selection as it stands in the database; `total` is None until it is frozen, or bounded where it is live."""

    selection_no: int
    kind: str
    spec: Mapping[str, Any]
    key_types: tuple[KeyType, ...]
    state: SelectionState
    total: int | None
    duplicates: int
    selected_at: datetime | None
    epoch: int = 0
    owed_at_freeze: int | None = None
    live: bool = False

    @property
    def stated(self) -> bool:
        """Whether it has still to be frozen or bounded."""
        return self.state is SelectionState.STATED


@dataclass(frozen=True)
class Slice:
    """The ordinals `lo` to `hi` (exclusive) of a frozen selection; all in one block."""

    selection_no: int
    lo: int
    hi: int


_INSERT = insert(selection).returning(selection.c.selection_no)
_READ = select(selection).where(selection.c.selection_no == bindparam("selection_no"))
_LOCK = _READ.with_for_update()
_SET_SELECTED = (
    update(selection)
    .where(selection.c.selection_no == bindparam("number"))
    .values(
        state=bindparam("as"),
        total=bindparam("records"),
        # a search has selected when it began, not when the last page was stored
        selected_at=func.coalesce(selection.c.selected_at, func.clock_timestamp()),
    )
)


def insert_selection(
    connection: Connection,
    *,
    kind: str,
    spec: Mapping[str, Any],
    key_types: Sequence[KeyType],
    duplicates: int = 0,
    live: bool = False,
) -> int:
    """Store a selection that isn't frozen yet; its number."""
    return int(
        connection.execute(
            _INSERT,
            {
                "kind": kind,
                "spec": spec,
                "key_types": [str(key_type) for key_type in key_types],
                "state": SelectionState.STATED,
                "duplicates": duplicates,
                "live": live,
            },
        ).scalar_one()
    )


def lock_selection(connection: Connection, selection_no: int) -> StoredSelection:
    """The selection, locked, so that only one freezes it."""
    return _stored(connection.execute(_LOCK, {"selection_no": selection_no}).one())


def read_selection(connection: Connection, selection_no: int) -> StoredSelection:
    """The selection, not locked."""
    return _stored(connection.execute(_READ, {"selection_no": selection_no}).one())


def freeze_keys(connection: Connection, selection_no: int, key_types: Sequence[KeyType], keys: Sequence[Key]) -> int:
    """Store distinct keys, which must be in key order, as blocks; how many there are."""
    names = [key_column(position, key_type) for position, key_type in enumerate(key_types, 1)]
    rows = [
        {
            "selection_no": selection_no,
            "no": start // BLOCK_SIZE,
            "size": len(keys[start : start + BLOCK_SIZE]),
            **dict(zip(names, map(list, zip(*keys[start : start + BLOCK_SIZE], strict=True)), strict=True)),
        }
        for start in range(0, len(keys), BLOCK_SIZE)
    ]
    if rows:
        connection.execute(insert(block), rows)
    return set_selected(connection, selection_no, SelectionState.FROZEN, len(keys))


def count_matching(
    connection: Connection, records: RecordSet, tenant: str, condition: ColumnElement[bool], most: int
) -> int:
    """How many of the tenant's records match, counted up to `most` + 1."""
    few = select(literal(1)).select_from(records.table).where(_matches(records, tenant, condition)).limit(most + 1)
    return int(connection.execute(select(func.count()).select_from(few.subquery())).scalar_one())


def freeze_matching(
    connection: Connection, selection_no: int, records: RecordSet, tenant: str, condition: ColumnElement[bool]
) -> int:
    """Store the keys of the tenant's records that match now, as one statement; how many there are."""
    return freeze_selected(connection, selection_no, records.key_types, matching_keys(records, tenant, condition))


def matching_keys(records: RecordSet, tenant: str, condition: ColumnElement[bool]) -> Select[Any]:
    """The keys of the tenant's records that match now, as `key1`, `key2`, ..."""
    keys = (column.label(f"key{position}") for position, column in enumerate(records.key, 1))
    return select(*keys).where(_matches(records, tenant, condition))


def freeze_selected(connection: Connection, selection_no: int, key_types: Sequence[KeyType], keys: Select[Any]) -> int:
    """Store the keys of a query with the columns `key1`, `key2`, ..., which must be distinct; how many there are."""
    wanted = keys.subquery("wanted")
    columns = [wanted.c[f"key{position}"] for position in range(1, len(key_types) + 1)]
    ordered = [
        column.collate("C") if key_type is KeyType.TEXT else column
        for column, key_type in zip(columns, key_types, strict=True)
    ]
    ordinal = (func.row_number().over(order_by=ordered) - 1).label("ordinal")
    numbered = select(*columns, ordinal).subquery("numbered")
    names = [key_column(position, key_type) for position, key_type in enumerate(key_types, 1)]
    blocks = select(
        literal(selection_no, BigInteger),
        cast(numbered.c.ordinal // BLOCK_SIZE, Integer),
        func.count(),
        *(
            cast(
                func.array_agg(aggregate_order_by(numbered.c[f"key{position}"], numbered.c.ordinal)),
                block.c[name].type,
            )
            for position, name in enumerate(names, 1)
        ),
    ).group_by(literal_column("2"))
    connection.execute(insert(block).from_select(["selection_no", "no", "size", *names], blocks))
    total = select(func.coalesce(func.sum(block.c.size), 0)).where(block.c.selection_no == selection_no)
    counted = int(connection.execute(total).scalar_one())
    return set_selected(connection, selection_no, SelectionState.FROZEN, counted)


def keys_between(
    connection: Connection, selection_no: int, key_types: Sequence[KeyType], low: int, high: int
) -> list[Key]:
    """The frozen keys at the ordinals `low` to `high` (exclusive)."""
    names = [key_column(position, key_type) for position, key_type in enumerate(key_types, 1)]
    statement = (
        select(block.c.no, *(block.c[name] for name in names))
        .where(
            block.c.selection_no == selection_no,
            block.c.no.between(low // BLOCK_SIZE, max(low, high - 1) // BLOCK_SIZE),
        )
        .order_by(block.c.no)
    )
    keys: list[Key] = []
    for row in connection.execute(statement):
        first = row.no * BLOCK_SIZE
        columns = [getattr(row, name)[max(0, low - first) : high - first] for name in names]
        keys.extend(zip(*columns, strict=True))
    return keys


def slice_at(selection_no: int, cursor: int, hi: int, size: int) -> Slice:
    """The next slice at a cursor: at most `size` records, within the range and one block."""
    return Slice(selection_no, cursor, min(hi, cursor + size, (cursor // BLOCK_SIZE + 1) * BLOCK_SIZE))


def cut_ranges(connection: Connection, *, job_no: int, round_no: int, total: int, parallelism: int) -> int:
    """Cut a frozen selection into even ranges; how many there are, at least one."""
    count = max(1, min(parallelism, total))
    bounds = [total * number // count for number in range(count + 1)]
    rows = [
        {"job_no": job_no, "round": round_no, "no": number, "lo": low, "cursor": low, "hi": high}
        for number, (low, high) in enumerate(pairwise(bounds))
    ]
    connection.execute(insert(range_), rows)
    return count


def _matches(records: RecordSet, tenant: str, condition: ColumnElement[bool]) -> ColumnElement[bool]:
    return owned_by(records, tenant) & condition


def set_selected(connection: Connection, selection_no: int, state: SelectionState, total: int) -> int:
    """Note that the selection is made now, and of how many records; that number."""
    connection.execute(_SET_SELECTED, {"number": selection_no, "as": state, "records": total})
    return total


def _stored(row: Any) -> StoredSelection:
    return StoredSelection(
        selection_no=row.selection_no,
        kind=row.kind,
        spec=row.spec,
        key_types=tuple(KeyType(name) for name in row.key_types),
        state=SelectionState(row.state),
        total=row.total,
        duplicates=row.duplicates,
        selected_at=row.selected_at,
        epoch=row.epoch,
        owed_at_freeze=row.owed_at_freeze,
        live=row.live,
    )
