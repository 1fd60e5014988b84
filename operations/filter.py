"""Filters: a small language over the fields that an operation publishes, read into a condition.

{"field": "origin", "op": "=", "value": "EWR"}      =, !=, <, <=, >, >=, in, is_null
{"and": [...]}   {"or": [...]}   {"not": {...}}
"""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Column, ColumnElement, and_, not_, or_

from bulklane.contracts.key import InvalidKey, KeyType, parse_value
from bulklane.operations.operation import key_type_of

DEEPEST = 20
LONGEST_LIST = 1000

_COMPARISONS: Mapping[str, Callable[[Any, Any], ColumnElement[bool]]] = {
    "=": lambda column, value: column == value,
    "!=": lambda column, value: column != value,
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


def read_filter(
    spec: object, fields: Mapping[str, Column[Any]], path: str = "filter", depth: int = 0
) -> ColumnElement[bool]:
    """The condition of a filter; raises InvalidFilter. Text is compared byte for byte, times are instants."""
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
        read = [read_filter(part, fields, f"{path}.{word}[{n}]", depth + 1) for n, part in enumerate(parts)]
        return and_(*read) if word == "and" else or_(*read)
    if keys == {"not"}:
        return not_(read_filter(spec["not"], fields, f"{path}.not", depth + 1))
    return _read_comparison(spec, fields, path)


def _read_comparison(spec: Mapping[str, Any], fields: Mapping[str, Column[Any]], path: str) -> ColumnElement[bool]:
    if not set(spec) <= {"field", "op", "value"} or "field" not in spec:
        raise InvalidFilter(
            path, f"knows field, op and value, or one of and, or, not; not {', '.join(sorted(map(str, spec)))}"
        )
    column = fields.get(spec["field"]) if isinstance(spec["field"], str) else None
    if column is None:
        raise InvalidFilter(f"{path}.field", f"{spec['field']!r} is not one of {', '.join(fields) or 'none'}")
    op, value = spec.get("op", "="), spec.get("value")
    if op == "is_null":
        if value not in (True, False) or not isinstance(value, bool):
            raise InvalidFilter(f"{path}.value", "is_null takes true or false")
        return column.is_(None) if value else column.is_not(None)
    key_type = key_type_of(column)
    compared = column.collate("C") if key_type is KeyType.TEXT else column
    if op == "in":
        if not isinstance(value, list) or not 1 <= len(value) <= LONGEST_LIST:
            raise InvalidFilter(f"{path}.value", f"in takes a list of 1 to {LONGEST_LIST} values; use ids for more")
        return compared.in_([_value(one, key_type, f"{path}.value[{n}]") for n, one in enumerate(value)])
    comparison = _COMPARISONS.get(op) if isinstance(op, str) else None
    if comparison is None:
        raise InvalidFilter(f"{path}.op", f"{op!r} is not one of {', '.join(_COMPARISONS)}, in, is_null")
    return comparison(compared, _value(value, key_type, f"{path}.value"))


def _value(value: object, key_type: KeyType, path: str) -> Any:
    try:
        return parse_value(value, key_type)
    except InvalidKey as error:
        raise InvalidFilter(path, str(error)) from None
