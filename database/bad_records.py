"""The records of a chunk whose new values break a rule: asked for in one query after the chunk has failed by one.

So a chunk of only bad records costs about as much as one of good records, and not a bisection down to each of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import errors
from sqlalchemy import (
    BindParameter,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    FromClause,
    TableClause,
    Update,
    and_,
    case,
    cast,
    column,
    false,
    literal,
    literal_column,
    or_,
    select,
    table,
)
from sqlalchemy.types import UserDefinedType

from bulklane.database.chunk_plan import ChunkPlan, Decision, Locked, RecordOutcome
from bulklane.database.constraint import Check, Constraints, Reference, TableColumn, read_constraints
from bulklane.database.record import key_text, own_name
from bulklane.database.written import new_values, written_columns


class CatalogType(UserDefinedType[Any]):
    """A type as PostgreSQL's catalog spells it."""

    cache_ok = True

    def __init__(self, spelled: str) -> None:
        self.spelled = spelled

    def get_col_spec(self, **_: object) -> str:
        """Return it."""
        return self.spelled


@dataclass(frozen=True)
class Rule:
    """What a record that breaks it is reported with, and the condition under which it does."""

    code: str
    reason: str
    broken: ColumnElement[bool]


def decide_bad(plan: ChunkPlan, connection: Connection, locked: Locked, parameters: Mapping[str, Any]) -> Decision:
    """What the plan decides about a chunk's records, and each whose new values break a rule as failed."""
    decision = plan.decided(connection, locked, parameters)
    bad = _bad_records(connection, plan, locked, {**parameters, **decision.parameters})
    return replace(decision, outcomes=[*decision.outcomes, *bad])


def _bad_records(
    connection: Connection, plan: ChunkPlan, locked: Locked, parameters: Mapping[str, Any]
) -> list[RecordOutcome]:
    deletes = not isinstance(plan.change, Update)
    constraints = read_constraints(connection, plan.records.table, deletes=deletes)
    if constraints is None:
        return []
    rows = _new_rows(plan, locked, constraints)
    if rows is None:
        return []
    rules = list(_incoming(constraints, rows) if deletes else _rules(plan, constraints, rows))
    if not rules:
        return []
    which = case(*((rule.broken, number) for number, rule in enumerate(rules)), else_=None)
    asked = select(rows.c[own_name("key")].label("key"), which.label("rule")).subquery(own_name("asked"))
    found = connection.execute(select(asked.c.key, asked.c.rule).where(asked.c.rule.is_not(None)), parameters)
    # where the key isn't unique, a key is reported once
    broken = {row.key: rules[row.rule] for row in found}
    return [RecordOutcome(key, "failed", rule.code, rule.reason) for key, rule in broken.items()]


def _new_rows(plan: ChunkPlan, locked: Locked, constraints: Constraints) -> FromClause | None:
    """The chunk's records as they would be written, locked, their columns named as in the database.

    None where that can't be said: other tables in the statement, which may give a record more than one new value.
    """
    if not _is_one_to_one(plan):
        return None
    records = plan.records
    declared = {str(one.name): one for one in records.table.columns}
    written = _written(plan)
    plain = [one for one in constraints.columns if one.name in declared and one.generated_as is None]
    statement = locked(
        key_text(list(records.key), records.key_types).label(own_name("key")),
        *(_new_value(declared[one.name], written, one).label(one.name) for one in plain),
        *(declared[one.name].label(own_name(f"old_{one.name}")) for one in plain if declared[one.name] in written),
    ).where(*plan.change._where_criteria)
    # else only those that broke a rule before others' changes would be looked at and locked
    rows = statement.cte(own_name("rows")).prefix_with("MATERIALIZED")
    generated = [one for one in constraints.columns if one.generated_as is not None and one.name in declared]
    if not generated:
        return rows
    computed: list[ColumnElement[Any]] = [literal_column(str(one.generated_as)).label(one.name) for one in generated]
    return select(rows, *computed).subquery(own_name("generated"))


