"""What a function answered for a column, held against it: the chunk statement casts whole arrays of such values, and
a cast bends in silence what PostgreSQL would refuse or what can't be meant.
"""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Column, DateTime, Enum, Integer, String, TypeDecorator


class UnfitValue(TypeError):
    """A value that can't be meant for its column; the message names column, rule and record, not the value."""

    def __init__(self, column: Column[Any], rule: str, record: Mapping[str, Any], key: list[Any]) -> None:
        where = ", ".join(str(record[part.key]) for part in key)
        super().__init__(f"the function set {column.key} to {rule} (record {where})")


def unfit(column: Column[Any], value: Any) -> str:
    """Why a value, as the driver gets it, doesn't fit the column; empty where it does."""
    if isinstance(value, list):
        # an array of arrays is spread over the records: each would get a piece of another's
        return "a list"
    kind = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
    if isinstance(kind, Integer) and isinstance(value, (float, Decimal)) and value % 1 != 0:
        return "a number with a fraction, which would be rounded"
    if isinstance(kind, String) and not isinstance(kind, Enum) and isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes, which are no text"
    if isinstance(kind, DateTime) and isinstance(value, datetime):
        return _wrong_offset(kind, value)
    return ""


def _wrong_offset(kind: DateTime, value: datetime) -> str:
    """Either way the session's time zone would say what is meant."""
    if kind.timezone and value.utcoffset() is None:
        return "a time without offset, which is no instant"
    if not kind.timezone and value.utcoffset() is not None:
        return "a time with an offset, and the column has no time zone"
    return ""
