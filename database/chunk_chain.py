"""The chain of a chunk over frozen keys: composed once for a plan, one statement."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    Delete,
    Executable,
    Integer,
    Text,
    bindparam,
    case,
    cast,
    func,
    literal,
    select,
    true,
    type_coerce,
)

from bulklane.contracts.key import KeyType
from bulklane.database.chunk_parts import cleared, debt, moved, report, written
from bulklane.database.record import key_text, owned_by, same_key, unnested
from bulklane.database.record import own_name as _p
from bulklane.database.tables import KEY_TYPES, block, key_column, range_

if TYPE_CHECKING:
    from bulklane.database.chunk_plan import ChunkPlan

NO_LONGER_MATCHES = "no longer matches"
OUTCOME_PARTS = ("key", "kind", "code", "reason")

GATE = (
    select(range_.c.next_seq.label("seq"))
    .where(
        range_.c.job_no == bindparam(_p("of_job")),
        range_.c.round == bindparam(_p("of_round")),
        range_.c.no == bindparam(_p("of_range")),
        range_.c.cursor == bindparam(_p("from_cursor")),
        range_.c.epoch == bindparam(_p("at_epoch")),
        range_.c.open,
    )
    .with_for_update()
    .cte(_p("gate"))
    .prefix_with("MATERIALIZED")
)


def sliced(key_types: Sequence[KeyType], *passed: CTE) -> CTE:
    """The slice's key arrays, one column per key column; no row unless the gate was passed."""
    first, last = bindparam(_p("slice_from"), type_=Integer), bindparam(_p("slice_to"), type_=Integer)
    arrays = []
    for position, key_type in enumerate(key_types, 1):
        array = block.c[key_column(position, key_type)][first:last]
        if key_type is KeyType.TEXT:
            # so that a comparison takes the user's column's collation, which its index has
            texts = type_coerce(cast(array, ARRAY(Text())), Text()).collate("default")
            array = type_coerce(texts, ARRAY(Text()))
        arrays.append(array.label(f"key{position}"))
    statement = select(*arrays).where(
        block.c.selection_no == bindparam(_p("of_selection")), block.c.no == bindparam(_p("of_block"))
    )
    for gate in passed:
        statement = statement.where(select(literal(1)).select_from(gate).exists())
    return statement.cte(_p("slice")).prefix_with("MATERIALIZED")


def decided(*passed: CTE) -> CTE:
    """The outcomes that are known before; no row unless the gate was passed."""
    arrays = [bindparam(_p(f"decided_{part}"), type_=ARRAY(Text())) for part in OUTCOME_PARTS]
    rows = unnested(arrays, OUTCOME_PARTS, "one")
    statement = select(*(rows.c[part] for part in OUTCOME_PARTS))
    for gate in passed:
        statement = statement.where(select(literal(1)).select_from(gate).exists())
    return statement.cte(_p("decided")).prefix_with("MATERIALIZED")


