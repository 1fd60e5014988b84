"""Filters: a small language over the fields that an operation publishes, read into a condition.

{"field": "origin", "op": "=", "value": "EWR"}      =, !=, <, <=, >, >=, in, is_null
{"and": [...]}   {"or": [...]}   {"not": {...}}
"""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    DateTime,
    Enum,
    Text,
    Uuid,
    and_,
    cast,
    false,
    func,
    literal,
    not_,
    or_,
)
from sqlalchemy import any_ as any_of
from sqlalchemy.types import TypeEngine

from bulklane.contracts.key import InvalidKey, KeyType, parse_value, shown
from bulklane.operations.operation import key_type_of

DEEPEST = 20
LONGEST_LIST = 1000
MOST_COMPARISONS = 1000

# a value's own type, not the column's: one that no integer column can hold must match nothing, and not fail
_VALUE_TYPES: Mapping[KeyType, TypeEngine[Any]] = {
    KeyType.BIGINT: BigInteger(),
    KeyType.TEXT: Text(),
    KeyType.UUID: Uuid(),
    KeyType.TIMESTAMPTZ: DateTime(timezone=True),
}

_COMPARISONS: Mapping[str, Callable[[Any, Any], ColumnElement[bool]]] = {
    "=": lambda column, value: column == value,
    # NULL is another value than any that can be named
    "!=": lambda column, value: column.is_distinct_from(value),
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
}


class InvalidFilter(ValueError):
    """A filter that can't be read; `path` says where."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


def read_filter(spec: object, fields: Mapping[str, Column[Any]], path: str = "filter") -> ColumnElement[bool]:
    """The condition of a filter; raises InvalidFilter. Text is compared byte for byte, times are instants."""
    if _comparisons(spec) > MOST_COMPARISONS:
        raise InvalidFilter(path, f"a filter has at most {MOST_COMPARISONS} comparisons; use in, or ids")
    return _read(spec, fields, path, 0)


def _comparisons(spec: object) -> int:
    """How many there are; no recursion, since nothing has bounded the depth yet."""
    count, rest = 0, [spec]
    while rest:
        one = rest.pop()
        if isinstance(one, list):
            rest.extend(one)
        elif isinstance(one, Mapping) and "field" not in one:
            rest.extend(one.values())
        else:
            count += 1
    return count


def _read(spec: object, fields: Mapping[str, Column[Any]], path: str, depth: int) -> ColumnElement[bool]:
    if depth > DEEPEST:
        raise InvalidFilter(path, f"a filter is nested at most {DEEPEST} deep")
    if not isinstance(spec, Mapping) or not spec:
        raise InvalidFilter(
            path, 'a filter is an object like {"field": ..., "op": "=", "value": ...}; "all": true selects all'
        )
    keys = set(spec)
    if keys in ({"and"}, {"or"}):
        (word,) = keys
        parts = spec[word]
        if not isinstance(parts, list) or not parts:
            raise InvalidFilter(f"{path}.{word}", "needs a list of at least one filter")
        read = [_read(part, fields, f"{path}.{word}[{n}]", depth + 1) for n, part in enumerate(parts)]
        return and_(*read) if word == "and" else or_(*read)
    if keys == {"not"}:
        # so that a filter and its opposite are all records: where NULL is compared, the comparison doesn't hold
        return not_(func.coalesce(_read(spec["not"], fields, f"{path}.not", depth + 1), false()))
    return _read_comparison(spec, fields, path)


def _read_comparison(spec: Mapping[str, Any], fields: Mapping[str, Column[Any]], path: str) -> ColumnElement[bool]:
    if not set(spec) <= {"field", "op", "value"} or "field" not in spec:
        raise InvalidFilter(
            path, f"knows field, op and value, or one of and, or, not; not {', '.join(sorted(map(shown, spec))[:5])}"
        )
    column = fields.get(spec["field"]) if isinstance(spec["field"], str) else None
    if column is None:
        raise InvalidFilter(f"{path}.field", f"{shown(spec['field'])} is not one of {', '.join(fields) or 'none'}")
    op, value = spec.get("op", "="), spec.get("value")
    if op == "is_null":
        if value not in (True, False) or not isinstance(value, bool):
            raise InvalidFilter(f"{path}.value", "is_null takes true or false")
        return column.is_(None) if value else column.is_not(None)
    key_type = key_type_of(column)
    if op == "in":
        if not isinstance(value, list) or not 1 <= len(value) <= LONGEST_LIST:
            raise InvalidFilter(f"{path}.value", f"in takes a list of 1 to {LONGEST_LIST} values; use ids for more")
        values = [_value(one, key_type, f"{path}.value[{n}]") for n, one in enumerate(value)]
        return _equal(column, key_type, any_of(literal(values, ARRAY(_VALUE_TYPES[key_type]))))
    comparison = _COMPARISONS.get(op) if isinstance(op, str) else None
    if comparison is None:
        raise InvalidFilter(f"{path}.op", f"{shown(op)} is not one of {', '.join(_COMPARISONS)}, in, is_null")
    other = literal(_value(value, key_type, f"{path}.value"), _VALUE_TYPES[key_type])
    if op == "=":
        return _equal(column, key_type, other)
    return comparison(_bytewise(column) if key_type is KeyType.TEXT else column, other)


def _equal(column: Column[Any], key_type: KeyType, other: ColumnElement[Any]) -> ColumnElement[bool]:
    """Text twice: under the column's own collation, which its index has, and byte for byte."""
    if key_type is not KeyType.TEXT or isinstance(column.type, Enum):
        return (_bytewise(column) if key_type is KeyType.TEXT else column) == other
    return and_(column == other, _bytewise(column) == other)


def _bytewise(column: Column[Any]) -> ColumnElement[Any]:
    # an enum has no collation
    return (cast(column, Text()) if isinstance(column.type, Enum) else column).collate("C")


def _value(value: object, key_type: KeyType, path: str) -> Any:
    try:
        return parse_value(value, key_type)
    except InvalidKey as error:
        raise InvalidFilter(path, str(error)) from None
