"""A channel's limits as rows, shared by all workers: when the next call may start, who waits, what is blocked.

Lock order: deliveries of one's own job that are settled, the channel's row, the tenant's row, deliveries by SKIP
LOCKED. Time is the database's, read after the locks.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    literal,
    select,
    text,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert

from bulklane.contracts.limit import Limits
from bulklane.database.share import Bucket, Demand, Share, Standing, share
from bulklane.database.tables import channel_demand, channel_limit

WHOLE = ""
_limit, _demand = channel_limit.c, channel_demand.c


@dataclass(frozen=True)
class Sender:
    """One delivery of one job: who asks for calls."""

    channel: str
    tenant: str
    small: bool
    limits: Limits
    token: UUID


@dataclass(frozen=True)
class Grant:
    """Seconds from now at which calls may start; where none may for long, how long; how many others wait.

    `slots`: how many calls more may be out until the sender asks again.
    """

    starts: list[float]
    slots: int
    blocked_seconds: float = 0.0
    rivals: int = 0


def _ahead(name: str) -> object:
    return func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, bindparam(name, type_=Double))


def _epoch(moment: Any) -> ColumnElement[float]:
    return cast(func.extract("epoch", moment), Double)


_NOW = _epoch(func.clock_timestamp())
_ROWS = and_(_limit.channel == bindparam("of_channel"), _limit.tenant.in_((WHOLE, bindparam("of_tenant"))))
_ENSURE = upsert(channel_limit).on_conflict_do_nothing()
_BLOCKED = select(func.coalesce(func.max(_epoch(_limit.blocked_until)) - _NOW, 0.0)).where(_ROWS)
_LOCK = (
    select(
        _limit.tenant,
        _epoch(_limit.next_at).label("next_at"),
        _epoch(_limit.blocked_until).label("blocked_until"),
        _limit.virtual_time,
    )
    .where(_ROWS)
    .order_by(_limit.tenant)
    .with_for_update()
)
_rivals = (
    select(
        _demand.tenant,
        _demand.small,
        func.sum(case((_demand.waits_until > func.clock_timestamp(), _demand.waiting), else_=0)).label("waiting"),
        func.sum(case((_demand.calls_until > func.clock_timestamp(), _demand.calls), else_=0)).label("calls"),
        func.count().label("senders"),
    )
    .where(_demand.channel == bindparam("of_channel"), _demand.sender != bindparam("of_sender"))
    .group_by(_demand.tenant, _demand.small)
    .subquery("rival")
)
_RIVALS = select(_NOW.label("now"), _rivals, _limit.virtual_time).select_from(
    select(literal(1)).subquery("one")
    .outerjoin(_rivals, true())
    .outerjoin(
        channel_limit, and_(_limit.channel == bindparam("of_channel"), _limit.tenant == _rivals.c.tenant)
    )
)  # fmt: skip
_TAKEN = (
    update(channel_limit)
    .where(_limit.channel == bindparam("of_channel"), _limit.tenant == bindparam("of_tenant"))
    .values(next_at=func.to_timestamp(bindparam("next", type_=Double)), virtual_time=bindparam("time", type_=Double))
)
_announced = upsert(channel_demand).values(
    channel=bindparam("of_channel"),
    sender=bindparam("of_sender"),
    tenant=bindparam("of_tenant"),
    small=bindparam("is_small"),
    waiting=bindparam("still_waiting"),
    calls=bindparam("calls_out"),
    waits_until=_ahead("waits_seconds"),
    calls_until=_ahead("calls_seconds"),
)
_ANNOUNCE = _announced.on_conflict_do_update(
    index_elements=[_demand.channel, _demand.sender],
    set_={name: _announced.excluded[name] for name in ("waiting", "calls", "waits_until", "calls_until")},
)
_LEAVE = delete(channel_demand).where(
    _demand.channel == bindparam("of_channel"), _demand.sender == bindparam("of_sender")
)
_FORGET = delete(channel_demand).where(
    _demand.channel == bindparam("of_channel"),
    func.greatest(_demand.waits_until, _demand.calls_until) < func.clock_timestamp(),
)
_blocked = upsert(channel_limit).values(
    channel=bindparam("of_channel"),
    tenant=bindparam("of_tenant"),
    blocked_until=_ahead("seconds"),
    next_at=_ahead("next_seconds"),
)
_BLOCK = _blocked.on_conflict_do_update(
    index_elements=[_limit.channel, _limit.tenant],
    set_={
        "blocked_until": func.greatest(_limit.blocked_until, _blocked.excluded.blocked_until),
        "next_at": func.greatest(_limit.next_at, _blocked.excluded.next_at),
    },
)
_UNDURABLE = text("SET LOCAL synchronous_commit = off")


def join_channel(connection: Connection, sender: Sender) -> None:
    """Make the rows that a sender's share is counted in; forget senders that are gone."""
    names = (WHOLE, sender.tenant)
    connection.execute(_ENSURE, [{"channel": sender.channel, "tenant": one} for one in names])
    connection.execute(_FORGET, {"of_channel": sender.channel})


