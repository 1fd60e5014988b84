"""A job's throttle: what it is, and the one clock by which all ranges of the job keep to a rate."""

from dataclasses import dataclass

from sqlalchemy import Connection, Double, Float, Interval, bindparam, cast, func, select, update

from bulklane.contracts.job import Wish
from bulklane.contracts.message import Throttle, Verb
from bulklane.database.tables import wish, wish_message

# A walker that comes late to its turn doesn't lower the rate; one that comes after a rest makes no burst.
SLACK_SECONDS = 1.0


@dataclass(frozen=True)
class Throttled:
    """The throttle that stands, by whom and why."""

    rows_per_second: float | None
    parallelism: int | None
    who: str
    why: str


_NOW = func.clock_timestamp()
_JOB = wish.c.job_no == bindparam("number")
_SET = (
    update(wish)
    .where(_JOB, wish.c.wish.not_in((Wish.CANCEL, Wish.STOP)))
    .values(
        rows_per_second=bindparam("rate", type_=Double),
        parallelism=bindparam("ranges"),
        # a slow rate before may have put it far ahead
        next_rows_at=_NOW,
        wished_at=_NOW,
    )
)


def _seconds(value: object) -> object:
    return func.make_interval(0, 0, 0, 0, 0, 0, value, type_=Interval)


_TAKE = (
    update(wish)
    .where(_JOB, func.coalesce(wish.c.next_rows_at, _NOW) <= _NOW)
    .values(
        next_rows_at=func.greatest(func.coalesce(wish.c.next_rows_at, _NOW), _NOW - _seconds(SLACK_SECONDS))
        + _seconds(bindparam("seconds", type_=Double))
    )
)
_WAIT = select(cast(func.extract("epoch", wish.c.next_rows_at - _NOW), Float)).where(_JOB)
_THROTTLED = select(wish.c.rows_per_second, wish.c.parallelism).where(_JOB)
_LAST_MESSAGE = (
    select(wish_message.c.who, wish_message.c.why)
    .where(
        wish_message.c.job_no == bindparam("number"),
        wish_message.c.verb == Verb.THROTTLE,
        wish_message.c.applied,
    )
    .order_by(wish_message.c.received_at.desc())
    .limit(1)
)


def set_throttle(connection: Connection, job_no: int, throttle: Throttle) -> bool:
    """Set the throttle as a whole; False where the wish is a final one."""
    values = {"number": job_no, "rate": throttle.rows_per_second, "ranges": throttle.parallelism}
    return connection.execute(_SET, values).rowcount == 1


def read_throttled(connection: Connection, job_no: int) -> Throttled | None:
    """The throttle that stands; None where the job is free."""
    standing = connection.execute(_THROTTLED, {"number": job_no}).one()
    if Throttle(*standing).lifted:
        return None
    said = connection.execute(_LAST_MESSAGE, {"number": job_no}).one_or_none()
    return Throttled(standing.rows_per_second, standing.parallelism, *(("", "") if said is None else said))


def take_rows(connection: Connection, job_no: int, rows: int, rows_per_second: float) -> float:
    """Take so many rows' time of the job's clock: 0 where they may be walked now, else the seconds to wait for it.

    A wait takes nothing: whoever asks first when it is over walks first. Each statement must commit by itself, so
    that a walker that freezes keeps nobody's wish waiting.
    """
    if connection.execute(_TAKE, {"number": job_no, "seconds": rows / rows_per_second}).rowcount == 1:
        return 0.0
    seconds = connection.execute(_WAIT, {"number": job_no}).scalar_one()
    return max(float(seconds), 0.001)
