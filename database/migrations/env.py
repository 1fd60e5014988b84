"""Alembic runs this; the connection comes from `bulklane.database.migrate`."""

from alembic import context

from bulklane.database.tables import SCHEMA, metadata


def _ours(name: str | None, kind: str, parents: object) -> bool:
    del parents
    return name == SCHEMA if kind == "schema" else True


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    include_schemas=True,
    include_name=_ours,
    version_table="revision",
    version_table_schema=SCHEMA,
    transaction_per_migration=False,
)
context.run_migrations()
