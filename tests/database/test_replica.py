"""Replication lag of a real standby that replays three seconds late: seen, told, and over when it has caught up."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from bulklane.activities.health import HealthWatch
from bulklane.activities.pace import Allowance, PaceLimits
from bulklane.contracts.job import Wish
from bulklane.contracts.message import Throttle
from bulklane.database.engine import connect_engine
from bulklane.database.health import read_health
from bulklane.database.wish import Wanted
from bulklane.stack import Postgres
from tests.database.jobs import at_second
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ANY = Wanted(Wish.RUN, "", "", at_second(0), Throttle())
FAST = {"fsync": "off", "wal_receiver_status_interval": "1s"}


@pytest.fixture
def primary() -> Iterator[Engine]:
    """A server with a standby that replays late."""
    with tempfile.TemporaryDirectory(prefix="bl-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = Postgres(folder / "primary", FAST)
        server.start()
        server.stop()
        standby = Postgres(
            folder / "standby",
            FAST | {"primary_conninfo": server.dsn.replace(" dbname=postgres", ""), "recovery_min_apply_delay": "3s"},
        )
        standby.folder.mkdir(mode=0o755)
        subprocess.run(["cp", "-a", str(server.data), str(standby.data)], check=True)
        subprocess.run(["cp", "-a", str(server.data / "PG_VERSION"), str(standby.data / "standby.signal")], check=True)
        server.start()
        standby.start()
        engine = create_engine(server.url)
        try:
            yield engine
        finally:
            engine.dispose()
            standby.stop()
            server.stop()


def lag_of(engine: Engine) -> float | None:
    with engine.connect() as connection:
        return read_health(connection).replication_lag


def test_lag_slows_and_is_told_and_ends(primary: Engine) -> None:
    with primary.begin() as connection:
        connection.execute(text("CREATE TABLE note (n int)"))
        connection.execute(text("CREATE ROLE plain_walker LOGIN"))
    watch = HealthWatch(primary, PaceLimits(replication_lag_slow=1.0, replication_lag_hold=60.0))

    def write() -> float:
        with primary.begin() as connection:
            connection.execute(text("INSERT INTO note VALUES (1)"))
        return lag_of(primary) or 0.0

    until(lambda: write() > 1.5, what="the lag is seen")
    plain = connect_engine(
        primary.url.set(username="plain_walker").render_as_string(hide_password=False), role="test", pool_size=1
    )
    assert lag_of(plain) is None, "a plain user may not see it: not known is no strain"
    plain.dispose()

    def allowed() -> Allowance | None:
        write()
        return watch(ANY)

    found = until(allowed, what="the lag slows")
    assert found is not None
    assert found.rows_per_second == 500
    assert found.why.startswith("the database is strained: replication lag ")
    assert found.why.endswith(" s (limit 1 s): 500 rows/s")
    until(lambda: watch(ANY) is None, what="the standby has caught up")
