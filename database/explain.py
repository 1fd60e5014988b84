"""What PostgreSQL's planner makes of a statement, without running it: which tables it would read from end to end."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Executable, Table, literal, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler

FEW_ROWS = 5_000
"""A table of fewer rows is scanned rightly."""


@dataclass(frozen=True)
class Scan:
    """A sequential scan, as the planner estimates it: `reads` rows of the table to find `finds`, by this filter."""

    table: str
    reads: int
    finds: int
    filter: str


class _Explain(Executable, ClauseElement):
    inherit_cache = False

    def __init__(self, statement: Any) -> None:
        self.statement = statement


@compiles(_Explain)
def _explain(element: _Explain, compiler: SQLCompiler, **options: Any) -> str:
    # https://www.postgresql.org/docs/18/sql-explain.html: without ANALYZE nothing is run
    return "EXPLAIN (FORMAT JSON, VERBOSE) " + compiler.process(element.statement, **options)


def explain(connection: Connection, statement: Executable, parameters: Mapping[str, Any] | None = None) -> Any:
    """The plan's root node, for these very values."""
    (answer,) = connection.execute(_Explain(statement), dict(parameters or {})).scalar_one()
    return answer["Plan"]


def long_scans(connection: Connection, plan: Any, table: Table) -> list[Scan]:
    """The sequential scans of the table, or of its partitions, in a plan, where they are of many rows."""
    whole = explain(connection, select(literal(1)).select_from(table))
    rows = {_name(node): int(node["Plan Rows"]) for node in _nodes(whole) if "Relation Name" in node}
    return [
        Scan(_name(node), rows[_name(node)], int(node["Plan Rows"]), node.get("Filter", ""))
        for node in _nodes(plan)
        if node["Node Type"] == "Seq Scan" and rows.get(_name(node), 0) > FEW_ROWS
    ]


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for below in node.get("Plans", ()):
        yield from _nodes(below)


def _name(node: Any) -> str:
    return f"{node['Schema']}.{node['Relation Name']}" if "Relation Name" in node else ""
