"""Counts what a walk asks of the database."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, event

_CHUNK = "INSERT INTO bulklane.chunk"
_SAVEPOINT = "SAVEPOINT"


@dataclass
class Counted:
    """How many chunk transactions there were, committed or not, and how many savepoints."""

    chunks: int = 0
    savepoints: int = 0


@contextmanager
def counted(engine: Engine) -> Iterator[Counted]:
    """Count until the block ends: each chunk transaction has one statement that writes the ledger."""
    found = Counted()

    def count(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        found.chunks += _CHUNK in statement
        found.savepoints += _SAVEPOINT in statement

    event.listen(engine, "before_cursor_execute", count)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", count)
