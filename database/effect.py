"""Owed effects: what is still owed, in which order, and those that are settled by the row of their chunk.

A search effect has no delivery of its own, since indexing again does no harm; a provider effect is a delivery
per record (`delivery.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert

from bulklane.contracts.effect import FINAL_DELIVERY_STATES, DeliveryState
from bulklane.database.storable import storable
from bulklane.database.tables import delivery, job, job_resource, owed

_D = DeliveryState
LONGEST_ANSWER = 500
OPEN_STATES = tuple(state for state in DeliveryState if state not in FINAL_DELIVERY_STATES)


@dataclass(frozen=True)
class OwedSlice:
    """What one chunk still owes of one effect without deliveries of its own: keys, from `place` on."""

    round: int
    range_no: int
    seq: int
    effect: str
    place: int
    keys: list[str]
    versions: list[int]


OPEN_OWED = and_(owed.c.job_no == bindparam("of_job"), owed.c.taken_to < owed.c.size)
OPEN_DELIVERY = and_(delivery.c.job_no == bindparam("of_job"), delivery.c.state.in_(OPEN_STATES))
OWED_ON_CHANNEL = owed.c.channel == bindparam("of_channel")
DELIVERY_ON_CHANNEL = delivery.c.channel == bindparam("of_channel")

_OWES = select(
    or_(
        select(literal(1)).where(OPEN_OWED).exists(),
        select(literal(1)).where(OPEN_DELIVERY).exists(),
    )
)
_OWES_ON = select(
    or_(
        select(literal(1)).where(OPEN_OWED, OWED_ON_CHANNEL).exists(),
        select(literal(1)).where(OPEN_DELIVERY, DELIVERY_ON_CHANNEL).exists(),
    )
)
_COUNT = select(
    select(func.coalesce(func.sum(owed.c.size - owed.c.taken_to), 0)).where(OPEN_OWED).scalar_subquery(),
    select(func.count()).select_from(delivery).where(OPEN_DELIVERY).scalar_subquery(),
)
_CALLS_OUT = (
    select(func.count()).select_from(delivery).where(OPEN_DELIVERY, delivery.c.state == literal(str(_D.SENDING)))
)
_UNSUCCESSFUL = select(
    select(literal(1))
    .where(
        delivery.c.job_no == bindparam("of_job"),
        delivery.c.state.in_((_D.REFUSED, _D.UNDECIDED, _D.GIVEN_UP)),
    )
    .exists()
)
_UNDECIDED = (
    select(func.count())
    .select_from(delivery)
    .where(delivery.c.job_no == bindparam("of_job"), delivery.c.state == _D.UNDECIDED)
)
_TALLY = (
    select(delivery.c.channel, delivery.c.state, func.count())
    .where(delivery.c.job_no == bindparam("of_job"))
    .group_by(delivery.c.channel, delivery.c.state)
    .order_by(delivery.c.channel, delivery.c.state)
)


def owes(connection: Connection, job_no: int) -> bool:
    """Whether any effect of the job is not yet final."""
    return bool(connection.execute(_OWES, {"of_job": job_no}).scalar_one())


def owes_on(connection: Connection, job_no: int, channel: str) -> bool:
    """Whether any effect of the job on the channel is not yet final."""
    return bool(connection.execute(_OWES_ON, {"of_job": job_no, "of_channel": channel}).scalar_one())


def count_owed(connection: Connection, job_no: int) -> int:
    """How many effects of the job are not yet final."""
    untaken, open_deliveries = connection.execute(_COUNT, {"of_job": job_no}).one()
    return int(untaken) + int(open_deliveries)


def count_calls_out(connection: Connection, job_no: int) -> int:
    """How many provider calls of the job may be on their way."""
    return int(connection.execute(_CALLS_OUT, {"of_job": job_no}).scalar_one())


def count_undecided(connection: Connection, job_no: int) -> int:
    """How many deliveries of the job wait for a decision."""
    return int(connection.execute(_UNDECIDED, {"of_job": job_no}).scalar_one())


def any_unsuccessful(connection: Connection, job_no: int) -> bool:
    """Whether a delivery of the job is final without being done."""
    return bool(connection.execute(_UNSUCCESSFUL, {"of_job": job_no}).scalar_one())


def tally(connection: Connection, job_no: int) -> list[tuple[str, str, int]]:
    """How many deliveries there are by channel and state."""
    return [(row[0], row[1], int(row[2])) for row in connection.execute(_TALLY, {"of_job": job_no})]


# --- the order of effects of jobs that share resources

_mine, _theirs = job_resource.alias("mine"), job_resource.alias("theirs")
# by round: a job's next round waits for others, while its rounds before are not waited for by their own
_EARLIER = (
    select(_theirs.c.job_no, _theirs.c.round, _theirs.c.turn)
    .join(_mine, and_(_mine.c.resource == _theirs.c.resource, _theirs.c.turn < _mine.c.turn))
    .join(job, and_(job.c.job_no == _mine.c.job_no, job.c.round == _mine.c.round))
    .where(_mine.c.job_no == bindparam("of_job"), _theirs.c.job_no != _mine.c.job_no)
    .distinct()
    .subquery("earlier")
)
_BLOCKED_BY = (
    select(_EARLIER.c.job_no)
    .where(
        or_(
            select(literal(1))
            .where(
                owed.c.job_no == _EARLIER.c.job_no,
                owed.c.round == _EARLIER.c.round,
                owed.c.taken_to < owed.c.size,
                OWED_ON_CHANNEL,
            )
            .exists(),
            select(literal(1))
            .where(
                delivery.c.job_no == _EARLIER.c.job_no,
                delivery.c.turn == _EARLIER.c.turn,
                delivery.c.state.in_(OPEN_STATES),
                DELIVERY_ON_CHANNEL,
            )
            .exists(),
        )
    )
    .order_by(_EARLIER.c.job_no)
    .limit(1)
)


def blocked_by(connection: Connection, job_no: int, channel: str) -> int | None:
    """The number of a job with a smaller turn on a shared resource that still owes on the channel, if there is one."""
    found = connection.execute(_BLOCKED_BY, {"of_job": job_no, "of_channel": channel}).scalar_one_or_none()
    return None if found is None else int(found)


_mine_before, _theirs_after = job_resource.alias("mine_before"), job_resource.alias("theirs_after")
_LATER_TURNS = (
    select(_theirs_after.c.job_no)
    .join(
        _mine_before,
        and_(_mine_before.c.resource == _theirs_after.c.resource, _theirs_after.c.turn > _mine_before.c.turn),
    )
    .join(job, job.c.job_no == _theirs_after.c.job_no)
    .where(
        _mine_before.c.job_no == bindparam("of_job"),
        _theirs_after.c.job_no != _mine_before.c.job_no,
        job.c.over_at.is_(None),
        bindparam("of_channel") == func.any(job.c.channels),
    )
    .distinct()
)


def later_turns(connection: Connection, job_no: int, channel: str) -> list[int]:
    """The jobs with a later turn on a shared resource that aren't over and have effects on the channel."""
    return list(connection.execute(_LATER_TURNS, {"of_job": job_no, "of_channel": channel}).scalars())


