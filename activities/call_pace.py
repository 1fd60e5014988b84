"""When the calls of one sender may start: its share of the channel's rate and slots, and what is blocked."""

import random
import time

from sqlalchemy import Connection

from bulklane.database import limit
from bulklane.database.limit import Sender

SHORTEST_BACKOFF = 0.5
LONGEST_BACKOFF = 60.0
# a start that was let pass is not made up for in a burst
START_LIFE = 0.1
# demand is believed so long beside two rounds
DEMAND_LIFE = 0.25
# how long a sender that found nothing waits, and more for each that waits beside it
ASK_SECONDS = 0.02
ASK_SECONDS_A_RIVAL = 0.01
SHORTEST_ASK = 0.005
LONGEST_ASK = 1.0
SPREAD_SHARE = 0.1
LONGEST_SPREAD = 5.0
CALLS_MARGIN = 5.0
# how old what others were told may be, where a channel has no limits: a statement less in most rounds
READ_SECONDS = 0.1


def backoff(attempts: int) -> float:
    """Jitter over a doubling ceiling (AWS Architecture Blog, "Exponential Backoff And Jitter"), at least half of it."""
    ceiling = min(LONGEST_BACKOFF, SHORTEST_BACKOFF * 2 ** min(max(attempts - 1, 0), 10))
    return random.uniform(ceiling / 2, ceiling)  # noqa: S311


def look_up_backoff(doubtful_seconds: float) -> float:
    """Jitter over half the age of the doubt: it grows like `backoff`, though a failed look-up is no attempt."""
    ceiling = min(LONGEST_BACKOFF, max(SHORTEST_BACKOFF, doubtful_seconds / 2))
    return random.uniform(ceiling / 2, ceiling)  # noqa: S311


class CallPace:
    """One sender's starts. `take` and `tell` run in the thread of a round, one at a time; times are monotonic.

    `mark_ahead`: a call whose start is that near may be marked already.
    """

    def __init__(self, sender: Sender, call_seconds: float, mark_ahead: float) -> None:
        self._mark_ahead = mark_ahead
        self._ask_every = ASK_SECONDS
        self._sender = sender
        self._calls_seconds = call_seconds * 2 + CALLS_MARGIN
        self._starts: list[float] = []
        self._blocked_until = 0.0
        self._read_at = 0.0
        self._untold = 0.0
        self._troubles = 0
        self._window: float = float("inf")
        self._told_calls = 0
        self._most_calls: float = float("inf")
        self._joined = False

    @property
    def blocked_seconds(self) -> float:
        """For how long no call may start."""
        return max(0.0, self._blocked_until - time.monotonic())

    @property
    def ask_seconds(self) -> float:
        """How long to wait for the next round: for its turn to ask again, or the next start."""
        if not self._starts:
            return self._ask_every
        # several of them at once, each still ahead of its time
        return min(self._ask_every, max(SHORTEST_ASK, self._starts[0] - time.monotonic() - self._mark_ahead / 2))

    def try_one(self) -> None:
        """One call at once, until they go well again."""
        self._window = 1.0

    def note_done(self) -> None:
        """A call went well: twice as many at once as before."""
        self._troubles = 0
        self._window *= 2

    def note_later(self, seconds: float | None) -> float:
        """The provider wants no call before that, or doesn't say when: a backoff of ours. How long it is."""
        if seconds is None:
            # many calls out at once that are turned away are one trouble
            self._troubles += self.blocked_seconds == 0
            seconds = backoff(self._troubles)
        self._block(seconds)
        self._untold = max(self._untold, seconds)
        return seconds

    def take(self, connection: Connection, room: int, calls: int, claimable: int) -> list[float]:
        """When the next calls may start, at most `room`; `calls` are out, and there are `claimable` to make."""
        if self.blocked_seconds:
            return []
        room = int(min(room, self._window - calls))
        sender = self._sender
        if not sender.limits.any:
            if time.monotonic() > self._read_at:
                self._follow(limit.blocked_seconds(connection, sender.channel, sender.tenant))
                self._read_at = time.monotonic() + READ_SECONDS
            return [] if self.blocked_seconds else [time.monotonic()] * max(0, room)
        self._starts = [one for one in self._starts if one > time.monotonic() - START_LIFE]
        held = len(self._starts)
        wanted = max(0, min(room, claimable) - held)
        if wanted or (self._counts_calls and (calls != self._told_calls or held > self._most_calls - calls)):
            self._ask(connection, wanted, calls, held)
        due = sum(one <= time.monotonic() + self._mark_ahead for one in self._starts)
        return list(self._starts[: int(max(0, min(due, room, self._most_calls - calls)))])

    def use(self, count: int) -> None:
        """So many of the starts are taken."""
        del self._starts[:count]

    def tell(self, connection: Connection) -> None:
        """Write for all senders what the provider has said."""
        if self._untold:
            limit.block(connection, self._sender, self._untold)
            self._untold = 0.0

    def leave(self, connection: Connection) -> None:
        """No calls are out and none is wanted."""
        if self._joined:
            limit.leave_channel(connection, self._sender)

    @property
    def _counts_calls(self) -> bool:
        limits = self._sender.limits
        return limits.concurrency is not None or limits.tenant_concurrency is not None

    def _ask(self, connection: Connection, wanted: int, calls: int, held: int) -> None:
        if not self._joined:
            limit.join_channel(connection, self._sender)
            self._joined = True
        grant = limit.take(
            connection,
            self._sender,
            wanted=wanted,
            calls=calls,
            held=held,
            waits_seconds=2 * self._ask_every + DEMAND_LIFE,
            calls_seconds=self._calls_seconds,
        )
        now = time.monotonic()
        self._told_calls = calls
        if self._counts_calls:
            self._most_calls = calls + grant.slots
        self._starts += [now + one for one in grant.starts]
        self._ask_every = min(LONGEST_ASK, ASK_SECONDS + grant.rivals * ASK_SECONDS_A_RIVAL)
        self._follow(grant.blocked_seconds)

    def _follow(self, seconds: float) -> None:
        """What another sender was told."""
        if seconds > 0:
            self._block(seconds)

    def _block(self, seconds: float) -> None:
        # all come back at the same moment: where no rate spreads them, chance does
        spread = 0.0 if self._sender.limits.any else random.uniform(0, min(LONGEST_SPREAD, seconds * SPREAD_SHARE))  # noqa: S311
        until = time.monotonic() + seconds
        if until > self._blocked_until:
            self._blocked_until = until + spread
        self._starts.clear()
        if not self._sender.limits.any:
            self.try_one()
