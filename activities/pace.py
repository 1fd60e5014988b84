"""The pace of a walk: every reason to go slower says which rate it allows and why; the slowest wins, and is shown.

The reasons are the job's throttle, the database's health (`health.py`) and the job's debt. All of them are rows a
second of the whole job, kept by one clock of the job in the database (`database/throttle.py`): so the total is right
however many ranges walk, however uneven they are, and however many slots they get.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from bulklane.database import range as ranges
from bulklane.database.debt import count_debt
from bulklane.database.engine import single_statements
from bulklane.database.range import RangeRef
from bulklane.database.throttle import take_rows
from bulklane.database.wish import Wanted

# How much of a rate one chunk may take: what comes first is never more, and a wait for the next is short.
CHUNK_SECONDS = 0.5
# A longer wait is a timer's matter: the slot is given up.
LONGEST_IN_SLOT = 2.0
DEBT_EVERY = 1.0
SLOWEST_BY_DEBT = 10.0
# Nobody has to look before something changes: a look wakes the stream at once.
HELD_BY_PARALLELISM = 600.0


@dataclass(frozen=True)
class PaceLimits:
    """When a bulk job goes slower (above `slow`), and when none starts a chunk (above `hold`).

    Lags in seconds; lock waits in sessions other than Bulklane's; connections as a share of the server's
    max_connections. `slow_rows_per_second`: of each job while the database is strained. `debt_limit`: effects that a
    job owes; above it the walk slows more and more, down to 10 rows a second at twice the limit.
    """

    replication_lag_slow: float = 10.0
    replication_lag_hold: float = 60.0
    lock_waits_slow: float = 10.0
    lock_waits_hold: float = 50.0
    connections_slow: float = 0.85
    connections_hold: float = 0.95
    slow_rows_per_second: float = 500.0
    debt_limit: int = 1_000_000


@dataclass(frozen=True)
class Allowance:
    """What one reason allows the job: rows a second over all its ranges. 0: no chunk for `retry_seconds`."""

    rows_per_second: float
    why: str
    retry_seconds: float = 0.0


Reason = Callable[[Wanted], Allowance | None]


@dataclass(frozen=True)
class Turn:
    """What the walker may do now: a chunk of so many rows; or wait so many seconds, without a slot where held."""

    rows: int = 0
    seconds: float = 0.0
    held: bool = False


class Pace:
    """One attempt's pace. `why` is what it is slowed by; empty where it isn't."""

    def __init__(self, engine: Engine, ref: RangeRef, reasons: Sequence[Reason]) -> None:
        self.why = ""
        self._engine = engine
        self._ref = ref
        self._reasons = [self._parallelism, throttle_rate, *reasons]
        self._taken = 0

    def turn(self, wanted: Wanted, rows: int) -> Turn:
        """May a chunk of that many rows start?"""
        found = [allowed for reason in self._reasons if (allowed := reason(wanted)) is not None]
        if not found:
            self.why, self._taken = "", 0
            return Turn(rows)
        slowest = min(found, key=lambda allowed: allowed.rows_per_second)
        self.why = slowest.why
        if slowest.rows_per_second <= 0:
            return Turn(seconds=slowest.retry_seconds, held=True)
        most = max(1, min(rows, int(slowest.rows_per_second * CHUNK_SECONDS)))
        # what a chunk that failed had taken is still there
        return Turn(min(most, self._taken)) if self._taken else self._take(most, slowest.rows_per_second)

    def used(self, rows: int) -> None:
        """So many rows were walked."""
        self._taken = max(0, self._taken - rows)

    def _take(self, rows: int, rows_per_second: float) -> Turn:
        with single_statements(self._engine) as connection:
            seconds = take_rows(connection, self._ref.job_no, rows, rows_per_second)
        if seconds > 0:
            return Turn(seconds=seconds, held=seconds > LONGEST_IN_SLOT)
        self._taken = rows
        return Turn(rows)

    def _parallelism(self, wanted: Wanted) -> Allowance | None:
        most = wanted.throttle.parallelism
        if most is None or self._ref.range_no < most:
            return None
        with single_statements(self._engine) as connection:
            before = ranges.undone_before(connection, self._ref)
        if before < most:
            return None
        return Allowance(0.0, f"the throttle lets {most} ranges walk side by side", HELD_BY_PARALLELISM)


def throttle_rate(wanted: Wanted) -> Allowance | None:
    """What the job's throttle allows."""
    rate = wanted.throttle.rows_per_second
    return None if rate is None else Allowance(rate, f"the throttle allows {rate:,.10g} rows/s")


class Debt:
    """What the effects that a job owes allow: less and less above the limit, never nothing. Counted once a second."""

    def __init__(self, engine: Engine, job_no: int, tenant: str, limits: PaceLimits) -> None:
        self._engine = engine
        self._job_no = job_no
        self._tenant = tenant
        self._limits = limits
        self._counted_at = float("-inf")
        self._debt = 0

    def __call__(self, _wanted: Wanted) -> Allowance | None:
        """The rate falls from `slow_rows_per_second` at the limit to 10 at twice the limit."""
        if time.monotonic() - self._counted_at > DEBT_EVERY:
            with single_statements(self._engine) as connection:
                self._debt = count_debt(connection, self._job_no, self._tenant)
            self._counted_at = time.monotonic()
        limit = self._limits.debt_limit
        if self._debt <= limit:
            return None
        rate = max(SLOWEST_BY_DEBT, self._limits.slow_rows_per_second * (2 - self._debt / limit))
        return Allowance(rate, f"{self._debt:,} effects are owed, more than {limit:,}: {rate:,.0f} rows/s")