def _written(plan: ChunkPlan) -> dict[Any, ColumnElement[Any]]:
    """By column: its new value. The row version moves with every write, whoever moves it."""
    if not isinstance(plan.change, Update):
        return {}
    names, values = written_columns(plan.change), new_values(plan.change)
    return {names[name]: value for name, value in values.items()} | {
        plan.records.row_version: plan.records.row_version + 1
    }


def _new_value(declared: Column[Any], written: Mapping[Any, ColumnElement[Any]], known: TableColumn) -> Any:
    if declared not in written:
        return declared
    value = written[declared]
    if isinstance(value, BindParameter) and value.type._isnull:
        value = literal(value.value, declared.type)
    return cast(value, CatalogType(known.type_text))


def _is_one_to_one(plan: ChunkPlan) -> bool:
    """Whether the statement takes new values from no other table, but for the one of a function's answers."""
    change = plan.change
    sources = select(*_written(plan).values(), *change._where_criteria).columns_clause_froms
    return plan.decide is not None or all(source is change.table for source in sources)


def _rules(plan: ChunkPlan, constraints: Constraints, rows: FromClause) -> Iterator[Rule]:
    """In the order in which PostgreSQL looks at them: NOT NULL, CHECK by name, foreign keys."""
    known = set(rows.c.keys())
    if elsewhere := _set_elsewhere(plan):
        known -= elsewhere | {one.name for one in constraints.columns if one.generated_as is not None}
    for one in constraints.columns:
        if one.not_null and one.name in known:
            yield _rule(errors.NotNullViolation, f"column {one.name}", rows.c[one.name].is_(None))
    for check in constraints.checks:
        if known.issuperset(check.columns):
            yield _rule(errors.CheckViolation, f"constraint {check.name}", _breaks(check))
    for reference in constraints.outgoing:
        written = [name for name in reference.columns if own_name(f"old_{name}") in rows.c]
        if written and known.issuperset(reference.columns):
            yield _rule(errors.ForeignKeyViolation, f"constraint {reference.name}", _dangles(reference, written, rows))


def _set_elsewhere(plan: ChunkPlan) -> set[str]:
    """The columns that SQLAlchemy sets by itself (`onupdate`): their new values aren't known here."""
    written = _written(plan)
    return {str(one.name) for one in plan.records.table.columns if one.onupdate is not None and one not in written}


def _rule(error: type[errors.IntegrityError], what: str, broken: ColumnElement[bool]) -> Rule:
    return Rule(str(error.sqlstate), f"{error.__name__}: {what}", broken)


def _breaks(check: Check) -> ColumnElement[bool]:
    # NULL satisfies a CHECK
    return cast(literal_column(check.expression), Boolean()).is_(false())


def _dangles(reference: Reference, written: Sequence[str], rows: FromClause) -> ColumnElement[bool]:
    """A reference that the statement changes, to a row that isn't there; one with a NULL in it refers to nothing."""
    moved = or_(*(rows.c[name].is_distinct_from(rows.c[own_name(f"old_{name}")]) for name in written))
    present = and_(*(rows.c[name].is_not(None) for name in reference.columns))
    return and_(moved, present, ~_referred(reference, rows))


def _incoming(constraints: Constraints, rows: FromClause) -> Iterator[Rule]:
    """What would be broken by the rows' deletion: references to them."""
    for reference in constraints.incoming:
        if set(rows.c.keys()).issuperset(reference.columns):
            yield _rule(errors.ForeignKeyViolation, f"constraint {reference.name}", _referred(reference, rows))


def _referred(reference: Reference, rows: FromClause) -> ColumnElement[bool]:
    other: TableClause = table(
        reference.other_table, *(column(name) for name in reference.other_columns), schema=reference.other_schema
    )
    same = (
        other.c[theirs] == rows.c[ours] for theirs, ours in zip(reference.other_columns, reference.columns, strict=True)
    )
    return select(literal(1)).select_from(other).where(*same).exists()
