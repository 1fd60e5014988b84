"""The key space: a record's place in the order of its key, as one range of the index that has it."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, bindparam, tuple_

from bulklane.contracts.key import Key
from bulklane.database.record import RecordSet
from bulklane.database.record import own_name as parameter


def after(records: RecordSet, key: Sequence[ColumnElement[Any]]) -> ColumnElement[bool]:
    """Whether a record comes after a key. As a comparison of rows it is one range of the index."""
    beyond: ColumnElement[bool] = _row(records.key) > _row(key)
    return beyond


def up_to(records: RecordSet, key: Sequence[ColumnElement[Any]]) -> ColumnElement[bool]:
    """Whether a record comes before a key, or is it."""
    within: ColumnElement[bool] = _row(records.key) <= _row(key)
    return within


def bound_key(records: RecordSet, name: str) -> list[ColumnElement[Any]]:
    """A key's columns as parameters."""
    return [bindparam(parameter(f"{name}{n}"), type_=column.type) for n, column in enumerate(records.key, 1)]


def key_values(name: str, key: Key | None) -> dict[str, Any]:
    """The values of these parameters."""
    return {parameter(f"{name}{n}"): value for n, value in enumerate(key or (), 1)}


def _row(columns: Sequence[ColumnElement[Any]]) -> Any:
    return columns[0] if len(columns) == 1 else tuple_(*columns)
