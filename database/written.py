"""Which columns an UPDATE sets, and to what: read from the statement, never declared."""

from typing import Any

from sqlalchemy import ColumnElement, Update


def written_columns(change: Update) -> dict[Any, ColumnElement[Any]]:
    """The columns that the statement sets, by the name (or column) under which it does."""
    columns = change.table.columns
    return {name: columns[name] if isinstance(name, str) else name for name in new_values(change)}


def new_values(change: Update) -> dict[Any, ColumnElement[Any]]:
    """What it sets them to."""
    # SQLAlchemy has no public way to read them
    return dict(change._values or {})
