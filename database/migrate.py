"""Brings the schema up to date: Alembic, forward only, one migrator at a time."""

from importlib.resources import files

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text
from sqlalchemy.schema import CreateSchema

from bulklane.database.engine import DatabaseUnfit
from bulklane.database.tables import SCHEMA, metadata

# any number will do that nobody else takes; the lock ends with the transaction, so a pooler can stand between
_ONE_MIGRATOR = text("SELECT pg_advisory_xact_lock(7238204411)")


def migrate(engine: Engine) -> None:
    """Create or upgrade the schema `bulklane`; a second migrator waits, and finds nothing to do."""
    with engine.begin() as connection:
        connection.execute(_ONE_MIGRATOR)
        connection.execute(CreateSchema(SCHEMA, if_not_exists=True))
        command.upgrade(_config(connection), "head")


def check_schema(connection: Connection) -> None:
    """Raise DatabaseUnfit where the schema isn't at this release's revision."""
    head = ScriptDirectory.from_config(_config(connection)).get_current_head()
    current = _context(connection).get_current_revision()
    if current != head:
        raise DatabaseUnfit(
            f"the schema {SCHEMA} is at revision {current}, this release needs {head}: run `bulklane install`"
        )


def differences(connection: Connection) -> list[object]:
    """How the schema differs from the declared tables; empty where they are equal."""
    return list(compare_metadata(_context(connection), metadata))


def _context(connection: Connection) -> MigrationContext:
    return MigrationContext.configure(
        connection,
        opts={
            "version_table": "revision",
            "version_table_schema": SCHEMA,
            "include_schemas": True,
            "include_name": lambda name, kind, _: name == SCHEMA if kind == "schema" else True,
        },
    )


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("bulklane.database") / "migrations"))
    config.attributes["connection"] = connection
    return config
