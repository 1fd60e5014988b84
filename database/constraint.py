"""What a table's constraints say of a row, read from the catalog: CHECK, NOT NULL and foreign keys.

Only what certainly holds for the rows that a statement would write is read; the rest is found by trying:
https://www.postgresql.org/docs/18/catalog-pg-constraint.html
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import errors
from sqlalchemy import Connection, Table, bindparam, text
from sqlalchemy.exc import DBAPIError

from bulklane.database.document import TRIGGER_NAME
from bulklane.database.record import regclass


@dataclass(frozen=True)
class TableColumn:
    """A column as the database has it; `generated_as`: its expression over the others, or None."""

    name: str
    type_text: str
    not_null: bool
    generated_as: str | None


@dataclass(frozen=True)
class Check:
    """A CHECK constraint; its expression names columns only."""

    name: str
    expression: str
    columns: Sequence[str]


@dataclass(frozen=True)
class Reference:
    """A foreign key between the table's `columns` and `other_columns` of another, whichever refers to the other."""

    name: str
    columns: Sequence[str]
    other_schema: str
    other_table: str
    other_columns: Sequence[str]


@dataclass(frozen=True)
class Constraints:
    """What the catalog says of one table: `outgoing` references are its own, `incoming` ones hold its rows."""

    columns: Sequence[TableColumn]
    checks: Sequence[Check]
    outgoing: Sequence[Reference]
    incoming: Sequence[Reference]


def read_constraints(connection: Connection, table: Table, *, deletes: bool) -> Constraints | None:
    """The constraints of a table; None where what is written may differ from what the statement says.

    That is so with triggers that come before the write, rules, row security, views and inheritance.
    """
    values = {
        "table": regclass(connection, table),
        "ours": TRIGGER_NAME,
        "event": _DELETE_EVENT if deletes else _UPDATE_EVENT,
    }
    if not connection.execute(_IS_PLAIN, values).scalar_one_or_none():
        return None
    references = connection.execute(_REFERENCES, values).all()
    return Constraints(
        [TableColumn(*row) for row in connection.execute(_COLUMNS, values)],
        [Check(*row) for row in connection.execute(_CHECKS, values)],
        [Reference(*row) for refers, *row in references if refers],
        [Reference(*row) for refers, *row in references if not refers],
    )


def broken_rule(error: Exception) -> tuple[str, str] | None:
    """Of a database error: the code and the name of the rule that a query can ask about; None for every other."""
    error = error.orig if isinstance(error, DBAPIError) and isinstance(error.orig, Exception) else error
    if not isinstance(error, (errors.CheckViolation, errors.NotNullViolation, errors.ForeignKeyViolation)):
        return None
    return str(error.sqlstate), error.diag.constraint_name or error.diag.column_name or ""


# https://github.com/postgres/postgres/blob/REL_18_STABLE/src/include/catalog/pg_trigger.h
_BEFORE, _DELETE_EVENT, _UPDATE_EVENT = 2, 8, 16

_IS_PLAIN = text(
    """SELECT relkind IN ('r', 'p') AND NOT relrowsecurity AND NOT (relkind = 'r' AND relhassubclass)
         AND NOT EXISTS (SELECT FROM pg_rewrite WHERE ev_class = pg_class.oid)
         AND NOT EXISTS (
           SELECT FROM pg_trigger
           WHERE tgrelid IN (SELECT pg_class.oid UNION SELECT relid FROM pg_partition_tree(pg_class.oid))
             AND NOT tgisinternal AND tgenabled <> 'D' AND tgname <> :ours
             AND tgtype & :before <> 0 AND tgtype & :event <> 0)
       FROM pg_class WHERE oid = to_regclass(:table)"""
).bindparams(bindparam("before", _BEFORE))

_COLUMNS = text(
    """SELECT attname::text, format_type(atttypid, atttypmod), attnotnull,
              CASE WHEN attgenerated <> '' THEN pg_get_expr(adbin, adrelid) END
       FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
       WHERE attrelid = to_regclass(:table) AND attnum > 0 AND NOT attisdropped
       ORDER BY attnum"""
)

# whether one is enforced is known from PostgreSQL 18 on; attribute 0 stands for the whole row
_CHECKS = text(
    """SELECT conname::text, pg_get_expr(conbin, conrelid),
              ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = conrelid AND attnum = ANY (conkey))
       FROM pg_constraint c
       WHERE conrelid = to_regclass(:table) AND contype = 'c' AND NOT 0 = ANY (coalesce(conkey, '{}'))
         AND coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)
       ORDER BY conname"""
)

# Left to trying: deferrable ones, and all where a trigger comes before the key's own (they go by name), since what is
# missing may still come; tables whose row security would hide what the constraint sees; a table's reference to itself,
# whose other side the statement may write; references that go with the row. Of a reference to a partitioned table
# there is a copy for each partition, which says less than the whole.
_REFERENCES = text(
    """SELECT c.conrelid = mine.oid, c.conname::text, names.own, nspname::text, other.relname::text, names.others
       FROM (SELECT to_regclass(:table)::oid AS oid) mine
       JOIN pg_constraint c ON c.contype = 'f' AND mine.oid IN (c.conrelid, c.confrelid) AND c.conrelid <> c.confrelid
       JOIN pg_class other ON other.oid = CASE WHEN c.conrelid = mine.oid THEN c.confrelid ELSE c.conrelid END
       JOIN pg_namespace n ON n.oid = other.relnamespace
       CROSS JOIN LATERAL (
         SELECT array_agg(CASE WHEN c.conrelid = mine.oid THEN a.attname ELSE b.attname END::text ORDER BY at) AS own,
                array_agg(CASE WHEN c.conrelid = mine.oid THEN b.attname ELSE a.attname END::text ORDER BY at) AS others
         FROM unnest(c.conkey, c.confkey) WITH ORDINALITY u(num, other_num, at)
         JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = u.num
         JOIN pg_attribute b ON b.attrelid = c.confrelid AND b.attnum = u.other_num) names
       WHERE NOT c.condeferrable AND c.confmatchtype = 's' AND NOT other.relrowsecurity
         AND coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)
         AND NOT coalesce((to_jsonb(c) ->> 'conperiod')::boolean, false)
         AND NOT EXISTS (
           SELECT FROM pg_trigger
           WHERE tgrelid IN (SELECT mine.oid UNION SELECT relid FROM pg_partition_tree(mine.oid))
             AND NOT tgisinternal AND tgenabled <> 'D' AND tgname::text COLLATE "C" < 'RI_')
         AND CASE WHEN c.conrelid = mine.oid
           THEN NOT EXISTS (SELECT FROM pg_constraint w WHERE w.oid = c.conparentid AND w.conrelid = c.conrelid)
           ELSE NOT EXISTS (
             SELECT FROM pg_constraint goes
             WHERE goes.confrelid = mine.oid AND goes.contype = 'f' AND goes.confdeltype NOT IN ('a', 'r')) END
       ORDER BY c.oid"""
)
