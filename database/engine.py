"""An engine from explicit values, and the time limits of a transaction."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, Function, bindparam, create_engine, func, select, text

OLDEST_SERVER = 170000
LOCK_SHARE = 0.75
LONGEST_NAME = 63


class DatabaseUnfit(RuntimeError):
    """The database can't hold what Bulklane promises; the message says why and what helps."""


def connect_engine(url: str, *, role: str, pool_size: int) -> Engine:
    """An engine whose pool never exceeds `pool_size`; `role` is shown as the application name.

    No prepared statements and no session settings, so that a transaction-mode pooler may stand in front.
    """
    return create_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=30,
        pool_pre_ping=True,
        # an error's text goes to logs, and parameters are record content
        hide_parameters=True,
        connect_args={
            "application_name": f"bulklane {role}"[:LONGEST_NAME],
            "connect_timeout": 10,
            "prepare_threshold": None,
        },
    )


def local_setting(name: str) -> Function[str]:
    """Selected, it sets what the parameter of the same name says, until the transaction's end."""
    return func.set_config(name, bindparam(name), True)


def set_locally(connection: Connection, settings: Mapping[str, str]) -> None:
    """These settings until the transaction's end, for the statements after this one."""
    connection.execute(select(*map(local_setting, settings)), settings)


def limits(*, statement: float, transaction: float) -> dict[str, str]:
    """The settings by which no statement and not the whole transaction may take longer than these seconds.

    PostgreSQL cancels the statement, and ends the session where the transaction outlives its limit
    (https://www.postgresql.org/docs/17/runtime-config-client.html): a client that froze holds no row for longer.
    """
    return {
        # shorter than the statement's, so that a wait for a lock is told from work that takes too long
        "lock_timeout": f"{int(statement * LOCK_SHARE * 1000)}ms",
        "statement_timeout": f"{int(statement * 1000)}ms",
        "transaction_timeout": f"{int(transaction * 1000)}ms",
    }


@contextmanager
def limited_transaction(engine: Engine, *, statement: float, transaction: float) -> Iterator[Connection]:
    """One transaction that has these limits from its start."""
    with engine.begin() as connection:
        set_locally(connection, limits(statement=statement, transaction=transaction))
        yield connection


class KeptConnection:
    """A connection kept from one transaction to the next; to take it from the pool each time costs a question more.

    After any error the next transaction has another one. Close it before a wait: whoever waits needs none.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction, committed at its end."""
        kept, self._connection = self._connection, None
        connection = self._engine.connect() if kept is None else kept
        try:
            with connection.begin():
                yield connection
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def close(self) -> None:
        """Back to the pool."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextmanager
def rolled_back_transaction(engine: Engine, *, statement: float, transaction: float) -> Iterator[Connection]:
    """The same, and whatever happens in it is never committed."""
    with limited_transaction(engine, statement=statement, transaction=transaction) as connection:
        try:
            yield connection
        finally:
            connection.rollback()


@contextmanager
def single_statements(engine: Engine) -> Iterator[Connection]:
    """A connection on which each statement commits by itself: a client that freezes between two holds no row."""
    with engine.connect() as connection:
        yield connection.execution_options(isolation_level="AUTOCOMMIT")


def check_server(connection: Connection, deadlock_timeout: float) -> None:
    """Raise DatabaseUnfit where the server is too old, or its `deadlock_timeout` isn't the one that we count on."""
    version = int(connection.scalar(text("SHOW server_version_num")) or 0)
    if version < OLDEST_SERVER:
        raise DatabaseUnfit(
            f"PostgreSQL {version // 10000} has no transaction_timeout, which chunks rely on: use 17 or newer"
        )
    actual = connection.scalar(
        text("SELECT extract(epoch FROM setting::bigint * interval '1 ms') FROM pg_settings WHERE name = :name"),
        {"name": "deadlock_timeout"},
    )
    if actual is None or float(actual) < deadlock_timeout:
        raise DatabaseUnfit(
            f"the server's deadlock_timeout is {actual} s and BULKLANE_DEADLOCK_TIMEOUT says {deadlock_timeout:g} s:"
            " a chunk could make PostgreSQL end a user's transaction; lower the chunk times or raise the server's"
        )
