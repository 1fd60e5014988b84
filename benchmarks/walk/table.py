"""The table that is walked: the flights of the example, copied up, with a status and 200 bytes of details."""

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    make_url,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from examples.flights.dataset import load

TENANT = "nyc"

metadata = MetaData()

flights = Table(
    "flights_large",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", Text, nullable=False),
    Column("carrier", Text, nullable=False),
    Column("flight_number", Integer, nullable=False),
    Column("departure", DateTime(timezone=True), nullable=False),
    Column("status", Text, nullable=False),
    Column("details", JSONB, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False),
    # else the server's housekeeping would fall into one contender's time and not into another's
    postgresql_with={"autovacuum_enabled": "false"},
)

_FILL = text("""
INSERT INTO flights_large
SELECT copy * 1000000 + flight_id, :tenant, carrier, flight_number, scheduled_departure, 'scheduled',
       jsonb_build_object('origin', origin, 'destination', destination, 'tail', tail_number,
                          'miles', distance_miles, 'remark', repeat('x', 110)),
       1, scheduled_departure
FROM generate_series(0, :copies) AS copy, flights
WHERE copy * (SELECT count(*) FROM flights) + flight_id <= :rows
ORDER BY 1
""")
_EMPTY = text("TRUNCATE flights_large")
_CHANGED_ONCE = text("SELECT count(*) FROM flights_large WHERE status = 'moved' AND version = 2")
_BYTES = text("SELECT pg_relation_size('flights_large') / count(*) FROM flights_large")


def make_tables(database_url: str, _search_url: str) -> None:
    """The source and the empty table."""
    load(database_url)
    engine = create_engine(make_url(database_url).set(drivername="postgresql+psycopg"))
    metadata.create_all(engine)
    engine.dispose()


def fill(engine: Engine, rows: int) -> None:
    """The table as new: filled in key order, vacuumed, nothing left to write back."""
    with engine.begin() as connection:
        connection.execute(_EMPTY)
        source = connection.execute(text("SELECT count(*) FROM flights")).scalar_one()
        connection.execute(_FILL, {"tenant": TENANT, "rows": rows, "copies": rows // source})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE flights_large"))
        connection.execute(text("CHECKPOINT"))


def check_changed(connection: Connection, rows: int) -> None:
    """Raises AssertionError where not each of the rows is changed, once."""
    changed = connection.execute(_CHANGED_ONCE).scalar_one()
    assert changed == rows, f"{changed} of {rows} rows are changed once"


def bytes_a_row(connection: Connection) -> int:
    """The table's size by its rows; twice that of a row after each was changed."""
    return int(connection.execute(_BYTES).scalar_one())
