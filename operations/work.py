"""What an operation does to a chunk's records with its parameters, in pieces from which the chunk plan is composed.

The walk and the preview compose it of the same pieces, so that they can't differ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, ColumnElement, Delete, Text, Update, cast, func
from sqlalchemy.exc import InvalidRequestError

from bulklane.operations.operation import CallEffect, Effect, Operation, OperationError, Records
from bulklane.operations.per_record import Answer, PerRecord, Record, answering


@dataclass(frozen=True)
class Owing:
    """An effect that each changed record owes; `body` is evaluated on the changed row, or None."""

    name: str
    channel: str
    body: ColumnElement[str] | None


@dataclass(frozen=True)
class Work:
    """Either `change`, one statement with the row version moved where that is ours to do, or `function`.

    `writes`: the columns that the function may set.
    """

    records: Records
    change: Update | Delete | None
    function: Callable[[Record], Answer] | None
    writes: Sequence[Column[Any]]
    effects: Sequence[Owing]


def work_of(operation: Operation, parameters: Any) -> Work:
    """The operation's work with these parameters. Raises OperationError for a statement that can't be extended."""
    effects = [_owing(effect) for effect in operation.effects]
    if isinstance(operation, PerRecord):
        return Work(operation.records, None, answering(operation, parameters), operation.writes, effects)
    change = operation.change(parameters)
    _check_written(operation, change)
    if isinstance(change, Update) and operation.records.row_version_by == "application":
        change = _moved(operation, change)
    return Work(operation.records, change, None, (), effects)


def _check_written(operation: Operation, change: Update | Delete) -> None:
    """Raise OperationError where the statement sets a key column or the tenant: a record would be another one then."""
    if not isinstance(change, Update):
        return
    records = operation.records
    ours = {**dict.fromkeys(records.key, "a key column"), records.tenant: "the tenant column"}
    for column in _set_columns(change).values():
        if isinstance(column, Column) and column in ours:
            raise OperationError(
                f"the change of {operation.name!r} sets `{column.name}`, {ours[column]}: what was selected could no"
                " longer be told from other records; delete the record and make another one, outside of Bulklane"
            )


def _set_columns(change: Update) -> dict[Any, Any]:
    """By the name (or column) under which the statement sets them."""
    # SQLAlchemy has no public way to ask
    return {name: change.table.c.get(name) if isinstance(name, str) else name for name in change._values or {}}


def _moved(operation: Operation, change: Update) -> Update:
    """With the row version moved by one, whatever the statement itself says of it."""
    version = operation.records.row_version
    # as the statement names it: SQLAlchemy would take another name for another column
    name: Any = next((name for name, column in _set_columns(change).items() if column is version), version)
    try:
        return change.values({name: version + 1})
    except InvalidRequestError as error:
        raise OperationError(
            f"the change of {operation.name!r} has ordered_values(), and Bulklane has to move {version.name} in it:"
            " use values()"
        ) from error


def _owing(effect: Effect) -> Owing:
    if not isinstance(effect, CallEffect):
        return Owing(effect.name, effect.channel, None)
    pairs = [part for name, column in effect.body.items() for part in (name, column)]
    # evaluated on the changed row and stored as text: the same bytes on every attempt, whatever is deployed since
    return Owing(effect.name, effect.channel, cast(func.jsonb_build_object(*pairs), Text()))
