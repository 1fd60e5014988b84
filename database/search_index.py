"""What is known of a search index beside its documents: the one that is being built, and when it was last purged."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from sqlalchemy import Connection, bindparam, func, null, or_, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from bulklane.database.tables import search_index


class Stage(StrEnum):
    """Where a reindex stands. From `filling` on, every sender writes to both indexes."""

    CREATING = "creating"
    FILLING = "filling"
    CHECKING = "checking"
    SWAPPING = "swapping"
    ENDING = "ending"


@dataclass(frozen=True)
class Rebuild:
    """A reindex under way."""

    stage: Stage
    present: str
    next: str
    cursor: str | None
    written: int
    who: str
    begun_at: datetime
    beat_at: datetime


class RebuildLost(RuntimeError):
    """Another process has taken the reindex over."""


_T = search_index.c
_OF_CHANNEL = _T.channel == bindparam("of_channel")
_NEXT = select(_T.next).where(_OF_CHANNEL, _T.stage != Stage.CREATING)
_NOW = select(func.clock_timestamp())
_REBUILD = select(search_index).where(_OF_CHANNEL, _T.stage.is_not(None))
_ADD = upsert(search_index).values(channel=bindparam("of_channel")).on_conflict_do_nothing()
_BEGIN = (
    update(search_index)
    .where(_OF_CHANNEL, _T.stage.is_(None))
    .values(
        stage=Stage.CREATING,
        present=bindparam("from_index"),
        next=bindparam("to_index"),
        who=bindparam("by"),
        begun_at=func.clock_timestamp(),
        worker=bindparam("mine"),
        beat_at=func.clock_timestamp(),
        cursor=null(),
        written=0,
    )
)
_SILENT = func.clock_timestamp() - func.make_interval(0, 0, 0, 0, 0, 0, bindparam("seconds"))
_TAKE = (
    update(search_index)
    .where(_OF_CHANNEL, _T.stage.is_not(None), or_(_T.worker.is_(None), _T.beat_at < _SILENT))
    .values(worker=bindparam("mine"), beat_at=func.clock_timestamp())
)
_MINE = (_OF_CHANNEL, _T.worker == bindparam("mine"))
_BEAT = update(search_index).where(*_MINE).values(beat_at=func.clock_timestamp())
_FILLED = (
    update(search_index)
    .where(*_MINE)
    .values(cursor=bindparam("to_cursor"), written=_T.written + bindparam("more"), beat_at=func.clock_timestamp())
)
_STAGE = update(search_index).where(*_MINE).values(stage=bindparam("to_stage"), beat_at=func.clock_timestamp())
_LEAVE = update(search_index).where(*_MINE).values(worker=null())
_END = (
    update(search_index)
    .where(*_MINE)
    .values(stage=null(), present=null(), next=null(), cursor=null(), worker=null(), begun_at=null(), beat_at=null())
)
_PURGE = (
    update(search_index)
    .where(_OF_CHANNEL, or_(_T.purged_at.is_(None), _T.purged_at < _SILENT))
    .values(purged_at=func.clock_timestamp())
)


def next_index(connection: Connection, channel: str) -> str | None:
    """The index that is being built and is written to beside the present one.

    Ask in the snapshot in which the documents are read. Then whoever doesn't see it has read nothing that its builder,
    which reads later, could miss: no sender has to be waited for.
    """
    found: str | None = connection.execute(_NEXT, {"of_channel": channel}).scalar_one_or_none()
    return found


def now(connection: Connection) -> datetime:
    """The database's time."""
    found: datetime = connection.execute(_NOW).scalar_one()
    return found


def find_rebuild(connection: Connection, channel: str) -> Rebuild | None:
    """The reindex of the channel that is under way."""
    row = connection.execute(_REBUILD, {"of_channel": channel}).one_or_none()
    if row is None:
        return None
    return Rebuild(Stage(row.stage), row.present, row.next, row.cursor, row.written, row.who, row.begun_at, row.beat_at)


def begin_rebuild(connection: Connection, channel: str, worker: UUID, *, present: str, to_index: str, who: str) -> bool:
    """Write down what is to be built; False where a reindex is under way already."""
    connection.execute(_ADD, {"of_channel": channel})
    values = {"of_channel": channel, "from_index": present, "to_index": to_index, "by": who, "mine": worker}
    return connection.execute(_BEGIN, values).rowcount == 1


def take_rebuild(connection: Connection, channel: str, worker: UUID, *, silent_for: float) -> bool:
    """Take a reindex over whose process has said nothing for so many seconds, or has left it."""
    values = {"of_channel": channel, "mine": worker, "seconds": silent_for}
    return connection.execute(_TAKE, values).rowcount == 1


def beat(connection: Connection, channel: str, worker: UUID) -> None:
    """Say that the reindex is alive; raises RebuildLost."""
    _mine(connection.execute(_BEAT, {"of_channel": channel, "mine": worker}).rowcount)


def note_filled(connection: Connection, channel: str, worker: UUID, cursor: str, more: int) -> None:
    """Everything up to the cursor is written; raises RebuildLost."""
    values = {"of_channel": channel, "mine": worker, "to_cursor": cursor, "more": more}
    _mine(connection.execute(_FILLED, values).rowcount)


def note_stage(connection: Connection, channel: str, worker: UUID, stage: Stage) -> None:
    """The next stage has begun; raises RebuildLost."""
    _mine(connection.execute(_STAGE, {"of_channel": channel, "mine": worker, "to_stage": stage}).rowcount)


def leave_rebuild(connection: Connection, channel: str, worker: UUID) -> None:
    """Leave it to whoever goes on with it."""
    connection.execute(_LEAVE, {"of_channel": channel, "mine": worker})


def end_rebuild(connection: Connection, channel: str, worker: UUID) -> None:
    """It is over: only the alias is written to; raises RebuildLost."""
    _mine(connection.execute(_END, {"of_channel": channel, "mine": worker}).rowcount)


def claim_purge(connection: Connection, channel: str, *, every: float) -> bool:
    """Whether it is this process's turn to purge: once in so many seconds, whoever asks first."""
    connection.execute(_ADD, {"of_channel": channel})
    return connection.execute(_PURGE, {"of_channel": channel, "seconds": every}).rowcount == 1


def _mine(rows: int) -> None:
    if rows != 1:
        raise RebuildLost("another process has taken this reindex over, or it was ended: this one stops")
