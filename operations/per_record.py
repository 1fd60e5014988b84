"""Operations written as a function of one record; Bulklane turns a chunk's answers into one statement."""

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import ARRAY, Column

from bulklane.contracts.key import Key, format_key, shown
from bulklane.operations.operation import Operation, OperationError

LONGEST_CODE = 100

Record = Mapping[str, Any]
"""One record: every column of the table by its key in `table.c`; it can only be read."""


@dataclass(frozen=True)
class Skip:
    """The record stays as it is; the reason is stored, shown, and part of histories: no record content in it."""

    reason: str
    kind: ClassVar[str] = "skipped"
    code: ClassVar[str] = ""


@dataclass(frozen=True)
class Fail:
    """The record can't be changed and counts as failed, so that a retry takes it again. No record content in it."""

    code: str
    reason: str
    kind: ClassVar[str] = "failed"


Answer = Mapping[str, Any] | Skip | Fail
UNCHANGED = Skip("nothing to change")


class PerRecord(Operation):
    """A bulk change that is written as a function of one record, where a single statement can't say it.

    Write `change_record` instead of `change`, and name in `writes` the columns that it may set. Effects, tenant,
    condition and row version are as with a statement. A per-record operation can't delete: `change` can.
    """

    writes: ClassVar[Sequence[Column[Any]]]
    """The columns of `records.table` that `change_record` may set."""

    def change_record(self, record: Record, parameters: Any) -> Answer:
        """The record's new values by column key, `Skip(reason)` or `Fail(code, reason)`.

        A column that isn't among the values stays as it is; no values at all is a skip. It is called inside the
        chunk's transaction while the record is locked, and again where a chunk is tried again: no I/O, no clock, no
        memory of other records. An exception is a bug of the operation, never the record's failure.
        """
        raise NotImplementedError


def answering(operation: PerRecord, parameters: Any) -> Callable[[Record], Answer]:
    """`change_record` with its answer checked; raises OperationError for one that can't be meant."""
    may_write = {column.key for column in operation.writes}

    def answer(record: Record) -> Answer:
        try:
            found = operation.change_record(record, parameters)
        except Exception as error:
            raise _bug(operation, record, f"raised {type(error).__name__} at {place_of(error)}") from error
        if isinstance(found, (Skip, Fail)):
            return found
        if not isinstance(found, Mapping):
            raise _bug(operation, record, f"returned {_kind(found)}; it returns new values by column, Skip or Fail")
        if unknown := [name for name in found if name not in may_write]:
            allowed = ", ".join(column.key for column in operation.writes)
            raise _bug(operation, record, f"set {shown(unknown[0])}, which is not in `writes` ({allowed})")
        return found or UNCHANGED

    return answer


def check_way(operation: Operation) -> None:
    """Raise OperationError where it isn't clear which of the two ways an operation is written in."""
    kind: Any = type(operation)
    has_statement = kind.change is not Operation.change
    if not isinstance(operation, PerRecord):
        if hasattr(operation, "change_record"):
            raise OperationError(f"the operation {operation.name!r} has `change_record`: derive it from PerRecord")
        if not has_statement:
            raise OperationError(f"the operation {operation.name!r} has no `change`")
        return
    if has_statement:
        raise OperationError(
            f"the operation {operation.name!r} is PerRecord and has `change` too: write `change_record`, or derive"
            " it from Operation"
        )
    if kind.change_record is PerRecord.change_record or inspect.iscoroutinefunction(operation.change_record):
        raise OperationError(f"the operation {operation.name!r} needs a plain method `change_record`, not async")
    _check_writes(operation)


def _check_writes(operation: PerRecord) -> None:
    columns = getattr(operation, "writes", ())
    if not columns:
        raise OperationError(f"the operation {operation.name!r} has no `writes`: name the columns that it may set")
    records = operation.records
    ours = {**dict.fromkeys(records.key, "a key column"), records.tenant: "the tenant column"}
    ours[records.row_version] = "the row version, which moves by itself"
    for column in columns:
        rule = ours.get(column) if isinstance(column, Column) else None
        if not isinstance(column, Column) or column.table is not records.table:
            rule = f"no column of {records.table.name}"
        elif column.computed is not None:
            rule = "a generated column"
        elif isinstance(column.type, ARRAY):
            rule = "an array: write the operation as one statement (`change`)"
        if rule:
            raise OperationError(f"`writes` of the operation {operation.name!r} names {column}, {rule}")


def _bug(operation: PerRecord, record: Record, what: str) -> OperationError:
    key: Key = tuple(record[column.key] for column in operation.records.key)
    return OperationError(f"change_record of {operation.name!r} {what} (record {format_key(key)})")


def place_of(error: Exception) -> str:
    """File and line of the innermost frame: an exception's text may hold record content, its place can't."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _kind(found: object) -> str:
    return "nothing" if found is None else f"a {type(found).__name__}"
