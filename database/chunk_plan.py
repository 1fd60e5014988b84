"""What an operation does to the records of a chunk, and what came of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Executable,
    Update,
)

from bulklane.database.chunk_chain import chain, decided
from bulklane.database.record import RecordSet

LONGEST_REASON = 500


@dataclass(frozen=True)
class ChunkResult:
    """What one committed chunk did."""

    cursor: int
    changed: int
    skipped: int
    not_found: int
    failed: int = 0


class Miscounted(RuntimeError):
    """A chunk whose outcomes aren't one for each of its records; its transaction must roll back."""

    def __init__(self, outcomes: int, records: int) -> None:
        super().__init__(
            f"{records} records have {outcomes} outcomes: their key isn't unique within the tenant, or the statement or"
            " a trigger changes it"
        )


@dataclass(frozen=True)
class OwedEffect:
    """An effect that each changed record of a chunk owes; `body` is evaluated on the changed row, or None."""

    name: str
    channel: str
    body: ColumnElement[str] | None


@dataclass(frozen=True)
class RecordOutcome:
    """What becomes of a record (key in text form) that is not changed: `skipped` or `failed`, and why."""

    key: str
    kind: str
    code: str
    reason: str


@dataclass(frozen=True)
class Decision:
    """What is known of a chunk's records before its statement runs."""

    outcomes: Sequence[RecordOutcome] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Of the plan's change, by their full names."""


@dataclass(frozen=True)
class ChunkPlan:
    """What an operation does to the records of a chunk: the change, the condition still to hold, the effects owed."""

    records: RecordSet
    tenant: str
    condition: ColumnElement[bool]
    change: Update | Delete
    effects: Sequence[OwedEffect]
    reopened: bool = False
    """Whether the records may have an outcome of an earlier round, which a change takes back."""
    decide: Callable[[Connection, "ChunkPlan", Mapping[str, Any]], Decision] | None = None
    """Reads and locks the chunk's records and decides about each, where the change is written per record."""

    @cached_property
    def statement(self) -> Executable:
        """The whole chain; composed once, compiled once by SQLAlchemy's cache."""
        return chain(self, None)

    @cached_property
    def deciding_statement(self) -> Executable:
        """The same, where the outcomes of some records are known before."""
        return chain(self, decided())
