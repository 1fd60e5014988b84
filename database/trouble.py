"""Database trouble of a range: since when no chunk gets through, and what the walker is slowed by."""

from sqlalchemy import Connection, Float, bindparam, case, cast, func, select, update

from bulklane.database.range import RangeRef
from bulklane.database.tables import range_

# Longer than any pause between two tries of an attempt, or between two attempts. A longer gap is a time in which
# nobody tried, or nobody could write that he did: a pause, a full queue, a database that was away. None of them is held
# against the job.
LONGEST_GAP_SECONDS = 30.0
LONGEST_REASON = 200

_NOW = func.clock_timestamp()
_MINE = (
    (range_.c.job_no == bindparam("of_job"))
    & (range_.c.round == bindparam("of_round"))
    & (range_.c.no == bindparam("of_no"))
    & (range_.c.epoch == bindparam("mine"))
)
_GAP = _NOW - range_.c.troubled_at
_LONGEST_GAP = func.make_interval(0, 0, 0, 0, 0, 0, LONGEST_GAP_SECONDS)
_NOTE = (
    update(range_)
    # where the cursor has moved, the chunk was committed and only the answer got lost
    .where(_MINE, range_.c.cursor == bindparam("at"))
    .values(
        troubled_since=case(
            (range_.c.troubled_since.is_(None), _NOW),
            (_GAP > _LONGEST_GAP, range_.c.troubled_since + _GAP),
            else_=range_.c.troubled_since,
        ),
        troubled_at=_NOW,
        slowed_by=bindparam("because"),
    )
    .returning(cast(func.extract("epoch", _NOW - range_.c.troubled_since), Float))
)
_TELL = update(range_).where(_MINE, range_.c.slowed_by != bindparam("because")).values(slowed_by=bindparam("because"))
_TOLD = (
    select(range_.c.slowed_by)
    .where(
        range_.c.job_no == bindparam("of_job"),
        range_.c.round == bindparam("of_round"),
        range_.c.cursor < range_.c.hi,
        range_.c.slowed_by != "",
    )
    .distinct()
    .order_by(range_.c.slowed_by)
)


def note_trouble(connection: Connection, ref: RangeRef, epoch: int, cursor: int, why: str) -> float:
    """Note that a chunk at the cursor met trouble; for how many seconds none has got through.

    Only time counts in which somebody tried. A committed chunk ends the trouble.
    """
    values = _of(ref, epoch) | {"at": cursor, "because": why[:LONGEST_REASON]}
    return float(connection.execute(_NOTE, values).scalar_one_or_none() or 0.0)


def tell_slowed(connection: Connection, ref: RangeRef, epoch: int, why: str) -> None:
    """Say why the walker is slower than it could be, for people; empty: it isn't."""
    connection.execute(_TELL, _of(ref, epoch) | {"because": why[:LONGEST_REASON]})


def slowed_by(connection: Connection, job_no: int, round_no: int) -> list[str]:
    """Why the ranges that are left are slow or stand still, each reason once."""
    return list(connection.execute(_TOLD, {"of_job": job_no, "of_round": round_no}).scalars())


def _of(ref: RangeRef, epoch: int) -> dict[str, int]:
    return {"of_job": ref.job_no, "of_round": ref.round, "of_no": ref.range_no, "mine": epoch}