# --- effects that are settled by the chunk's row

_SLICES = (
    select(
        owed.c.round,
        owed.c.range_no,
        owed.c.seq,
        owed.c.effect,
        owed.c.taken_to,
        owed.c["keys"][owed.c.taken_to + 1 : owed.c.size].label("keys"),
        owed.c.versions[owed.c.taken_to + 1 : owed.c.size].label("versions"),
    )
    .where(OPEN_OWED, OWED_ON_CHANNEL)
    .order_by(owed.c.round, owed.c.range_no, owed.c.seq)
    .limit(bindparam("most"))
)
_TAKEN = (
    update(owed)
    .where(
        owed.c.job_no == bindparam("of_job"),
        owed.c.round == bindparam("of_round"),
        owed.c.range_no == bindparam("of_range"),
        owed.c.seq == bindparam("of_seq"),
        owed.c.effect == bindparam("of_effect"),
    )
    .values(taken_to=func.greatest(owed.c.taken_to, bindparam("to")))
)
_REFUSE = upsert(delivery).on_conflict_do_nothing()


def owed_slices(connection: Connection, job_no: int, channel: str, most: int) -> list[OwedSlice]:
    """What up to `most` chunks of the job still owe on the channel.

    Read by what is open, never from a highest number seen: a chunk that commits late is found all the same.
    """
    rows = connection.execute(_SLICES, {"of_job": job_no, "of_channel": channel, "most": most})
    return [
        OwedSlice(row.round, row.range_no, row.seq, row.effect, row.taken_to, row.keys, row.versions) for row in rows
    ]


def settle_slice(
    connection: Connection,
    job_no: int,
    turn: int,
    channel: str,
    piece: OwedSlice,
    refused: Sequence[tuple[int, str, str]],
) -> None:
    """The slice is done, but for what was refused: (place in the slice, code, reason) each."""
    if refused:
        rows = [
            {
                "job_no": job_no,
                "effect": piece.effect,
                "key": piece.keys[place],
                "channel": channel,
                "turn": turn,
                "round": piece.round,
                "range_no": piece.range_no,
                "seq": piece.seq,
                "place": piece.place + place,
                "state": _D.REFUSED,
                "attempts": 1,
                "code": storable(code, LONGEST_ANSWER),
                "answer": storable(reason, LONGEST_ANSWER),
            }
            for place, code, reason in refused
        ]
        connection.execute(_REFUSE, rows)
    values = {
        "of_job": job_no,
        "of_round": piece.round,
        "of_range": piece.range_no,
        "of_seq": piece.seq,
        "of_effect": piece.effect,
        "to": piece.place + len(piece.keys),
    }
    connection.execute(_TAKEN, values)
