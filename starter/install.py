"""Makes a database ready: our schema at this release's revision, and the triggers that move row versions."""

from sqlalchemy import Connection, Engine, inspect

from bulklane.database.document import install_row_version
from bulklane.database.engine import DatabaseUnfit
from bulklane.database.migrate import migrate
from bulklane.operations.operation import Operation, Registry


def install(engine: Engine, registry: Registry) -> list[str]:
    """Migrate, and install the row version triggers of the operations; the tables that have one now. Repeatable.

    Raises DatabaseUnfit where an operation's table or row version column isn't there; the schema is migrated even so.
    """
    migrate(engine)
    wanted = [one for one in registry.operations.values() if one.records.row_version_by == "trigger"]
    with engine.begin() as connection:
        for operation in wanted:
            _check_table(connection, operation)
            install_row_version(connection, operation.records)
    return sorted({operation.records.table.fullname for operation in wanted})


def _check_table(connection: Connection, operation: Operation) -> None:
    records = operation.records
    table, column = records.table, str(records.row_version.key)
    inspector = inspect(connection)
    if not inspector.has_table(table.name, schema=table.schema):
        missing = f"the table {table.fullname}"
    elif column not in {found["name"] for found in inspector.get_columns(table.name, schema=table.schema)}:
        missing = f"the column {table.fullname}.{column}"
    else:
        return
    raise DatabaseUnfit(
        f"{missing} of operation {operation.name!r} isn't in this database: create it by your own migration, then run"
        " `bulklane install` again"
    )
