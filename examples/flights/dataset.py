"""The flights of 2013 out of New York (nycflights13, CC0): read from the CSV, and loaded into PostgreSQL.

The CSV gives departures as New York's local time without offset. They become instants by one rule, here and nowhere
else. Where a local time occurs twice (the hour before the clocks go back), the first one is meant. Where it does not
occur at all (the hour skipped in March), it counts on from the time before the gap: 02:30 is the instant called 03:30.
The data of 2013 has no departure in either hour, so PostgreSQL's own, different rule gives the same instants for it.
"""

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import cast
from zoneinfo import ZoneInfo

import psycopg
from sqlalchemy import Connection, create_engine, func, make_url, select, text

from examples.flights.tables import flights, metadata

SOURCE = Path(__file__).with_name("flights.csv.gz")
NEW_YORK = ZoneInfo("America/New_York")

_LOAD_LOCK = 20_130_101
_COPY = """
COPY flights (flight_id, carrier, flight_number, tail_number, origin, destination, scheduled_departure, distance_miles)
FROM STDIN (FORMAT binary)
"""
_COPY_TYPES = ("int8", "text", "int4", "text", "text", "text", "timestamptz", "int4")


@dataclass(frozen=True, slots=True)
class Flight:
    """One scheduled flight, as the CSV has it."""

    flight_id: int
    carrier: str
    flight_number: int
    tail_number: str | None
    origin: str
    destination: str
    scheduled_departure: datetime
    distance_miles: int


def departure_instant(local: str) -> datetime:
    """Return the instant that a New York local time names, by the rule of this module."""
    return datetime.fromisoformat(local).replace(tzinfo=NEW_YORK, fold=0)


def read_flights(carrier: str | None = None) -> Iterator[Flight]:
    """Read the flights of one carrier, or all, in the order of their ids."""
    with gzip.open(SOURCE, "rt", encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines)
        next(rows)
        for row in rows:
            if carrier is None or row[1] == carrier:
                yield _flight(row)


def load(database_url: str) -> int:
    """Create the tables if they are absent, fill an empty `flights`, and return how many flights it then holds.

    A table that has rows is left as it is, changed or not. All is one transaction, so it is never half full.
    """
    engine = create_engine(make_url(database_url).set(drivername="postgresql+psycopg"))
    try:
        with engine.begin() as connection:
            # CREATE TABLE IF NOT EXISTS is no protection against a second loader: both can see nothing.
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOAD_LOCK})
            metadata.create_all(connection)
            if not _count(connection):
                _copy(connection)
                connection.execute(text("ANALYZE flights"))
            return _count(connection)
    finally:
        engine.dispose()


def _flight(row: list[str]) -> Flight:
    flight_id, carrier, flight_number, tail_number, origin, destination, departure, distance_miles = row
    return Flight(
        flight_id=int(flight_id),
        carrier=carrier,
        flight_number=int(flight_number),
        tail_number=tail_number or None,
        origin=origin,
        destination=destination,
        scheduled_departure=departure_instant(departure),
        distance_miles=int(distance_miles),
    )


def _count(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(flights)).scalar_one()


def _copy(connection: Connection) -> None:
    driver = cast("psycopg.Connection", connection.connection.driver_connection)
    with driver.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.set_types(_COPY_TYPES)
        for flight in read_flights():
            copy.write_row(
                (
                    flight.flight_id,
                    flight.carrier,
                    flight.flight_number,
                    flight.tail_number,
                    flight.origin,
                    flight.destination,
                    flight.scheduled_departure,
                    flight.distance_miles,
                )
            )
