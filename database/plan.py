"""Composes a chunk plan of an operation's work: for the walk and for the preview the same."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from sqlalchemy import Column, ColumnElement, Delete, Update

from bulklane.database.chunk_plan import ChunkPlan, OwedEffect
from bulklane.database.record import RecordSet
from bulklane.database.record_change import NotChanged, RecordChange


class VersionedRecords(RecordSet, Protocol):
    """Records of which it is known who moves the row version."""

    @property
    def row_version_by(self) -> Literal["trigger", "application"]:
        """The database's trigger, or every statement."""


class Owing(Protocol):
    """An effect that each changed record owes."""

    @property
    def name(self) -> str:
        """Within the operation."""

    @property
    def channel(self) -> str:
        """Where it goes."""

    @property
    def body(self) -> ColumnElement[str] | None:
        """Evaluated on the changed row."""


class Work(Protocol):
    """What an operation does with its parameters; `operations.Work` is one."""

    @property
    def records(self) -> VersionedRecords:
        """The rows."""

    @property
    def change(self) -> Update | Delete | None:
        """The statement; None where a function of one record says what becomes of each."""

    @property
    def function(self) -> Callable[[Mapping[str, Any]], Mapping[str, Any] | NotChanged] | None:
        """That function."""

    @property
    def writes(self) -> Sequence[Column[Any]]:
        """The columns that the function may set."""

    @property
    def effects(self) -> Sequence[Owing]:
        """What a changed record owes."""


def chunk_plan(work: Work, tenant: str, condition: ColumnElement[bool], *, reopened: bool = False) -> ChunkPlan:
    """What each chunk of a job does. `reopened`: records may have an outcome of an earlier round."""
    change, decide = work.change, None
    if work.function is not None:
        moves_version = work.records.row_version_by == "application"
        written = RecordChange(work.records, work.writes, work.function, moves_version=moves_version)
        change, decide = written.statement, written.decide
    if change is None:
        raise TypeError("work is a statement or a function of one record")
    effects = [OwedEffect(effect.name, effect.channel, effect.body) for effect in work.effects]
    return ChunkPlan(work.records, tenant, condition, change, effects, reopened=reopened, decide=decide)