def leave_channel(connection: Connection, sender: Sender) -> None:
    """The sender wants nothing more and has no call out."""
    connection.execute(_LEAVE, {"of_channel": sender.channel, "of_sender": sender.token})


def blocked_seconds(connection: Connection, channel: str, tenant: str) -> float:
    """For how long no call may be made for the tenant; an unlocked read."""
    values = {"of_channel": channel, "of_tenant": tenant}
    return max(0.0, float(connection.execute(_BLOCKED, values).scalar_one()))


def block(connection: Connection, sender: Sender, seconds: float) -> None:
    """The provider has said when it wants to be asked again: until then nobody does, and then without a burst."""
    limits = sender.limits
    whole = limits.shared_account
    rate, burst = (limits.rate, limits.burst) if whole else (limits.tenant_rate, limits.tenant_burst)
    bucket = Bucket(rate, burst)
    bucket.block(seconds)
    values = {"of_channel": sender.channel, "of_tenant": WHOLE if whole else sender.tenant}
    connection.execute(_BLOCK, values | {"seconds": seconds, "next_seconds": max(bucket.next_at, 0.0)})


def take(
    connection: Connection,
    sender: Sender,
    *,
    wanted: int,
    calls: int,
    held: int = 0,
    waits_seconds: float,
    calls_seconds: float,
) -> Grant:
    """The sender's share of the channel's next calls. It has `calls` out and `held` starts, and wants more.

    It holds the channel's row until the transaction ends; a sender that asks for nothing only tells its calls.
    """
    found = _locked(connection, sender)
    mine = Demand(sender.tenant, sender.small, 0 if found.blocked else wanted, calls, found.virtual_time, held)
    taken = share(found.standing, mine)
    if taken.starts:
        _write(connection, sender, found, taken)
    told = {
        "is_small": sender.small,
        "still_waiting": taken.waiting,
        "calls_out": calls + taken.slots,
        "waits_seconds": waits_seconds,
        "calls_seconds": calls_seconds,
    }
    connection.execute(_ANNOUNCE, _names(sender) | told)
    return Grant(taken.starts, taken.slots, found.blocked, found.senders)


@dataclass(frozen=True)
class _Locked:
    """The rows as they stand under the lock, times from `now` on."""

    standing: Standing
    virtual_time: float
    blocked: float
    senders: int
    now: float


def _names(sender: Sender) -> dict[str, Any]:
    return {"of_channel": sender.channel, "of_tenant": sender.tenant, "of_sender": sender.token}


def _locked(connection: Connection, sender: Sender) -> _Locked:
    rows = {row.tenant: row for row in connection.execute(_LOCK, _names(sender))}
    # read after the lock: what the one before has written, and a clock that doesn't stand before it
    found = list(connection.execute(_RIVALS, _names(sender)))
    now, limits, whole, own = float(found[0].now), sender.limits, rows[WHOLE], rows[sender.tenant]
    rivals = [
        Demand(row.tenant, row.small, int(row.waiting), int(row.calls), float(row.virtual_time or 0.0))
        for row in found
        if row.tenant is not None
    ]
    standing = Standing(
        limits,
        Bucket(limits.rate, limits.burst, float(whole.next_at or now) - now),
        Bucket(limits.tenant_rate, limits.tenant_burst, float(own.next_at or now) - now),
        float(whole.virtual_time),
        rivals,
    )
    blocked = max(0.0, max(float(row.blocked_until or 0.0) for row in rows.values()) - now)
    return _Locked(standing, float(own.virtual_time), blocked, sum(int(row.senders or 0) for row in found), now)


def _write(connection: Connection, sender: Sender, found: _Locked, taken: Share) -> None:
    standing, now = found.standing, found.now
    rows = [
        {"of_tenant": WHOLE, "next": now + standing.channel.next_at, "time": taken.served},
        {"of_tenant": sender.tenant, "next": now + standing.tenant.next_at, "time": taken.virtual_time},
    ]
    connection.execute(_TAKEN, [{"of_channel": sender.channel, **row} for row in rows])


def need_not_last(connection: Connection) -> None:
    """What this transaction writes may be lost in a crash of the database: no wait for its disk."""
    connection.execute(_UNDURABLE)
