"""What an operation does to the records of a chunk, and what came of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Executable,
    Select,
    Update,
)

from bulklane.database.chunk_chain import OUTCOME_PARTS, chain, decided
from bulklane.database.record import RecordSet, own_name

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

    @property
    def values(self) -> dict[str, Any]:
        """All that a deciding statement takes of it, by full names."""
        outcomes = {
            own_name(f"decided_{part}"): [getattr(outcome, part) for outcome in self.outcomes] for part in OUTCOME_PARTS
        }
        return {**self.parameters, **outcomes}


class Locked(Protocol):
    """The chunk's records that its plan is to change, over frozen keys or in a part of the key space."""

    def __call__(self, *columns: ColumnElement[Any]) -> Select[Any]:
        """These columns of them, locked as the change itself locks them, in key order.

        No row unless the gate was passed.
        """


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
    decide: Callable[[Connection, Locked, Mapping[str, Any]], Decision] | None = None
    """Reads and locks the chunk's records and decides about each, where the change is written per record."""

    def decided(self, connection: Connection, locked: Locked, parameters: Mapping[str, Any]) -> Decision:
        """What the plan's function says of the chunk's records; nothing where there is none."""
        return Decision() if self.decide is None else self.decide(connection, locked, parameters)

    @cached_property
    def statement(self) -> Executable:
        """The whole chain; composed once, compiled once by SQLAlchemy's cache."""
        return chain(self, None)

    @cached_property
    def deciding_statement(self) -> Executable:
        """The same, where the outcomes of some records are known before."""
        return chain(self, decided())
