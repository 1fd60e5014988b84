"""Which document stands for a record, and the documents of rows that were read again."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import UniqueConstraint

from bulklane.contracts.key import format_key
from bulklane.operations.operation import Records
from bulklane.operations.sender import Document

LONGEST_ID = 512  # bytes (https://docs.opensearch.org/latest/field-types/metadata-fields/id/)


def is_key_global(records: Records) -> bool:
    """Whether two tenants never have the same key, as the table's primary key or a unique constraint declares."""
    key = {column.name for column in records.key}
    unique = [one.columns for one in records.table.constraints if isinstance(one, UniqueConstraint)]
    unique += [index.columns for index in records.table.indexes if index.unique]
    candidates = [{column.name for column in columns} for columns in (records.table.primary_key.columns, *unique)]
    return any(names and names <= key for names in candidates)


def document_id(records: Records, tenant: str, key: str) -> str:
    """The key, with its tenant where others may have the same; a digest where that is longer than an id may be."""
    whole = key if is_key_global(records) else f"{tenant}/{key}"
    if len(whole.encode()) <= LONGEST_ID:
        return whole
    return f"sha256-{hashlib.sha256(whole.encode()).hexdigest()}"


def tenant_text(records: Records, tenant: str) -> str:
    """The tenant as documents name it: the text form of its column's value, however a caller has written it."""
    return format_key((records.tenant_value(tenant),))


def make_documents(
    records: Records,
    tenant: str,
    wanted: Sequence[tuple[str, int]],
    rows: Mapping[str, tuple[int, dict[str, Any]]],
    read_at: datetime,
) -> list[Document]:
    """A document for each wanted key: of its row, or a `deleted` one.

    `wanted`: keys with the versions at which they are known. A deleted one goes beyond that version, so that the row as
    it last was, sent late, loses.
    """
    owner = tenant_text(records, tenant)
    made = []
    for key, known in wanted:
        row = rows.get(key)
        name = document_id(records, owner, key)
        if row is None:
            made.append(Document(key, owner, known + 1, None, name, read_at))
        else:
            made.append(Document(key, owner, *row, name))
    return made
