"""The user's rows as the walk sees them: how a key is found, compared and written."""

from collections.abc import Sequence
from typing import Any, Protocol

from sqlalchemy import (
    ColumnElement,
    Connection,
    Enum,
    FromClause,
    String,
    Table,
    Text,
    and_,
    case,
    cast,
    func,
    literal_column,
)
from sqlalchemy.dialects.postgresql import JSONB

from bulklane.contracts.key import KeyType


class RecordSet(Protocol):
    """The rows that an operation works on; `operations.Records` is one."""

    @property
    def table(self) -> Table:
        """The table."""

    @property
    def key(self) -> Sequence[ColumnElement[Any]]:
        """The columns that identify a record within its tenant, in walk order."""

    @property
    def key_types(self) -> Sequence[KeyType]:
        """Their types."""

    @property
    def tenant(self) -> ColumnElement[Any]:
        """The column that says whose record it is."""

    def tenant_value(self, tenant: str) -> Any:
        """The tenant as its column's type has it."""

    @property
    def row_version(self) -> ColumnElement[int]:
        """The column that grows with every write of the row."""


def own_name(name: str) -> str:
    """The name of a parameter or of a part of a statement: never a user's column's or table's.

    SQLAlchemy would take such a parameter for a new value of each UPDATE, and PostgreSQL such a part for the table.
    """
    return f"_bulklane_{name}"


def regclass(connection: Connection, table: Table) -> str:
    """A table's name as `to_regclass` reads it."""
    # a statement's text has its percent signs doubled, a parameter has not
    return connection.dialect.identifier_preparer.format_table(table).replace("%%", "%")


def is_text(column: ColumnElement[Any]) -> bool:
    """Whether it has a collation; an enum has none."""
    return isinstance(column.type, String) and not isinstance(column.type, Enum)


def exactly(column: ColumnElement[Any], value: Any, *, is_text: bool) -> ColumnElement[bool]:
    """Equality byte for byte.

    Text is compared twice: under the column's own collation, which its index has, and under `C`, since equality of a
    non-deterministic collation is wider (https://www.postgresql.org/docs/18/collation.html).
    """
    same: ColumnElement[bool] = column == value
    return and_(same, column.collate("C") == value) if is_text else same


def owned_by(records: RecordSet, tenant: str) -> ColumnElement[bool]:
    """Whether a record is the tenant's."""
    value = records.tenant_value(tenant)
    return exactly(records.tenant, value, is_text=isinstance(value, str))


def key_text(columns: Sequence[ColumnElement[Any]], types: Sequence[KeyType]) -> ColumnElement[str]:
    """The text form of a key, the same as `contracts.key.format_key` writes."""
    texts = [_value_text(column, key_type) for column, key_type in zip(columns, types, strict=True)]
    if len(texts) == 1:
        return texts[0]
    return cast(func.jsonb_build_array(*texts, type_=JSONB()), Text())


def _value_text(column: ColumnElement[Any], key_type: KeyType) -> ColumnElement[str]:
    if key_type is not KeyType.TIMESTAMPTZ:
        return cast(column, Text())
    at = func.timezone(literal_column("'UTC'"), column)
    pattern: ColumnElement[str] = literal_column("""'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'""")
    era = case((at < literal_column("timestamp '0001-01-01'"), " BC"), else_="")
    # `to_char` says nothing of an infinity, and of a year before Christ not that it was
    return func.coalesce(func.to_char(at, pattern, type_=Text()).concat(era), cast(column, Text()))


def same_key(
    columns: Sequence[ColumnElement[Any]], others: Sequence[ColumnElement[Any]], types: Sequence[KeyType]
) -> ColumnElement[bool]:
    """Whether two keys are the same, byte for byte."""
    return and_(
        *(
            exactly(column, other, is_text=key_type is KeyType.TEXT)
            for column, other, key_type in zip(columns, others, types, strict=True)
        )
    )


def unnested(arrays: Sequence[ColumnElement[Any]], names: Sequence[str], alias: str) -> FromClause:
    """The rows of parallel arrays, in their order, as a table with these column names and `ordinal` from 1."""
    return func.unnest(*arrays).table_valued(*names, with_ordinality="ordinal", name=alias).render_derived()
