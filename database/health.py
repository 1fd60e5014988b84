"""How the database is: replication lag, sessions that wait for locks, connections in use. One cheap query."""

from dataclasses import dataclass

from sqlalchemy import Connection, Float, Integer, Text, cast, column, func, literal_column, or_, select, table

# A user who waits for a chunk waits about its target's time: that is no sign of strain.
SHORT_WAIT_SECONDS = 0.25


@dataclass(frozen=True)
class Health:
    """One reading. `replication_lag` in seconds, None where no replica streams or the role may not see it.

    `lock_waits`: sessions other than Bulklane's that have waited for a lock for longer than a chunk takes.
    `connections`: the share of max_connections in use.
    """

    replication_lag: float | None
    lock_waits: int
    connections: float


# https://www.postgresql.org/docs/18/monitoring-stats.html and view-pg-locks.html. Of other roles' sessions a plain
# user sees numbers and databases, but neither states nor lags: those columns are NULL then.
_replication = table("pg_stat_replication", column("state", Text), column("replay_lag"), schema="pg_catalog")
_activity = table(
    "pg_stat_activity", column("pid", Integer), column("datname", Text), column("application_name", Text),
    schema="pg_catalog",
)  # fmt: skip
_locks = table("pg_locks", column("pid", Integer), column("granted"), column("waitstart"), schema="pg_catalog")
_databases = table("pg_stat_database", column("numbackends", Integer), schema="pg_catalog")

_LAG = (
    select(func.max(cast(func.extract("epoch", _replication.c.replay_lag), Float)))
    # one that is being built or catches up lags without telling anything of the load
    .where(_replication.c.state == "streaming")
    .scalar_subquery()
)
_WAITS = (
    select(func.count(_locks.c.pid.distinct()))
    .select_from(_locks.join(_activity, _activity.c.pid == _locks.c.pid))
    .where(
        ~_locks.c.granted,
        _activity.c.datname == func.current_database(),
        # our own give way by themselves; a name that can't be seen is another's
        or_(_activity.c.application_name.is_(None), _activity.c.application_name.not_like("bulklane %")),
        _locks.c.waitstart < func.clock_timestamp() - func.make_interval(0, 0, 0, 0, 0, 0, SHORT_WAIT_SECONDS),
    )
    .scalar_subquery()
)
_USED = select(func.sum(_databases.c.numbackends)).scalar_subquery()
_MOST = cast(func.current_setting(literal_column("'max_connections'")), Float)
_READ = select(_LAG, _WAITS, cast(_USED, Float) / _MOST)


def read_health(connection: Connection) -> Health:
    """A reading now."""
    lag, waits, share = connection.execute(_READ).one()
    return Health(None if lag is None else float(lag), int(waits), float(share or 0.0))