def undecided(decided: CTE, key: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether nothing is known before of a record with this key in text form."""
    return ~select(literal(1)).where(decided.c.key.collate("C") == key).exists()


def chain(plan: "ChunkPlan", decided: CTE | None) -> Executable:
    """The whole chain; `decided`: the outcomes that are known before, if any."""
    types = plan.records.key_types
    names = [f"key{position}" for position in range(1, len(types) + 1)]
    slice_ = sliced(types, GATE)
    changed = _changed(plan, slice_, decided)
    tally = select(func.count().label("changed")).select_from(changed).cte(_p("tally")).prefix_with("MATERIALIZED")
    missing = _missing(plan, slice_, changed, tally, names, decided)
    reports = reported(missing)
    counts = (
        select(
            GATE.c.seq,
            tally.c.changed,
            func.count().filter(missing.c.kind == "skipped").label("skipped"),
            func.count().filter(missing.c.kind == "not_found").label("not_found"),
            func.count().filter(missing.c.kind == "failed").label("failed"),
        )
        .select_from(GATE.join(tally, true()).outerjoin(missing, true()))
        .group_by(GATE.c.seq, tally.c.changed)
        .cte(_p("counts"))
    )
    debts = [debt(effect, number, changed, GATE) for number, effect in enumerate(plan.effects)]
    taken_back = [cleared(changed)] if plan.reopened else []
    return select(moved(counts)).add_cte(reports, written(counts), *debts, *taken_back)


def narrowed(plan: "ChunkPlan", slice_: CTE, statement: Any) -> Any:
    """A statement on the records' table, narrowed to the slice, the tenant and the condition."""
    records = plan.records
    table_columns = list(records.key)
    statement = statement.where(owned_by(records, plan.tenant), plan.condition)
    if len(table_columns) == 1:
        array_type = ARRAY(Text() if records.key_types[0] is KeyType.TEXT else KEY_TYPES[records.key_types[0]])
        keys = cast(select(slice_.c.key1).scalar_subquery(), array_type)
        return statement.where(table_columns[0] == func.any(keys))
    names = [f"key{position}" for position in range(1, len(table_columns) + 1)]
    # unnested in a subquery, so that its text has no collation of its own and the user's index serves
    rows = unnested([select(slice_.c[name]).scalar_subquery() for name in names], names, _p("wanted"))
    return statement.where(same_key(table_columns, [rows.c[name] for name in names], records.key_types))


def _changed(plan: "ChunkPlan", slice_: CTE, decided: CTE | None) -> CTE:
    records = plan.records
    table_columns = list(records.key)
    text_key = key_text(table_columns, records.key_types)
    change = narrowed(plan, slice_, plan.change)
    if decided is not None:
        change = change.where(undecided(decided, text_key))
    version = records.row_version + 1 if isinstance(plan.change, Delete) else records.row_version
    return change.returning(  # type: ignore[no-any-return]
        *(column.label(f"key{position}") for position, column in enumerate(table_columns, 1)),
        text_key.label("key"),
        cast(version, BigInteger).label("version"),
        *(effect.body.label(f"body{n}") for n, effect in enumerate(plan.effects) if effect.body is not None),
    ).cte(_p("changed"))


def _missing(plan: "ChunkPlan", slice_: CTE, changed: CTE, tally: CTE, names: list[str], decided: CTE | None) -> CTE:
    """The slice's keys that were not changed: gone (or never the tenant's), no longer matching, or decided before."""
    types, records = plan.records.key_types, plan.records
    wanted = unnested([slice_.c[name] for name in names], names, _p("all_wanted"))
    keys = [wanted.c[name] for name in names]
    was_changed = select(literal(1)).where(same_key([changed.c[name] for name in names], keys, types)).exists()
    present = (
        select(literal(1))
        .select_from(records.table)
        .where(
            same_key(list(records.key), keys, types),
            owned_by(records, plan.tenant),
        )
        .exists()
    )
    text_key = key_text(keys, types)
    kind: ColumnElement[str] = case((present, "skipped"), else_="not_found")
    code: ColumnElement[str] = literal("", Text())
    reason: ColumnElement[str] = case((present, NO_LONGER_MATCHES), else_="")
    source = slice_.join(wanted, true())
    if decided is not None:
        kind, code, reason = (
            func.coalesce(one, other) for one, other in zip(list(decided.c)[1:], (kind, code, reason), strict=True)
        )
        source = source.outerjoin(decided, decided.c.key.collate("C") == text_key)
    return (
        select(text_key.label("key"), kind.label("kind"), code.label("code"), reason.label("reason"))
        .select_from(source)
        # without it, the anti-join would run for every chunk
        .where(select(tally.c.changed).scalar_subquery() < bindparam(_p("size"), type_=Integer), ~was_changed)
        .cte(_p("missing"))
        .prefix_with("MATERIALIZED")
    )


def reported(outcomes: CTE) -> CTE:
    """Report these outcomes."""
    rows = select(
        bindparam(_p("of_job"), type_=BigInteger),
        outcomes.c.key,
        bindparam(_p("of_round"), type_=Integer),
        outcomes.c.kind,
        outcomes.c.code,
        outcomes.c.reason,
    )
    return report(rows)


def fail_chain() -> Executable:
    """Report the one record of a slice as failed, and step over it."""
    rows = select(
        bindparam(_p("of_job"), type_=BigInteger),
        bindparam(_p("bad_key"), type_=Text()),
        bindparam(_p("of_round"), type_=Integer),
        literal("failed", Text()),
        bindparam(_p("bad_code"), type_=Text()),
        bindparam(_p("bad_reason"), type_=Text()),
    ).select_from(GATE)
    zero = literal(0, Integer)
    counts = select(
        GATE.c.seq,
        zero.label("changed"),
        zero.label("skipped"),
        zero.label("not_found"),
        literal(1, Integer).label("failed"),
    ).cte(_p("counts"))
    return select(moved(counts)).add_cte(report(rows), written(counts))
