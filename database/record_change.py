"""A change written as a function of one record: the chunk's records are read and locked, asked one by one, and what
comes of it is one UPDATE in the same chunk statement.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

from sqlalchemy import (
    ARRAY,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Enum,
    Float,
    Numeric,
    String,
    Text,
    TypeDecorator,
    Update,
    bindparam,
    case,
    cast,
    update,
)
from sqlalchemy.types import TypeEngine

from bulklane.contracts.key import KeyType
from bulklane.database.chunk_plan import LONGEST_REASON, Decision, Locked, RecordOutcome
from bulklane.database.fitting import UnfitValue, unfit
from bulklane.database.record import RecordSet, key_text, own_name, same_key, unnested
from bulklane.database.storable import storable
from bulklane.database.tables import KEY_TYPES

LONGEST_DECIDING = 0.4
"""Seconds; within the chunk's transaction timeout, so that a slow function makes chunks smaller before that ends it."""


class DecidingTooSlow(RuntimeError):
    """The function takes too long for so many records: a smaller chunk will do."""


class NotChanged(Protocol):
    """The function's answer for a record that stays as it is; `operations.Skip` and `operations.Fail` are such."""

    @property
    def kind(self) -> str:
        """`skipped` or `failed`."""

    @property
    def code(self) -> str:
        """Of a failure."""

    @property
    def reason(self) -> str:
        """Why."""


RecordFunction = Callable[[Mapping[str, Any]], Mapping[str, Any] | NotChanged]


@dataclass(frozen=True)
class RecordChange:
    """A function of a record, and the columns that it may set. `moves_version`: the statement moves the row version."""

    records: RecordSet
    columns: Sequence[Column[Any]]
    function: RecordFunction
    moves_version: bool = False

    @cached_property
    def statement(self) -> Update:
        """The UPDATE that sets what the function answered; its parameters come from `decide`."""
        arrays = {f"key{n}": _key_type(kind) for n, kind in enumerate(self.records.key_types)}
        for n, column in enumerate(self.columns):
            arrays |= {f"given{n}": Boolean(), f"value{n}": _wire_type(column)}
        new = unnested([_array(name, kind) for name, kind in arrays.items()], list(arrays), own_name("new"))
        keys = [new.c[f"key{n}"] for n, _ in enumerate(self.records.key)]
        values: dict[Any, ColumnElement[Any]] = {
            column: case((new.c[f"given{n}"], new.c[f"value{n}"]), else_=column)
            for n, column in enumerate(self.columns)
        }
        if self.moves_version:
            values[self.records.row_version] = self.records.row_version + 1
        same = same_key(list(self.records.key), keys, self.records.key_types)
        return update(self.records.table).where(same).values(values)

    def decide(self, connection: Connection, locked: Locked, parameters: Mapping[str, Any]) -> Decision:
        """Ask the function about each of the chunk's records; raises what it raises, UnfitValue and DecidingTooSlow."""
        columns = list(self.records.table.columns)
        text = key_text(list(self.records.key), self.records.key_types)
        rows = connection.execute(locked(text, *columns), parameters).all()
        names = [column.key for column in columns]
        outcomes: list[RecordOutcome] = []
        changed: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
        until = time.monotonic() + LONGEST_DECIDING
        for number, (key, *values) in enumerate(rows):
            if number and time.monotonic() > until:
                raise DecidingTooSlow(f"{number} of {len(rows)} records took {LONGEST_DECIDING:g} s")
            record = MappingProxyType(dict(zip(names, values, strict=True)))
            answer = self.function(record)
            if isinstance(answer, Mapping):
                changed.append((record, answer))
            else:
                outcomes.append(_outcome(key, answer))
        return Decision(outcomes, self._parameters(connection, changed))

    def _parameters(
        self, connection: Connection, changed: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number, key in enumerate(self.records.key):
            found[own_name(f"new_key{number}")] = [record[key.key or ""] for record, _ in changed]
        for number, column in enumerate(self.columns):
            written = _writer(column, connection)
            found[own_name(f"new_given{number}")] = [column.key in values for _, values in changed]
            found[own_name(f"new_value{number}")] = [
                self._fitted(column, written(values[column.key]), record) if column.key in values else None
                for record, values in changed
            ]
        return found

    def _fitted(self, column: Column[Any], value: Any, record: Mapping[str, Any]) -> Any:
        if rule := unfit(column, value):
            raise UnfitValue(column, rule, record, list(self.records.key))
        return value


def _outcome(key: str, answer: NotChanged) -> RecordOutcome:
    return RecordOutcome(
        key, answer.kind, storable(answer.code, LONGEST_REASON), storable(answer.reason, LONGEST_REASON)
    )


def _array(name: str, of: TypeEngine[Any]) -> ColumnElement[Any]:
    return cast(bindparam(own_name(f"new_{name}")), ARRAY(of))


def _key_type(key_type: KeyType) -> TypeEngine[Any]:
    return Text() if key_type is KeyType.TEXT else KEY_TYPES[key_type]


def _wire_type(column: Column[Any]) -> TypeEngine[Any]:
    """The type in which new values are sent: a cast to varchar(n) would cut them in silence."""
    kind = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
    return Text() if isinstance(kind, String) and not isinstance(kind, Enum) else column.type


def _writer(column: Column[Any], connection: Connection) -> Callable[[Any], Any]:
    """What SQLAlchemy does to a value of the column before the driver has it; numbers of a column are of one type."""
    if isinstance(column.type, (Numeric, Float)):
        return _decimal
    return column.type.dialect_impl(connection.dialect).bind_processor(connection.dialect) or _as_it_is


def _decimal(value: Any) -> Any:
    return Decimal(str(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _as_it_is(value: Any) -> Any:
    return value
