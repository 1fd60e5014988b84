"""What a caller is told of the channels, and how a hold is ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Engine

from bulklane.contracts.limit import Limits
from bulklane.database import hold
from bulklane.operations.channel import Channel


class ChannelUnknown(LookupError):
    """No channel has that name; the message lists those there are."""


@dataclass(frozen=True)
class ChannelStatus:
    """A channel at one moment.

    `blocked`: by tenant (empty: all of them), until when its provider wants no call. `held_since`: its system refuses
    everybody; one call is tried at `probe_at`. `limits`: as the channel declares them, where its module is loaded here.
    """

    name: str
    owed: int
    held_since: datetime | None
    held_why: str
    probe_at: datetime | None
    blocked: dict[str, datetime] = field(default_factory=dict)
    limits: Limits | None = None


def read_channels(engine: Engine, declared: Mapping[str, Channel]) -> list[ChannelStatus]:
    """Every channel that is declared, has a row or owes something, by name."""
    with engine.connect() as connection:
        rows = {row.channel: row for row in hold.list_channels(connection)}
    found = []
    for name in sorted(rows.keys() | declared.keys()):
        row, limits = rows.get(name), declared[name].limits if name in declared else None
        if row is None:
            found.append(ChannelStatus(name, 0, None, "", None, {}, limits))
        else:
            found.append(ChannelStatus(name, row.owed, row.held_since, row.held_why, row.probe_at, row.blocked, limits))
    return found


def end_hold(engine: Engine, declared: Mapping[str, Channel], name: str) -> bool:
    """End the channel's hold; False where there was none. Raises ChannelUnknown."""
    with engine.begin() as connection:
        if hold.resume_channel(connection, name):
            return True
    known = [one.name for one in read_channels(engine, declared)]
    if name not in known:
        raise ChannelUnknown(f"there is no channel {name!r}; known: {', '.join(known) or 'none'}")
    return False
