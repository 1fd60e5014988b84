"""A held channel: its system refuses everybody (credentials, configuration). One row tells all jobs and workers."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Double, bindparam, cast, func, literal, select, union_all, update
from sqlalchemy.dialects.postgresql import insert as upsert

from bulklane.database.effect import OPEN_STATES
from bulklane.database.limit import WHOLE
from bulklane.database.storable import storable
from bulklane.database.tables import channel_limit, delivery, job, owed

FIRST_PROBE = 15.0
LONGEST_PROBE = 300.0
LONGEST_WHY = 500

_c = channel_limit.c


@dataclass(frozen=True)
class Hold:
    """Since when a channel is held, why, and when one call is tried again."""

    channel: str
    since: datetime
    why: str
    probe_at: datetime


@dataclass(frozen=True)
class ChannelRow:
    """A channel as its rows stand. `blocked`: by tenant, until when its provider wants no call."""

    channel: str
    held_since: datetime | None
    held_why: str
    probe_at: datetime | None
    blocked: dict[str, datetime]
    owed: int


_MINE = (_c.channel == bindparam("of_channel"), _c.tenant == WHOLE)
_HELD = _c.held_since.is_not(None)


def _in(seconds: object) -> object:
    return func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, cast(seconds, Double))


_ENSURE = upsert(channel_limit).values(channel=bindparam("of_channel"), tenant=literal(WHOLE)).on_conflict_do_nothing()
_HOLD = (
    update(channel_limit)
    .where(*_MINE, _c.held_since.is_(None))
    .values(held_since=func.clock_timestamp(), held_why=bindparam("why"), probe_at=_in(FIRST_PROBE), probes=0)
)
_PROBE = (
    update(channel_limit)
    .where(*_MINE, _HELD, _c.probe_at <= func.clock_timestamp())
    .values(
        probes=_c.probes + 1,
        probe_at=_in(func.least(LONGEST_PROBE, FIRST_PROBE * func.power(2, func.least(_c.probes + 1, 10)))),
    )
)
_RESUME = update(channel_limit).where(*_MINE, _HELD).values(held_since=None, held_why=None, probe_at=None, probes=0)
_READ = select(_c.channel, _c.held_since, _c.held_why, _c.probe_at).where(*_MINE, _HELD)
_STANDINGS = select(
    _c.channel,
    _c.tenant,
    _c.held_since,
    _c.held_why,
    _c.probe_at,
    (_c.blocked_until > func.clock_timestamp()).label("is_blocked"),
    _c.blocked_until,
).order_by(_c.channel, _c.tenant)
_debts = union_all(
    select(owed.c.channel, (owed.c.size - owed.c.taken_to).label("owed")).where(owed.c.taken_to < owed.c.size),
    select(delivery.c.channel, func.count()).where(delivery.c.state.in_(OPEN_STATES)).group_by(delivery.c.channel),
).subquery("debt")
_DEBTS = select(_debts.c.channel, func.sum(_debts.c.owed)).group_by(_debts.c.channel)
_WAITS = (
    select(_c.channel, _c.tenant, _c.held_since, _c.held_why, _c.blocked_until)
    .join(job, _c.channel == func.any(job.c.channels))
    .where(
        job.c.job_no == bindparam("of_job"),
        (_c.tenant == WHOLE) | (_c.tenant == job.c.tenant),
        _HELD | (_c.blocked_until > func.clock_timestamp()),
    )
    # where both are true, the hold is told
    .order_by(_c.channel, _HELD)
)


def hold(connection: Connection, channel: str, why: str) -> bool:
    """Hold the channel for everybody; True where it wasn't held before."""
    connection.execute(_ENSURE, {"of_channel": channel})
    return connection.execute(_HOLD, {"of_channel": channel, "why": storable(why, LONGEST_WHY)}).rowcount == 1


def read_hold(connection: Connection, channel: str) -> Hold | None:
    """The channel's hold, if it is held; an unlocked read."""
    row = connection.execute(_READ, {"of_channel": channel}).one_or_none()
    return None if row is None else Hold(*row)


def take_probe(connection: Connection, channel: str) -> bool:
    """Whether the caller is the one who may try a call on the held channel now; the next try is later each time."""
    return connection.execute(_PROBE, {"of_channel": channel}).rowcount == 1


def resume_channel(connection: Connection, channel: str) -> bool:
    """The hold ends; False where the channel wasn't held."""
    return connection.execute(_RESUME, {"of_channel": channel}).rowcount == 1


def list_channels(connection: Connection) -> list[ChannelRow]:
    """Every channel that has a row or owes something."""
    debts = {channel: int(count) for channel, count in connection.execute(_DEBTS)}
    rows = list(connection.execute(_STANDINGS))
    found = []
    for name in sorted(debts.keys() | {row.channel for row in rows}):
        own = [row for row in rows if row.channel == name]
        whole = next((row for row in own if row.tenant == WHOLE), None)
        blocked = {row.tenant: row.blocked_until for row in own if row.is_blocked}
        found.append(
            ChannelRow(
                channel=name,
                held_since=whole.held_since if whole else None,
                held_why=(whole.held_why or "") if whole else "",
                probe_at=whole.probe_at if whole else None,
                blocked=blocked,
                owed=debts.get(name, 0),
            )
        )
    return found


def waits_of(connection: Connection, job_no: int) -> dict[str, str]:
    """What keeps a job's effects from going out, by channel: held, or blocked by its provider."""
    return {
        row.channel: f"held since {row.held_since.isoformat(timespec='seconds')}: {row.held_why}"
        if row.held_since
        else f"blocked: its provider wants no call before {row.blocked_until.isoformat(timespec='seconds')}"
        for row in connection.execute(_WAITS, {"of_job": job_no})
    }
