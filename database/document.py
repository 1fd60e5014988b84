"""Reads committed rows again, for what is indexed of them, and installs what moves their version."""

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import sql
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Row,
    Select,
    Text,
    cast,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError

from bulklane.contracts.key import Key, KeyType, format_key
from bulklane.database.failure import Trouble, rule_of, trouble_of
from bulklane.database.record import RecordSet, owned_by, regclass, same_key, unnested
from bulklane.database.tables import KEY_TYPES


class UnreadableRecord(RuntimeError):
    """A record holds what can't be read for its document, such as a time without end. `code`, `reason`: why."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code, self.reason = code, reason


def read_documents(
    connection: Connection,
    records: RecordSet,
    tenant: str,
    keys: Sequence[Key],
    document: Mapping[str, ColumnElement[Any]],
) -> dict[str, tuple[int, dict[str, Any]]]:
    """By key (text form): the row's version and its document; a key without a row is absent.

    Raises UnreadableRecord where one of them is to blame.
    """
    names = [f"key{position}" for position in range(1, len(records.key_types) + 1)]
    arrays = [
        cast([key[position] for key in keys], ARRAY(Text() if key_type is KeyType.TEXT else KEY_TYPES[key_type]))
        for position, key_type in enumerate(records.key_types)
    ]
    wanted = unnested(arrays, names, "_bulklane_wanted")
    statement = select(
        *(column.label(name) for column, name in zip(records.key, names, strict=True)),
        cast(records.row_version, BigInteger).label("row_version"),
        *(column.label(f"document_{name}") for name, column in document.items()),
    ).where(
        same_key(list(records.key), [wanted.c[name] for name in names], records.key_types),
        owned_by(records, tenant),
    )
    found = {}
    for result in fetched(connection, statement):
        row = result._mapping
        key = format_key(tuple(row[name] for name in names))
        found[key] = (row["row_version"], {name: row[f"document_{name}"] for name in document})
    return found


def fetched(connection: Connection, statement: Select[Any]) -> Sequence[Row[Any]]:
    """All of its rows; raises UnreadableRecord where what one of them holds is to blame."""
    try:
        return connection.execute(statement).all()
    except (DBAPIError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, DBAPIError) and trouble_of(error) is not Trouble.RECORD:
            raise
        code, reason = rule_of(error)
        raise UnreadableRecord(code, f"the record's document can't be read: {reason}") from error


_FUNCTION = sql.SQL(
    """CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.{column} := OLD.{column} + 1;
    RETURN NEW;
END $$"""
)
_TRIGGER = sql.SQL(
    "CREATE OR REPLACE TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {function}()"
)
TRIGGER_NAME = "bulklane_row_version"


def install_row_version(connection: Connection, records: RecordSet) -> None:
    """Install the trigger that moves the row version on every update of the records' table."""
    table = sql.Identifier(*filter(None, (records.table.schema, records.table.name)))
    # its name in the database, which the attribute `key` of a column need not be
    column = str(getattr(records.row_version, "name", ""))
    function = sql.Identifier("bulklane", f"move_{column}")
    driver: Any = connection.connection.driver_connection
    parts = {
        "function": function,
        "column": sql.Identifier(column),
        "table": table,
        "trigger": sql.Identifier(TRIGGER_NAME),
    }
    for statement in (_FUNCTION, _TRIGGER):
        driver.execute(statement.format(**parts))


_UNIQUE_COLUMNS = text(
    """SELECT array_agg(attname::text) AS columns
       FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey)
       WHERE indrelid = to_regclass(:table) AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL
       GROUP BY indexrelid"""
)


def has_unique_key(connection: Connection, records: RecordSet) -> bool:
    """Whether an index makes the key unique within a tenant: else a record could be selected under another's key."""
    table = regclass(connection, records.table)
    allowed = {str(column.name) for column in (*records.key, records.tenant) if isinstance(column, Column)}
    found = connection.execute(_UNIQUE_COLUMNS, {"table": table}).scalars()
    return any(set(columns) <= allowed for columns in found)


_HAS_TRIGGER = text(
    "SELECT count(*) FROM pg_trigger WHERE tgrelid = to_regclass(:table) AND tgname = :trigger AND tgenabled <> 'D'"
)


def has_row_version_trigger(connection: Connection, records: RecordSet) -> bool:
    """Whether the trigger is there and enabled."""
    values = {"table": regclass(connection, records.table), "trigger": TRIGGER_NAME}
    return bool(connection.execute(_HAS_TRIGGER, values).scalar_one())
