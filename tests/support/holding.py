"""Holding a process at a named point inside the database: a trigger that waits for a row which the test has locked."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine, text

from bulklane.starter.local import LocalStack
from tests.support.waiting import until

_TABLE = """
CREATE TABLE IF NOT EXISTS hold_point (point text PRIMARY KEY);
CREATE OR REPLACE FUNCTION hold_here() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM hold_point WHERE point = TG_ARGV[0] FOR SHARE;
  RETURN COALESCE(NEW, OLD);
END $$;
"""

# where each point's trigger stands
TRIGGERS = {
    "after apply": "CREATE TRIGGER hold BEFORE INSERT ON bulklane.chunk FOR EACH ROW",
    "before commit": (
        "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON bulklane.chunk DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
    ),
    "in freeze": "CREATE TRIGGER hold BEFORE INSERT ON bulklane.block FOR EACH ROW",
    "in search": "CREATE TRIGGER hold BEFORE INSERT ON bulklane.search_page FOR EACH ROW",
    "in release": "CREATE TRIGGER hold BEFORE DELETE ON bulklane.lease FOR EACH ROW",
    "in close": (
        "CREATE TRIGGER hold BEFORE UPDATE ON bulklane.job FOR EACH ROW"
        " WHEN (NEW.over_at IS NOT NULL AND OLD.over_at IS NULL)"
    ),
}
_TABLE_OF = {
    "after apply": "chunk",
    "before commit": "chunk",
    "in freeze": "block",
    "in search": "search_page",
    "in release": "lease",
    "in close": "job",
}

_WAITING = text(
    """SELECT application_name FROM pg_stat_activity
       WHERE application_name LIKE :role AND wait_event_type = 'Lock' ORDER BY xact_start"""
)


@dataclass(frozen=True)
class Held:
    """A worker process that waits in the database."""

    name: str
    pid: int


@contextmanager
def held_at(engine: Engine, point: str) -> Iterator[None]:
    """Whoever comes to the point waits there until the block ends."""
    with engine.begin() as connection:
        connection.execute(text(_TABLE))
        connection.execute(text("INSERT INTO hold_point VALUES (:p) ON CONFLICT DO NOTHING"), {"p": point})
        connection.execute(text(f"{TRIGGERS[point]} EXECUTE FUNCTION hold_here('{point}')"))
    try:
        with engine.begin() as connection:
            connection.execute(text("SELECT 1 FROM hold_point WHERE point = :p FOR UPDATE"), {"p": point})
            yield
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"DROP TRIGGER hold ON bulklane.{_TABLE_OF[point]}"))


def waiting(local: LocalStack, engine: Engine, role: str, *, seconds: float = 20) -> Held:
    """The worker of a role (`bulk`, `control`, ...) that waits for a lock, as soon as there is one."""

    def found() -> list[str]:
        with engine.begin() as connection:
            return list(connection.execute(_WAITING, {"role": f"bulklane {role} %"}).scalars())

    name = until(found, seconds, what=f"a {role} worker waits")[0]
    pid = int(name.split(":")[-1].split("/")[0])
    return Held(next(name for name, one in local.stack.workers.items() if one.pid == pid), pid)
