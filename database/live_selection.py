"""Live selections: a bound in key order fixed at the start, and the key space up to it cut into ranges."""

from collections.abc import Sequence
from itertools import pairwise

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    bindparam,
    cast,
    func,
    insert,
    inspect,
    literal,
    select,
    text,
)

from bulklane.contracts.key import read_key
from bulklane.database.key_space import bound_key, key_values, up_to
from bulklane.database.live import OPEN_END
from bulklane.database.range import RangeRef
from bulklane.database.record import RecordSet, is_text, key_text, owned_by
from bulklane.database.selection import SelectionState, set_selected
from bulklane.database.tables import range_


class LiveUnfit(ValueError):
    """Records that can't be walked live; the message names the table, the rule and the way out."""


def bound_live(
    connection: Connection,
    ref: RangeRef,
    selection_no: int,
    records: RecordSet,
    tenant: str,
    condition: ColumnElement[bool],
    parallelism: int,
) -> int:
    """Fix the bound at the largest key that matches now, and cut up to it; how many records match now.

    `ref`: the first range. What is inserted beyond the bound is not touched; what is inserted below it may be.
    """
    matches = owned_by(records, tenant) & condition
    bound = connection.execute(last_key(records, tenant, condition)).scalar_one_or_none()
    if bound is None:
        connection.execute(insert(range_), _row(ref, None, None))
        return set_selected(connection, selection_no, SelectionState.BOUNDED, 0)
    values = key_values("bound", read_key(bound, records.key_types))
    below = matches & up_to(records, bound_key(records, "bound"))
    total = int(connection.execute(select(func.count()).select_from(records.table).where(below), values).scalar_one())
    count = max(1, min(parallelism, total))
    ends = [total * number // count for number in range(1, count)]
    cuts = list(connection.execute(_keys_at(records, below, ends), values).scalars()) if ends else []
    rows = [
        _row(RangeRef(ref.job_no, ref.round, ref.range_no + number), low, high)
        for number, (low, high) in enumerate(pairwise([None, *cuts, bound]))
    ]
    connection.execute(insert(range_), rows)
    return set_selected(connection, selection_no, SelectionState.BOUNDED, total)


def last_key(records: RecordSet, tenant: str, condition: ColumnElement[bool]) -> Select[str]:
    """The largest key that matches now."""
    matches = owned_by(records, tenant) & condition
    found = key_text(records.key, records.key_types)
    return select(found).where(matches).order_by(*(column.desc() for column in records.key)).limit(1)


_REST = (
    insert(range_)
    .from_select(
        ["job_no", "round", "no", "lo", "cursor", "hi", "cursor_key", "bound_key"],
        select(
            range_.c.job_no,
            range_.c.round + 1,
            cast(bindparam("first_no", type_=Integer) + func.row_number().over(order_by=range_.c.no) - 1, Integer),
            literal(0, BigInteger),
            literal(0, BigInteger),
            literal(OPEN_END, BigInteger),
            range_.c.cursor_key,
            range_.c.bound_key,
        ).where(
            range_.c.job_no == bindparam("of_job"),
            range_.c.round == bindparam("of_round"),
            range_.c.bound_key.is_not(None),
            range_.c.cursor < range_.c.hi,
        ),
    )
    .returning(range_.c.no)
)
_COUNT_REST: Select[int] = (
    select(func.count())
    .select_from(range_)
    .where(
        range_.c.job_no == bindparam("of_job"),
        range_.c.round == bindparam("of_round"),
        range_.c.bound_key.is_not(None),
        range_.c.cursor < range_.c.hi,
    )
)


def count_rest(connection: Connection, job_no: int, round_no: int) -> int:
    """How many live ranges of a round haven't come to their bounds."""
    return int(connection.execute(_COUNT_REST, {"of_job": job_no, "of_round": round_no}).scalar_one())


def reopen_rest(connection: Connection, job_no: int, round_no: int, first_no: int) -> None:
    """Make ranges of the next round, from number `first_no` on, of what the live ranges of this one haven't passed."""
    connection.execute(_REST, {"of_job": job_no, "of_round": round_no, "first_no": first_no})


def check_table(connection: Connection, records: RecordSet) -> None:
    """Raise LiveUnfit where the table has no index in the key's order, or a text key isn't walked byte for byte."""
    table = records.table
    keys = [column.name for column in records.key]
    known = inspect(connection)
    indexes = [known.get_pk_constraint(table.name, table.schema)["constrained_columns"]]
    for index in known.get_indexes(table.name, table.schema):
        options = index.get("dialect_options", {})
        whole = not options.get("postgresql_where") and options.get("postgresql_using", "btree") == "btree"
        if whole and not index.get("column_sorting"):
            indexes.append([str(column) for column in index["column_names"]])
    led = [[getattr(records.tenant, "name", ""), *keys], keys]
    if not any(columns[: len(start)] == start for columns in indexes for start in led):
        raise LiveUnfit(
            f"{table.name} has no index on ({', '.join(led[0])}), in which a live walk finds its next keys; create one,"
            " or leave `live` out"
        )
    _check_collations(connection, records)


_NONDETERMINISTIC = text(
    "SELECT a.attname FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation"
    " WHERE a.attrelid = CAST(:table AS regclass) AND a.attname = ANY(:names) AND NOT c.collisdeterministic"
)


def _check_collations(connection: Connection, records: RecordSet) -> None:
    names = [column.name for column in records.key if is_text(column)]
    if not names:
        return
    quoted = connection.dialect.identifier_preparer.format_table(records.table)
    found = connection.execute(_NONDETERMINISTIC, {"table": quoted, "names": names}).scalars().first()
    if found is not None:
        raise LiveUnfit(
            f"{records.table.name}.{found} has a nondeterministic collation, under which different keys are equal: a"
            " live walk would pass over some; leave `live` out"
        )


def _keys_at(records: RecordSet, below: ColumnElement[bool], ends: Sequence[int]) -> Select[str]:
    """The keys at these places of the matching records, counted from 1, in key order."""
    place = func.row_number().over(order_by=list(records.key))
    placed = select(key_text(records.key, records.key_types).label("key"), place.label("place")).where(below).subquery()
    chosen = placed.c.place == func.any(literal(list(ends), ARRAY(BigInteger)))
    return select(placed.c.key).where(chosen).order_by(placed.c.place)


def _row(ref: RangeRef, cursor_key: str | None, bound: str | None) -> dict[str, int | str | None]:
    """A range of the key space; without a bound it is empty."""
    end = 0 if bound is None else OPEN_END
    place = {"job_no": ref.job_no, "round": ref.round, "no": ref.range_no, "lo": 0, "cursor": 0, "hi": end}
    return {**place, "cursor_key": cursor_key, "bound_key": bound}
