"""The database's health as a reason to go slower: read once a second in each process, for all its walkers."""

import time
from threading import Lock

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from bulklane.activities.pace import Allowance, PaceLimits
from bulklane.database.engine import limited_transaction
from bulklane.database.health import Health, read_health
from bulklane.database.wish import Wanted

EVERY_SECONDS = 1.0
HELD_SECONDS = 15.0
# What has passed a limit is over only this far below it, so that the walk doesn't flap.
RELIEF = 0.8

log = structlog.get_logger("bulklane.health")


class Strain:
    """One measure against its two limits, with hysteresis."""

    def __init__(self, name: str, slow: float, hold: float, unit: str) -> None:
        self._name, self._limits, self._unit = name, (slow, hold), unit
        self._level = 0

    def level(self, value: float | None) -> int:
        """0: fine, or not known; 1: go slower; 2: hold."""
        if value is None:
            self._level = 0
            return 0
        passed = [
            value > limit * (RELIEF if self._level >= number else 1.0)
            for number, limit in enumerate(self._limits, start=1)
        ]
        self._level = 2 if passed[1] else int(passed[0])
        return self._level

    def why(self, value: float | None) -> str:
        """For people: the measure and the limit that was passed."""
        limit = self._limits[max(self._level, 1) - 1]
        return f"{self._name} {value or 0:.3g}{self._unit} (limit {limit:g}{self._unit})"


class HealthWatch:
    """What the database's health allows a bulk job. Shared by the walkers of a process."""

    def __init__(self, engine: Engine, limits: PaceLimits, *, query_seconds: float = 0.5) -> None:
        self._engine = engine
        self._query_seconds = query_seconds
        self._rate = limits.slow_rows_per_second
        self._lag = Strain("replication lag", limits.replication_lag_slow, limits.replication_lag_hold, " s")
        self._waits = Strain("lock waits", limits.lock_waits_slow, limits.lock_waits_hold, "")
        self._used = Strain("connections in use", limits.connections_slow, limits.connections_hold, " of all")
        self._lock = Lock()
        self._read_at = float("-inf")
        self._allowed: Allowance | None = None

    def __call__(self, _wanted: Wanted) -> Allowance | None:
        """The last reading's word; a walker that finds another one reading goes by the one before."""
        if time.monotonic() - self._read_at > EVERY_SECONDS and self._lock.acquire(blocking=False):
            try:
                self._allowed = self._judge(self._read())
                self._read_at = time.monotonic()
            finally:
                self._lock.release()
        return self._allowed

    def _read(self) -> Health | None:
        seconds = self._query_seconds
        try:
            with limited_transaction(self._engine, statement=seconds, transaction=seconds * 1.5) as connection:
                return read_health(connection)
        except SQLAlchemyError as error:
            # a database that can't be asked is the chunk's trouble, and is told there
            log.warning("health not known", error=type(error).__name__)
            return None

    def _judge(self, health: Health | None) -> Allowance | None:
        readings: list[tuple[Strain, float | None]] = [
            (self._lag, None if health is None else health.replication_lag),
            (self._waits, None if health is None else float(health.lock_waits)),
            (self._used, None if health is None else health.connections),
        ]
        level, strain, value = max(
            ((strain.level(value), strain, value) for strain, value in readings), key=lambda found: found[0]
        )
        if level == 0:
            return None
        why = f"the database is strained: {strain.why(value)}"
        if level == 1:
            return Allowance(self._rate, f"{why}: {self._rate:,.10g} rows/s")
        return Allowance(0.0, f"{why}: no chunk is started", HELD_SECONDS)
