"""Counts what a selection takes and picks a sample that is spread over it. It only reads; the caller sets limits."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ARRAY, BigInteger, ColumnElement, Connection, Select, Text, cast, func, literal, select

from bulklane.contracts.key import Key, KeyType, read_key
from bulklane.database.record import RecordSet, key_text, own_name, owned_by, same_key, unnested
from bulklane.database.tables import KEY_TYPES

CANDIDATES = 10_000
"""Matching records among which the sample is picked where not all can be read in time."""


def spread(keys: Sequence[Key], count: int) -> list[Key]:
    """So many of the keys, evenly spaced over them."""
    number = min(count, len(keys))
    return [keys[(2 * place + 1) * len(keys) // (2 * number)] for place in range(number)]


def count_all(connection: Connection, records: RecordSet, tenant: str, condition: ColumnElement[bool]) -> int:
    """How many of the tenant's records match."""
    statement = select(func.count()).select_from(records.table).where(owned_by(records, tenant) & condition)
    return int(connection.execute(statement).scalar_one())


def count_present(connection: Connection, records: RecordSet, tenant: str, keys: Sequence[Key]) -> int:
    """How many of the keys are records of the tenant's."""
    return sum(
        int(connection.execute(_present(records, tenant, some)).scalar_one()) for some in _pieces(keys, CANDIDATES)
    )


def sample_matching(
    connection: Connection,
    records: RecordSet,
    tenant: str,
    condition: ColumnElement[bool],
    count: int,
    among: int | None = None,
) -> list[Key]:
    """So many keys of the tenant's matching records, in key order, as good as by chance and the same at each call.

    It takes those with the smallest hash of their keys: one pass over all that matches, nothing is sorted as a whole.
    `among`: only the first so many that the database finds are looked at.
    """
    key = key_text(records.key, records.key_types).label("key")
    matching = select(key).where(owned_by(records, tenant) & condition).limit(among).subquery(own_name("matching"))
    mixed = func.hashtextextended(matching.c.key.collate("C"), literal(0, BigInteger))
    picked = connection.execute(select(matching.c.key).order_by(mixed).limit(count)).scalars()
    return sorted(read_key(text, records.key_types) for text in picked)


def _pieces(keys: Sequence[Key], size: int) -> list[Sequence[Key]]:
    return [keys[first : first + size] for first in range(0, len(keys), size)]


def _present(records: RecordSet, tenant: str, keys: Sequence[Key]) -> Select[int]:
    types = records.key_types
    names = [f"key{position}" for position in range(1, len(types) + 1)]
    arrays: list[ColumnElement[Any]] = [
        cast([key[place] for key in keys], ARRAY(Text() if kind is KeyType.TEXT else KEY_TYPES[kind]))
        for place, kind in enumerate(types)
    ]
    wanted = unnested(arrays, names, own_name("wanted"))
    same = same_key(list(records.key), [wanted.c[name] for name in names], types)
    present = select(literal(1)).select_from(records.table).where(same, owned_by(records, tenant)).exists()
    return select(func.count()).select_from(wanted).where(present)
