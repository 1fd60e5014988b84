"""A sender's share of a channel's calls: plain arithmetic, under the lock of the channel's row.

The rate is a token bucket by virtual scheduling (GCRA, ITU-T I.371): a row says when the next call may start, and a
call that is let start moves it on by one interval. Starts are given out up to a horizon ahead, so that nothing is lost
between two rounds of a sender. Tenants share by start-time fair queueing (Goyal, Vin, Cheng 1996): each has a virtual
time that grows by 1/weight a call; who is furthest behind is served first, and nobody saves up while idle.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bulklane.contracts.limit import Limits

# how far ahead starts are given out, in seconds; a sender asks again well before they are used up
HORIZON = 0.4
# below this the next starts would soon be lost: anyone may have one
SCARCE = HORIZON / 4
# a tenant whose own rate holds it back takes no starts of the channel that others could use
TENANT_AHEAD = 0.05


@dataclass(frozen=True)
class Demand:
    """What one sender has and wants: `calls` out or about to be, and how many starts more are `waiting`.

    `held`: starts that it was given before and has not used yet.
    """

    tenant: str
    small: bool
    waiting: int
    calls: int
    virtual_time: float = 0.0
    held: int = 0


@dataclass
class Bucket:
    """A token bucket; `next_at` in seconds from now. Without a rate it never runs out."""

    rate: float | None
    burst: int = 1
    next_at: float = 0.0

    def start(self, behind: int = 0) -> float:
        """When the next call may start, after so many others."""
        if self.rate is None:
            return 0.0
        return max(0.0, max(self.next_at, 0.0) + (behind - self.burst + 1) / self.rate)

    def take(self) -> None:
        """One call is let start."""
        if self.rate is not None:
            self.next_at = max(self.next_at, 0.0) + 1 / self.rate

    def block(self, seconds: float) -> None:
        """No start before that, and then no burst."""
        if self.rate is not None:
            self.next_at = max(self.next_at, seconds + (self.burst - 1) / self.rate)


@dataclass
class Standing:
    """A channel and a tenant's part of it, as they stand under the lock."""

    limits: Limits
    channel: Bucket
    tenant: Bucket
    virtual_time: float
    rivals: Sequence[Demand] = field(default_factory=tuple)


@dataclass(frozen=True)
class Share:
    """Seconds from now at which calls may start, and the tenant's virtual times before and after them.

    `slots`: how many more calls may be out, for the starts held before too. `waiting`: how many
    it could use besides, if the channel had more.
    """

    starts: list[float]
    slots: int
    waiting: int
    served: float
    virtual_time: float


def share(standing: Standing, mine: Demand) -> Share:
    """Which of the wanted calls may start, and when."""
    weight = standing.limits.weight(mine.tenant)
    served = max(mine.virtual_time, standing.virtual_time)
    most = min(mine.waiting, _turn(standing, mine, served, weight))
    of_tenant, of_channel = _tenant_slots(standing, mine), _channel_slots(standing, mine)
    # a start takes its slot when it is given: else one whose calls hang would take starts that it can't use
    free = int(max(0, min(mine.waiting + mine.held, of_tenant, of_channel)))
    slots, own = min(mine.held, free), False
    before_me = 0 if mine.small else sum(one.waiting for one in standing.rivals if one.small)
    starts: list[float] = []
    while len(starts) < most:
        channel_at, tenant_at = standing.channel.start(before_me), standing.tenant.start()
        own = tenant_at > max(channel_at, TENANT_AHEAD)
        if channel_at > HORIZON or own or slots >= free:
            break
        slots += 1
        standing.channel.take()
        standing.tenant.take()
        starts.append(max(channel_at, tenant_at))
    # what its own limits keep back is in nobody's way
    waiting = 0 if own or slots >= of_tenant else mine.waiting - len(starts)
    return Share(starts, slots, waiting, served, served + len(starts) / weight)


def _tenant_slots(standing: Standing, mine: Demand) -> float:
    """How many calls more the tenant may have out: by its limit, and by its share while others wait."""
    limits = standing.limits
    most = float("inf") if limits.tenant_concurrency is None else limits.tenant_concurrency
    if limits.concurrency is not None:
        weight, others = limits.weight(mine.tenant), _waiting_others(standing.rivals, mine)
        fair = limits.concurrency * weight / (weight + sum(limits.weight(one) for one in others))
        most = min(most, max(1, int(fair)))
    return most - mine.calls - sum(one.calls for one in standing.rivals if one.tenant == mine.tenant)


def _channel_slots(standing: Standing, mine: Demand) -> float:
    """How many calls more all may have out, but for those that small jobs wait for."""
    if standing.limits.concurrency is None:
        return float("inf")
    rivals = standing.rivals
    before_me = 0 if mine.small else sum(one.waiting for one in rivals if one.small)
    return standing.limits.concurrency - mine.calls - sum(one.calls for one in rivals) - before_me


def _turn(standing: Standing, mine: Demand, served: float, weight: float) -> int:
    """How many calls until another waiting tenant is further behind."""
    others = _waiting_others(standing.rivals, mine)
    rate = standing.channel.rate
    if rate is None or not others:
        return mine.waiting
    least = min(max(time, standing.virtual_time) for time in others.values())
    if served <= least:
        return int((least - served) * weight) + max(1, int(rate * SCARCE))
    return 1 if standing.channel.next_at <= SCARCE else 0


def _waiting_others(rivals: Sequence[Demand], mine: Demand) -> dict[str, float]:
    """Virtual time by tenant of those who wait for what this sender wants."""
    return {
        one.tenant: one.virtual_time
        for one in rivals
        if one.tenant != mine.tenant and one.small == mine.small and one.waiting > 0
    }
