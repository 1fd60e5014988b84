"""One real PostgreSQL for the test run; each test gets a database of its own, cloned from a migrated template."""

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from sqlalchemy import Engine, NullPool, create_engine, make_url, text

from bulklane.database.migrate import migrate
from bulklane.stack import Postgres

_numbers = itertools.count(1)
TEMPLATE = "template_bulklane"


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server in a folder of its own, that every account can reach."""
    with tempfile.TemporaryDirectory(prefix="bl-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        server = Postgres(Path(folder) / "pg", {"fsync": "off", "synchronous_commit": "off"})
        server.start()
        try:
            yield server
        finally:
            server.stop()


def make_template(server_url: str) -> None:
    """The database from which tests' databases are cloned: Bulklane's schema, migrated."""
    _administer(server_url, f'CREATE DATABASE "{TEMPLATE}"')
    engine = create_engine(with_database(server_url, TEMPLATE))
    migrate(engine)
    engine.dispose()


@contextmanager
def fresh_database(server_url: str, template: str = TEMPLATE) -> Iterator[str]:
    """The URL of a database of one's own; dropped afterwards."""
    name = f"test_{next(_numbers)}"
    _administer(server_url, f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
    try:
        yield with_database(server_url, name)
    finally:
        _administer(server_url, f'DROP DATABASE "{name}" WITH (FORCE)')


def with_database(server_url: str, name: str) -> str:
    """The same server's URL for another database."""
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)


def _administer(server_url: str, statement: str) -> None:
    with _administrator(server_url).connect() as connection:
        connection.execute(text(statement))


@cache
def _administrator(server_url: str) -> Engine:
    return create_engine(server_url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
