"""Turns the two ways to write an operation into what the chunk transaction knows: a change, and perhaps a decision."""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Delete, Update
from sqlalchemy.exc import InvalidRequestError

from bulklane.database.record_change import NotChanged, RecordChange, RecordFunction
from bulklane.database.written import written_columns
from bulklane.operations.operation import Operation, OperationError
from bulklane.operations.per_record import Answer, Fail, PerRecord, Record, Skip, answering

Decide = Callable[..., Any]


def change_of(operation: Operation, parameters: Any) -> tuple[Update | Delete, Decide | None]:
    """The statement that changes records, the row version moved where that is ours to do; and what decides before.

    Raises OperationError for a statement that can't be extended.
    """
    if isinstance(operation, PerRecord):
        function = _asked(answering(operation, parameters))
        written = RecordChange(operation.records, operation.writes, function)
        return _moved(operation, written.statement), written.decide
    change = operation.change(parameters)
    return (_moved(operation, change) if isinstance(change, Update) else change), None


def _moved(operation: Operation, change: Update) -> Update:
    """With the row version moved by one, whatever the statement itself says of it."""
    version = operation.records.row_version
    if operation.records.row_version_by != "application":
        return change
    # as the statement names it: SQLAlchemy would take another name for another column
    name = next((name for name, column in written_columns(change).items() if column is version), version)
    try:
        return change.values({name: version + 1})
    except InvalidRequestError as error:
        raise OperationError(
            f"the change of {operation.name!r} has ordered_values(), and Bulklane has to move {version.name} in it:"
            " use values()"
        ) from error


def _asked(answer: Callable[[Record], Answer]) -> RecordFunction:
    def ask(record: Mapping[str, Any]) -> Mapping[str, Any] | NotChanged:
        match answer(record):
            case Skip(reason):
                return NotChanged("skipped", "", reason)
            case Fail(code, reason):
                return NotChanged("failed", code, reason)
            case values:
                return values

    return ask
