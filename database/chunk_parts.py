"""Parts that the chains of frozen and of live chunks share: reports, ledger, cursor and counters, what is owed."""

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    Integer,
    Text,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal,
    null,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert

from bulklane.database.record import own_name as _p
from bulklane.database.tables import chunk, outcome, owed, range_

if TYPE_CHECKING:
    from bulklane.database.chunk_plan import OwedEffect


def cleared(changed: CTE) -> CTE:
    """Take back what an earlier round said of a record that is changed now."""
    return (
        delete(outcome)
        .where(outcome.c.job_no == bindparam(_p("of_job")), outcome.c.key.in_(select(changed.c.key)))
        .returning(outcome.c.key)
        .cte(_p("cleared"))
    )


def report(rows: Any) -> CTE:
    """Report outcomes; the latest round's stands."""
    statement = upsert(outcome).from_select(["job_no", "key", "round", "kind", "code", "reason"], rows)
    return (
        statement.on_conflict_do_update(
            index_elements=[outcome.c.job_no, outcome.c.key],
            set_={name: statement.excluded[name] for name in ("round", "kind", "code", "reason")},
        )
        .returning(outcome.c.key)
        .cte(_p("reported"))
    )


_TO_CURSOR = bindparam(_p("to_cursor"), type_=BigInteger)


def written(counts: CTE, to_cursor: ColumnElement[int] = _TO_CURSOR, **also: ColumnElement[Any]) -> CTE:
    """The chunk's row of the ledger."""
    columns = ["job_no", "round", "range_no", "seq", "lo", "hi", "epoch", "changed", "skipped", "failed", "not_found"]
    rows = select(
        bindparam(_p("of_job"), type_=BigInteger),
        bindparam(_p("of_round"), type_=Integer),
        bindparam(_p("of_range"), type_=Integer),
        counts.c.seq,
        bindparam(_p("from_cursor"), type_=BigInteger),
        to_cursor,
        bindparam(_p("at_epoch"), type_=BigInteger),
        counts.c.changed,
        counts.c.skipped,
        counts.c.failed,
        counts.c.not_found,
        *also.values(),
    )
    return insert(chunk).from_select([*columns, *also], rows).returning(chunk.c.seq).cte(_p("written"))


def moved(counts: CTE, to_cursor: ColumnElement[int] = _TO_CURSOR, **also: ColumnElement[Any]) -> CTE:
    """Move cursor and counters; deaths are over where the records that they were about are passed."""
    suspects_passed = to_cursor >= func.coalesce(range_.c.suspect_to, 0)
    return (
        update(range_)
        .where(
            range_.c.job_no == bindparam(_p("of_job")),
            range_.c.round == bindparam(_p("of_round")),
            range_.c.no == bindparam(_p("of_range")),
            counts.c.seq == range_.c.next_seq,
        )
        .values(
            cursor=to_cursor,
            next_seq=range_.c.next_seq + 1,
            # what fitted: an attempt after a kill begins with it
            chunk_size=bindparam(_p("size"), type_=Integer),
            deaths=case((suspects_passed, 0), else_=range_.c.deaths),
            troubled_since=None,
            changed=range_.c.changed + counts.c.changed,
            skipped=range_.c.skipped + counts.c.skipped,
            failed=range_.c.failed + counts.c.failed,
            not_found=range_.c.not_found + counts.c.not_found,
            **also,
        )
        .returning(
            range_.c.cursor,
            *(range_.c[name] for name in also),
            counts.c.changed,
            counts.c.skipped,
            counts.c.not_found,
            counts.c.failed,
        )
        .cte(_p("moved"))
    )


def debt(effect: "OwedEffect", number: int, changed: CTE, gate: CTE) -> CTE:
    """What the changed records owe of one effect, as one row."""
    body = func.array_agg(changed.c[f"body{number}"]) if effect.body is not None else cast(null(), ARRAY(Text()))
    rows = (
        select(
            bindparam(_p("of_job"), type_=BigInteger),
            bindparam(_p("of_round"), type_=Integer),
            bindparam(_p("of_range"), type_=Integer),
            select(gate.c.seq).scalar_subquery(),
            literal(effect.name, Text()),
            literal(effect.channel, Text()),
            func.array_agg(changed.c.key),
            func.array_agg(changed.c.version),
            body,
            func.count(),
        )
        .select_from(changed)
        .having(func.count() > 0)
    )
    columns = ["job_no", "round", "range_no", "seq", "effect", "channel", "keys", "versions", "bodies", "size"]
    return insert(owed).from_select(columns, rows).returning(owed.c.seq).cte(_p(f"owed{number}"))
