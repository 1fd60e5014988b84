"""The tables of the flights example, and the audit that the product knows nothing of."""

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    event,
    func,
    text,
)
from sqlalchemy.types import UserDefinedType


class TransactionId(UserDefinedType[str]):
    """PostgreSQL's `xid8`: a transaction's number, which never comes round again."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        """Return the name of the type in DDL."""
        return "xid8"


metadata = MetaData()

flights = Table(
    "flights",
    metadata,
    Column("flight_id", BigInteger, primary_key=True, autoincrement=False),
    Column("carrier", Text, nullable=False),
    Column("flight_number", Integer, nullable=False),
    Column("tail_number", Text),
    Column("origin", Text, nullable=False),
    Column("destination", Text, nullable=False),
    Column("scheduled_departure", DateTime(timezone=True), nullable=False),
    Column("distance_miles", Integer, nullable=False),
    # Moved by the trigger that `bulklane` installs, not by this module.
    Column("row_version", BigInteger, nullable=False, server_default=text("1")),
    Index("flights_by_carrier", "carrier", "flight_id"),
)

flight_audit = Table(
    "flight_audit",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("flight_id", BigInteger, nullable=False),
    Column("carrier", Text, nullable=False),
    Column("old_scheduled_departure", DateTime(timezone=True), nullable=False),
    Column("new_scheduled_departure", DateTime(timezone=True), nullable=False),
    Column("transaction_id", TransactionId, nullable=False, server_default=text("pg_current_xact_id()")),
    Column("changed_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
)
flight_audit.add_is_dependent_on(flights)

# A join of the two transition tables would be natural, but its plan is cached by the session's first call: planned for
# one row, it becomes a nested loop that takes seconds for 5,000. Grouping stays linear whatever it was planned for.
AUDIT_FUNCTION = """
CREATE OR REPLACE FUNCTION audit_flights() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO flight_audit (flight_id, carrier, old_scheduled_departure, new_scheduled_departure)
  SELECT flight_id, max(carrier), max(old_departure), max(new_departure)
  FROM (
    SELECT flight_id, NULL AS carrier, scheduled_departure AS old_departure, NULL::timestamptz AS new_departure
    FROM flights_before
    UNION ALL
    SELECT flight_id, carrier, NULL, scheduled_departure FROM flights_after
  ) AS both_sides
  GROUP BY flight_id
  HAVING max(old_departure) <> max(new_departure);
  RETURN NULL;
END $$
"""

AUDIT_TRIGGER = """
CREATE TRIGGER audit_flights AFTER UPDATE ON flights
REFERENCING OLD TABLE AS flights_before NEW TABLE AS flights_after
FOR EACH STATEMENT EXECUTE FUNCTION audit_flights()
"""


@event.listens_for(flight_audit, "after_create")
def _install_audit(_table: Table, connection: Connection, **_: object) -> None:
    connection.exec_driver_sql(AUDIT_FUNCTION)
    connection.exec_driver_sql(AUDIT_TRIGGER)
