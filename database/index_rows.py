"""The user's rows as an index is compared with them and filled from them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Engine, Select, cast, select, tuple_

from bulklane.contracts.key import KeyType, format_key, read_key
from bulklane.database.document import UnreadableRecord, fetched
from bulklane.database.record import RecordSet, key_text, owned_by

PAGE = 5000


@dataclass(frozen=True)
class RowVersion:
    """A row as an index is compared with it: whose, which, and its version."""

    tenant: str
    key: str
    version: int


@contextmanager
def row_versions(
    engine: Engine, records: RecordSet, tenant_type: KeyType, tenant: str | None = None
) -> Iterator[Iterator[Sequence[RowVersion]]]:
    """Every row of the table, or of a tenant, a page at a time, in the order of the texts of tenant and key.

    One statement with a cursor in the database: rows that come and go meanwhile are not seen.
    """
    owner = key_text([records.tenant], [tenant_type]).collate("C")
    key = key_text(list(records.key), records.key_types).collate("C")
    statement = (
        select(owner, key, cast(records.row_version, BigInteger))
        .where(records.tenant.is_not(None))
        .order_by(owner, key)
    )
    if tenant is not None:
        statement = statement.where(owned_by(records, tenant))
    with engine.connect() as connection:
        found = connection.execution_options(stream_results=True, yield_per=PAGE).execute(statement)
        yield ([RowVersion(*row) for row in page] for page in found.partitions())


@dataclass(frozen=True)
class SourceRow:
    """A row with what is indexed of it."""

    tenant: str
    key: str
    version: int
    source: dict[str, Any] | None
    """None: it can't be read."""


class RowPages:
    """Every row of a table by keyset, in the order of an index of the table; a cursor is a text."""

    def __init__(
        self,
        records: RecordSet,
        tenant_type: KeyType,
        document: Mapping[str, ColumnElement[Any]],
        *,
        key_is_global: bool,
    ) -> None:
        self._names = list(document)
        self._keys = len(records.key_types)
        by_tenant = [] if key_is_global else [(records.tenant, tenant_type)]
        order = [*by_tenant, *zip(records.key, records.key_types, strict=True)]
        self._order: list[ColumnElement[Any]] = [column for column, _ in order]
        self._types = [one for _, one in order]
        self._bare = select(
            key_text([records.tenant], [tenant_type]),
            cast(records.row_version, BigInteger),
            *(column.label(f"order{n}") for n, column in enumerate(self._order)),
        ).where(records.tenant.is_not(None))
        self._whole = self._bare.add_columns(*(column.label(f"document_{name}") for name, column in document.items()))

    def page(self, connection: Connection, cursor: str | None, size: int) -> tuple[list[SourceRow], str | None]:
        """The rows after the cursor (None: from the first on), and the next cursor; None where none are left.

        Where one of them can't be read, fewer rows come; at last it alone, without its source.
        """
        try:
            with connection.begin_nested():
                found = fetched(connection, self._after(self._whole, cursor, size))
        except UnreadableRecord:
            if size > 1:
                return self.page(connection, cursor, size // 2)
            found = fetched(connection, self._after(self._bare, cursor, size))
        rows = [self._row(tuple(row)) for row in found]
        if len(found) < size:
            return rows, None
        last = found[-1][2 : 2 + len(self._order)]
        return rows, json.dumps([format_key((value,)) for value in last], ensure_ascii=False)

    def _after(self, statement: Select[Any], cursor: str | None, size: int) -> Select[Any]:
        statement = statement.order_by(*self._order).limit(size)
        if cursor is None:
            return statement
        # under the columns' own collations, by which their index is unique too: no key is passed over
        return statement.where(tuple_(*self._order) > tuple_(*self._values(cursor)))

    def _values(self, cursor: str) -> list[Any]:
        texts = json.loads(cursor)
        return [read_key(one, [key_type])[0] for one, key_type in zip(texts, self._types, strict=True)]

    def _row(self, row: tuple[Any, ...]) -> SourceRow:
        ordered = row[2 : 2 + len(self._order)]
        values = row[2 + len(self._order) :]
        source = dict(zip(self._names, values, strict=True)) if values or not self._names else None
        return SourceRow(row[0], format_key(tuple(ordered[-self._keys :])), row[1], source)
