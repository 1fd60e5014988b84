"""What people and the system want of a job: messages, applied once by their id, and the wish they add up to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Connection, Select, bindparam, cast, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from bulklane.contracts.job import Wish
from bulklane.contracts.message import Throttle, Verb, VerbMessage
from bulklane.database.engine import local_setting
from bulklane.database.job import Job
from bulklane.database.tables import wish, wish_message
from bulklane.database.throttle import set_throttle

_WISH_OF = {Verb.PAUSE: Wish.PAUSE, Verb.RESUME: Wish.RUN, Verb.CANCEL: Wish.CANCEL}
_FINAL = (Wish.CANCEL, Wish.STOP)


@dataclass(frozen=True)
class Wanted:
    """The present wish, by whom and why; the throttle; and when one of them was last said."""

    wish: Wish
    who: str
    why: str
    wished_at: datetime
    throttle: Throttle


_INSERT = insert(wish)
_READ = select(wish.c.wish, wish.c.who, wish.c.why, wish.c.wished_at, wish.c.rows_per_second, wish.c.parallelism).where(
    wish.c.job_no == bindparam("job_no")
)
_RECEIVE = upsert(wish_message).on_conflict_do_nothing().returning(wish_message.c.message_id)
_APPLIED = (
    update(wish_message)
    .where(wish_message.c.job_no == bindparam("number"), wish_message.c.message_id == bindparam("message"))
    .values(applied=True)
)
_RESET = (
    update(wish)
    .where(wish.c.job_no == bindparam("number"))
    .values(wish=bindparam("wanted"), who=bindparam("by"), why=bindparam("because"), wished_at=func.clock_timestamp())
)
_SET = _RESET.where(wish.c.wish.not_in(_FINAL))
_LOOKED = (
    update(wish)
    .where(wish.c.job_no == bindparam("number"))
    .values(
        looked_at=func.greatest(wish.c.looked_at, bindparam("seen")),
        heard_at=func.clock_timestamp(),
        heard_by=bindparam("by"),
    )
)
_NUDGE = (
    update(wish)
    .where(wish.c.job_no == func.any(cast(bindparam("numbers"), ARRAY(BigInteger))))
    .values(wished_at=func.clock_timestamp())
)
_HEARD = (
    update(wish)
    .where(wish.c.job_no == bindparam("number"))
    .values(heard_at=func.clock_timestamp(), heard_by=bindparam("by"))
)


def insert_wish(connection: Connection, job_no: int) -> None:
    """The wish of a new job: to run."""
    connection.execute(_INSERT, {"job_no": job_no})


def read_wish(connection: Connection, job_no: int) -> Wanted:
    """What is wanted now; an unlocked read."""
    return _wanted(connection.execute(_READ, {"job_no": job_no}).one())


def read_wish_setting(connection: Connection, job_no: int, settings: Mapping[str, str]) -> Wanted:
    """The same as the first statement of a transaction, for which it makes these settings in passing."""
    return _wanted(connection.execute(_read_setting(*settings), {"job_no": job_no, **settings}).one())


@cache
def _read_setting(*names: str) -> Select[Any]:
    return _READ.add_columns(*map(local_setting, names))


def _wanted(row: Any) -> Wanted:
    throttle = Throttle(row.rows_per_second, row.parallelism)
    return Wanted(Wish(row.wish), row.who, row.why, row.wished_at, throttle)


def receive(connection: Connection, job: Job, message: VerbMessage) -> bool:
    """Apply a message to a locked job, once by its id; False where it was known, or can't change anything."""
    is_new = _is_new(connection, job, message, applied=False)
    if not is_new or job.over:
        return False
    if not _apply(connection, job, message):
        return False
    connection.execute(_APPLIED, {"number": job.job_no, "message": message.message_id})
    return True


def _apply(connection: Connection, job: Job, message: VerbMessage) -> bool:
    if message.verb is Verb.THROTTLE:
        return set_throttle(connection, job.job_no, message.throttle or Throttle())
    return set_wish(connection, job.job_no, _WISH_OF[message.verb], who=message.who, why=message.why)


def note_message(connection: Connection, job: Job, message: VerbMessage, *, applied: bool = True) -> bool:
    """Write a message that isn't a wish as a row; False where its id was known."""
    return _is_new(connection, job, message, applied=applied)


def _is_new(connection: Connection, job: Job, message: VerbMessage, *, applied: bool) -> bool:
    values = {
        "message_id": message.message_id,
        "job_no": job.job_no,
        "verb": message.verb,
        "who": message.who,
        "why": message.why,
        "rows_per_second": message.throttle and message.throttle.rows_per_second,
        "parallelism": message.throttle and message.throttle.parallelism,
        "applied": applied,
    }
    return connection.execute(_RECEIVE, values).one_or_none() is not None


def reset_wish(connection: Connection, job_no: int, wanted: Wish, *, who: str, why: str) -> None:
    """Set the wish of a new round, whatever stood there."""
    connection.execute(_RESET, {"number": job_no, "wanted": wanted, "by": who, "because": why})


def set_wish(connection: Connection, job_no: int, wanted: Wish, *, who: str, why: str) -> bool:
    """Set the wish; False where a final one stands."""
    values = {"number": job_no, "wanted": wanted, "by": who, "because": why}
    return connection.execute(_SET, values).rowcount == 1


def note_looked(connection: Connection, job_no: int, seen: datetime, *, heard_by: str) -> None:
    """Note that a wish of that time has been acted on, and that the job's workflow was heard from."""
    connection.execute(_LOOKED, {"number": job_no, "seen": seen, "by": heard_by})


def note_heard(connection: Connection, job_no: int, *, heard_by: str) -> None:
    """Note that the job was seen alive."""
    connection.execute(_HEARD, {"number": job_no, "by": heard_by})


def nudge(connection: Connection, job_nos: Sequence[int]) -> None:
    """Have the control loop look at these jobs, though what is wanted of them is what it was."""
    if job_nos:
        connection.execute(_NUDGE, {"numbers": sorted(job_nos)})
