"""A held channel as one delivery sees it: nothing is sent but a probe, until the hold is over."""

from typing import Protocol

import structlog
from prometheus_client import Gauge
from sqlalchemy import Connection

from bulklane.database.hold import hold, read_hold, resume_channel, take_probe

HELD = Gauge("bulklane_channel_held", "1 while the channel is held: its system refuses everybody", ["channel"])
log = structlog.get_logger("bulklane.channel")


class Holdable(Protocol):
    """A delivery that can be stopped. `held`: why its own call was refused; `settled`: calls."""

    held: str | None
    settled: int

    @property
    def concluded(self) -> int:
        """Calls with a result."""

    def try_one(self) -> None:
        """Send one, where nothing is sent otherwise."""


class ChannelHold:
    """Keeps the channel's hold and one delivery in step; called between two rounds."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._probe: tuple[int, int] | None = None

    def note(self, connection: Connection, delivery: Holdable) -> None:
        """Write what the delivery has found out: the channel refuses everybody, or answers again."""
        if delivery.held is not None:
            self._probe = None
            if hold(connection, self._channel, delivery.held):
                log.error("channel held", channel=self._channel, why=delivery.held)
            delivery.held = None
        elif self._probe is not None:
            self._judge(connection, delivery, *self._probe)

    def why(self, connection: Connection, delivery: Holdable) -> str | None:
        """Why nothing may be sent now, for people; None: go on."""
        if self._probe is not None:
            return None
        found = read_hold(connection, self._channel)
        HELD.labels(self._channel).set(0 if found is None else 1)
        if found is None:
            return None
        if take_probe(connection, self._channel):
            self._probe = (delivery.settled, delivery.concluded)
            delivery.try_one()
            return None
        return f"channel {self._channel} is held since {found.since.isoformat(timespec='seconds')}: {found.why}"

    def _judge(self, connection: Connection, delivery: Holdable, settled: int, concluded: int) -> None:
        """What the probe says: a result ends the hold, no result leaves it to the next probe."""
        if delivery.concluded > concluded and resume_channel(connection, self._channel):
            log.info("channel goes on", channel=self._channel)
        if delivery.settled > settled:
            self._probe = None
