"""Whether a change may be walked live: it must not write what the walk goes by or selects by.

What it writes is read from its statement, not from a declaration. A frozen selection needs none of this.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Delete, Table, Update
from sqlalchemy.sql import visitors
from sqlalchemy.sql.dml import UpdateBase
from sqlalchemy.sql.elements import ColumnClause

from bulklane.operations.operation import Operation, OperationError, Records
from bulklane.operations.per_record import PerRecord

WAY_OUT = "leave `live` out: a frozen selection takes every record once, wherever it moves"


class NotLive(OperationError):
    """A change that can't be walked live; the message names the operation, the column and the way out."""


def columns_read(condition: ColumnElement[bool]) -> list[Column[Any]]:
    """The columns that a condition names, each once, in their order."""
    found = (part for part in visitors.iterate(condition) if isinstance(part, Column))
    return list(dict.fromkeys(found))


def check_live(name: str, change: Any, records: Records, condition: ColumnElement[bool]) -> None:
    """Raise NotLive where the operation's change writes a key column or one that the filter reads, or may do so."""
    if isinstance(change, Delete):
        return
    if not isinstance(change, Update):
        raise NotLive(f"{name} isn't one statement, so what it writes can't be known beforehand; {WAY_OUT}")
    _refuse(name, _written(name, change, records), records, condition)


def _refuse(name: str, written: set[str], records: Records, condition: ColumnElement[bool]) -> None:
    read = {column.name: f"its filter reads `{column.name}`" for column in columns_read(condition)}
    walked = {column.name: f"`{column.name}` is a key column" for column in records.key}
    for column, why in (read | walked).items():
        if column in written:
            raise NotLive(
                f"{name} writes `{column}` and {why}: a record could move out of the walk's way, or into it"
                f" again; {WAY_OUT}"
            )


def check_operation_live(operation: Operation, parameters: Any, condition: ColumnElement[bool]) -> None:
    """The same for an operation and its parameters, as they stand in a request."""
    records = operation.records
    if isinstance(operation, PerRecord):
        # whatever else its function answers is refused before it is written
        written = {column.name for column in operation.writes}
        _refuse(operation.name, written | _moved_by_itself(records), records, condition)
        return
    is_statement = type(operation).change is not Operation.change
    change = operation.change(parameters) if is_statement else None
    check_live(operation.name, change, records, condition)


def _written(name: str, change: Update, records: Records) -> set[str]:
    """The names of the columns that the statement sets, by its own words or by its columns' `onupdate`."""
    table = records.table
    nested = any(isinstance(part, UpdateBase) and part is not change for part in visitors.iterate(change))
    # SQLAlchemy has no public way to a statement's values; a test holds every way to set them against this one
    values: Mapping[Any, Any] = change._values or {}
    if nested or not values or change.table is not table:
        raise NotLive(f"what {name} writes can't be read from its statement; {WAY_OUT}")
    columns = {column.name for target in values for column in _columns_of(name, target, table)}
    return columns | _moved_by_itself(records)


def _moved_by_itself(records: Records) -> set[str]:
    """The names of the columns that every UPDATE moves."""
    columns = (one for one in records.table.c if one.onupdate is not None or one.server_onupdate is not None)
    return {one.name for one in columns} | {records.row_version.name}


def _columns_of(name: str, target: Any, table: Table) -> Sequence[Column[Any]]:
    """The columns of one target of SET: a column, its name, or an expression on it such as an array's element."""
    if isinstance(target, str):
        names = [target]
    else:
        parts = [part for part in visitors.iterate(target) if isinstance(part, ColumnClause)]
        # PostgreSQL folds what is written as SQL
        names = [part.key for part in parts if not part.is_literal or part.key == part.key.lower()]
    columns = [table.c[one] for one in names if one in table.c]
    if not columns:
        raise NotLive(f"{name} sets {str(target)[:80]!r}, which is none of the columns of {table.name}; {WAY_OUT}")
    return columns
