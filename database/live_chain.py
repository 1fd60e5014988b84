"""The chain of a live chunk as one statement.

gate -> the end of the next keys, in the order of their index -> the change on the range up to there -> effects, ledger,
cursor. Where the gate finds no row, every other part of the chain is empty. Where some records' outcomes are decided
before, the end is read by a statement of its own, and the chain takes it as it is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Delete,
    Executable,
    FromClause,
    Integer,
    Select,
    Text,
    bindparam,
    case,
    cast,
    false,
    func,
    literal,
    select,
    true,
)

from bulklane.database.chunk_chain import OUTCOME_PARTS, decided, reported, undecided
from bulklane.database.chunk_parts import cleared, debt, moved, report, written
from bulklane.database.chunk_plan import ChunkPlan
from bulklane.database.key_space import after, bound_key, up_to
from bulklane.database.record import RecordSet, is_text, key_text, owned_by, same_key
from bulklane.database.record import own_name as parameter
from bulklane.database.tables import range_

LEFT_AS_IT_IS = "left as it is: it no longer matches, or a trigger or the operation's own condition kept it"
# https://www.postgresql.org/docs/18/sql-update.html
_RETURNS_OLD_ROWS = (18,)


@dataclass(frozen=True)
class LivePlan:
    """What a live chunk does. `watched`: key columns first, then the columns that the filter reads.

    `returns_old`: the server's RETURNING has the row before the change (PostgreSQL 18); else the rows are locked and
    read before it.
    """

    chunk: ChunkPlan
    watched: Sequence[ColumnElement[Any]]
    returns_old: bool

    @classmethod
    def on(cls, connection: Connection, chunk: ChunkPlan, filtered: Sequence[Column[Any]]) -> "LivePlan":
        """The plan as this server can run it; `filtered`: the columns that the filter reads."""
        records = chunk.records
        watched = list(dict.fromkeys([*records.key, *filtered]))
        is_new = (connection.dialect.server_version_info or ()) >= _RETURNS_OLD_ROWS
        # there these names stand for the row before and after the change
        return cls(chunk, watched, returns_old=is_new and records.table.name not in ("old", "new"))

    @property
    def records(self) -> RecordSet:
        """The rows."""
        return self.chunk.records

    @property
    def reads_itself(self) -> bool:
        """Whether the change's own answer tells all that is compared; a deleted record moves nowhere."""
        return self.returns_old or isinstance(self.chunk.change, Delete)

    @cached_property
    def from_start(self) -> "LiveStatements":
        """Of a range's first chunk, where no key comes before it."""
        return _onwards(self, true())

    @cached_property
    def beyond_cursor(self) -> "LiveStatements":
        """Of every other chunk."""
        return _onwards(self, after(self.records, bound_key(self.records, "cursor")))

    @cached_property
    def one_key(self) -> "LiveStatements":
        """Of a chunk of one key that is known beforehand, so that an error is certainly its own."""
        return _single(self)


@dataclass(frozen=True)
class _Span:
    """The part of the key space that a chunk passes: its end, and the condition that says the same.

    `passed`: the rows as they were before, where the change doesn't tell.
    """

    passed: CTE | None
    end: CTE
    within: ColumnElement[bool]


@dataclass(frozen=True)
class LiveStatements:
    """The statements of a chunk. `found`: its span, whose end the statement finds; `fixed`: with the end as given."""

    plan: LivePlan
    found: _Span
    fixed: _Span
    within: ColumnElement[bool]

    @cached_property
    def statement(self) -> Executable:
        """The whole chain; composed once, compiled once by SQLAlchemy's cache."""
        return _chain(self.plan, self.found, None)

    @cached_property
    def end(self) -> Select[Any]:
        """The last key of the span as text, then its columns unless it is known; no row unless the gate was passed."""
        return select(*(column for column in self.found.end.c if column.key != "found"))

    @cached_property
    def deciding_statement(self) -> Executable:
        """The chain up to the given end, where the outcomes of some records are known before."""
        return _chain(self.plan, self.fixed, decided(_GATE))

    def locked(self, *columns: ColumnElement[Any]) -> Select[Any]:
        """`Locked` of the span up to the given end."""
        chunk, records = self.plan.chunk, self.plan.records
        key_share = not isinstance(chunk.change, Delete)
        statement = select(*columns).where(owned_by(records, chunk.tenant), self.within, _selected(chunk), _PAST_GATE)
        return statement.order_by(*records.key).with_for_update(of=records.table, key_share=key_share)


def _text(name: str) -> ColumnElement[str]:
    return bindparam(parameter(name), type_=Text())


_FROM_CURSOR = bindparam(parameter("from_cursor"), type_=BigInteger)
_SIZE = bindparam(parameter("size"), type_=Integer)
_GATE = (
    select(range_.c.next_seq.label("seq"))
    .where(
        range_.c.job_no == bindparam(parameter("of_job")),
        range_.c.round == bindparam(parameter("of_round")),
        range_.c.no == bindparam(parameter("of_range")),
        range_.c.cursor == _FROM_CURSOR,
        range_.c.cursor_key.is_not_distinct_from(_text("from_key")),
        range_.c.cursor < range_.c.hi,
        range_.c.epoch == bindparam(parameter("at_epoch")),
        range_.c.open,
    )
    .with_for_update()
    .cte(parameter("gate"))
    .prefix_with("MATERIALIZED")
)
_PAST_GATE = select(literal(1)).select_from(_GATE).exists()


def _read(plan: LivePlan, within: ColumnElement[bool]) -> Any:
    """The keys of a part of the key space, and what the filter reads where it has to be compared later."""
    records = plan.records
    kept = records.key if plan.reads_itself else plan.watched
    columns = [column.label(f"was{number}") for number, column in enumerate(kept)]
    statement = select(*columns).where(owned_by(records, plan.chunk.tenant), within, _PAST_GATE)
    # what is compared with must be what the change meets, and not an older version of the row
    return statement if plan.reads_itself else statement.with_for_update(key_share=True, of=records.table)


def _selected(chunk: ChunkPlan) -> ColumnElement[bool]:
    # as a truth value it is no condition of an index: only the key's may be used, or each chunk reads another's whole
    return true() if chunk.condition is true() else chunk.condition.is_(True)


def _onwards(plan: LivePlan, beyond: ColumnElement[bool]) -> LiveStatements:
    records = plan.records
    within = beyond & up_to(records, bound_key(records, "end"))
    count = select(func.count()).select_from(records.table).where(owned_by(records, plan.chunk.tenant), within)
    # counted beside the change, so that no chunk changes more than it passes
    end = select(count.scalar_subquery().label("found"), _text("end_key").collate("C").label("key"))
    return LiveStatements(plan, _passed(plan, beyond), _known(plan, within, end.cte(parameter("end"))), within)


def _passed(plan: LivePlan, beyond: ColumnElement[bool]) -> _Span:
    records = plan.records
    bound = bound_key(records, "bound")
    statement = _read(plan, beyond & up_to(records, bound)).order_by(*records.key).limit(_SIZE)
    if plan.reads_itself:
        passed, placed = None, statement.add_columns(_place(records.key))
    else:
        passed = statement.cte(parameter("passed")).prefix_with("MATERIALIZED")
        placed = select(passed, _place([passed.c[f"was{number}"] for number in range(len(records.key))]))
    end = _end(records, placed, bound)
    until = [select(end.c[f"end{number}"]).scalar_subquery() for number in range(len(bound))]
    return _Span(passed, end, beyond & up_to(records, until))


def _place(keys: Sequence[ColumnElement[Any]]) -> ColumnElement[int]:
    return func.row_number().over(order_by=list(keys)).label("place")


def _end(records: RecordSet, placed: Select[Any], bound: Sequence[ColumnElement[Any]]) -> CTE:
    """How many keys the chunk has found, and the last of them: the bound where there are fewer than asked for."""
    keys = placed.subquery(parameter("placed"))
    # one pass in the index's order; the keys themselves are never sorted
    last = select(keys).order_by(keys.c.place.desc()).limit(1).subquery(parameter("last"))
    found = func.coalesce(last.c.place, 0)
    lasts = [last.c[f"was{number}"] for number in range(len(bound))]
    text = case((found < _SIZE, _text("bound_key")), else_=key_text(lasts, records.key_types))
    ends = [case((found < _SIZE, value), else_=key) for value, key in zip(bound, lasts, strict=True)]
    return (
        select(
            found.label("found"),
            text.collate("C").label("key"),
            *(value.label(f"end{number}") for number, value in enumerate(ends)),
        )
        .select_from(_GATE.outerjoin(last, true()))
        .cte(parameter("end"))
        .prefix_with("MATERIALIZED")
    )


def _single(plan: LivePlan) -> LiveStatements:
    records = plan.records
    within = same_key(list(records.key), bound_key(records, "only"), records.key_types)
    span = _known(plan, within, _only_end())
    return LiveStatements(plan, span, span, within)


def _known(plan: LivePlan, within: ColumnElement[bool], end: CTE) -> _Span:
    """The span whose end is known beforehand."""
    if plan.reads_itself:
        return _Span(None, end, within & _PAST_GATE)
    passed = _read(plan, within).cte(parameter("passed")).prefix_with("MATERIALIZED")
    # so that all of it is read before any of it is changed
    return _Span(passed, end, within & (select(func.count()).select_from(passed).scalar_subquery() > 0))


def _only_end() -> CTE:
    columns = literal(1, BigInteger).label("found"), _text("only_key").collate("C").label("key")
    return select(*columns).select_from(_GATE).cte(parameter("end"))


def _chain(plan: LivePlan, span: _Span, decided: CTE | None) -> Executable:
    """The whole chain; `decided`: the outcomes that are known before, if any."""
    changed = _changed(plan, span, decided)
    flags = _flags(plan, span, changed)
    moves = [func.coalesce(func.bool_or(flag), false()).label(name) for name, flag in flags.items()]
    tally = (
        select(func.count().label("changed"), *moves)
        .select_from(changed if span.passed is None else _joined(plan, span.passed, changed))
        .cte(parameter("tally"))
        .prefix_with("MATERIALIZED")
    )
    outcomes = _outcomes(plan, span, changed, tally, decided)
    kinds = _kinds(outcomes)
    source = _GATE.join(tally, true()).join(kinds, true())
    advanced, *kept = _advance(tally.c.changed, kinds.c.skipped, kinds.c.failed, source, span.end)
    kept.append(reported(outcomes))
    debts = [debt(effect, number, changed, _GATE) for number, effect in enumerate(plan.chunk.effects)]
    taken_back = [cleared(changed)] if plan.chunk.reopened else []
    answer = select(advanced, *(tally.c[name] for name in flags)).join(tally, true())
    return answer.add_cte(*kept, *debts, *taken_back)


def _outcomes(plan: LivePlan, span: _Span, changed: CTE, tally: CTE, decided: CTE | None) -> CTE:
    """What was decided before, and the selected records that the change left as they are."""
    chunk, records = plan.chunk, plan.records
    text_key = key_text(records.key, records.key_types)
    # hashed: PostgreSQL expects one row of the change, and would compare each with each
    was_left = text_key.collate("C").not_in(select(changed.c.key))
    known: ColumnElement[int] = literal(0, Integer)
    if decided is not None:
        known = select(func.count()).select_from(decided).scalar_subquery()
    # without it, the anti-join would run for every chunk
    some_left = (select(tally.c.changed).scalar_subquery() + known) < select(span.end.c.found).scalar_subquery()
    left = select(
        text_key.label("key"),
        literal("skipped", Text()).label("kind"),
        literal("", Text()).label("code"),
        literal(LEFT_AS_IT_IS, Text()).label("reason"),
    ).where(some_left, owned_by(records, chunk.tenant), span.within, _selected(chunk), was_left)
    if decided is None:
        return left.cte(parameter("outcomes")).prefix_with("MATERIALIZED")
    both = left.where(undecided(decided, text_key)).union_all(select(*(decided.c[part] for part in OUTCOME_PARTS)))
    return both.cte(parameter("outcomes"))


def _kinds(outcomes: CTE) -> CTE:
    counts = [func.count().filter(outcomes.c.kind == kind).label(kind) for kind in ("skipped", "failed")]
    return select(*counts).select_from(outcomes).cte(parameter("kinds"))


def _changed(plan: LivePlan, span: _Span, decided: CTE | None) -> CTE:
    chunk, records = plan.chunk, plan.records
    text_key = key_text(records.key, records.key_types)
    change: Any = chunk.change.where(owned_by(records, chunk.tenant), span.within, _selected(chunk))
    if decided is not None:
        change = change.where(undecided(decided, text_key))
    is_delete = isinstance(chunk.change, Delete)
    after_it = () if is_delete else plan.watched
    version = records.row_version + 1 if is_delete else records.row_version
    marks = list(after_it)
    if plan.returns_old:
        old, new = records.table.alias("old"), records.table.alias("new")
        marks = [_differ(old.c[str(column.key)], new.c[str(column.key)], column) for column in after_it]
    return change.returning(  # type: ignore[no-any-return]
        text_key.label("key"),
        cast(version, BigInteger).label("version"),
        *(mark.label(f"mark{number}") for number, mark in enumerate(marks)),
        *(effect.body.label(f"body{n}") for n, effect in enumerate(chunk.effects) if effect.body is not None),
    ).cte(parameter("changed"))


def _flags(plan: LivePlan, span: _Span, changed: CTE) -> dict[str, ColumnElement[bool]]:
    """For each watched column, whether a record's value after the change is another than before it."""
    if isinstance(plan.chunk.change, Delete):
        return {f"moved{number}": false() for number in range(len(plan.watched))}
    if span.passed is None:
        return {f"moved{number}": changed.c[f"mark{number}"] for number in range(len(plan.watched))}
    return {
        f"moved{number}": _differ(span.passed.c[f"was{number}"], changed.c[f"mark{number}"], column)
        for number, column in enumerate(plan.watched)
    }


def _joined(plan: LivePlan, passed: CTE, changed: CTE) -> FromClause:
    """Each changed record beside what was read of it before: nothing where its key is another now."""
    count = len(plan.records.key)
    before = [passed.c[f"was{number}"] for number in range(count)]
    now = [changed.c[f"mark{number}"] for number in range(count)]
    return changed.outerjoin(passed, same_key(before, now, plan.records.key_types))


def _differ(before: ColumnElement[Any], now: ColumnElement[Any], column: ColumnElement[Any]) -> ColumnElement[bool]:
    """Byte for byte, and NULL is a value."""
    if is_text(column):
        before, now = before.collate("C"), now.collate("C")
    return before.is_distinct_from(now)


def _advance(
    changed: ColumnElement[int], skipped: ColumnElement[int], failed: ColumnElement[int], source: FromClause, end: CTE
) -> tuple[CTE, CTE]:
    """The cursor's move to the chunk's end, and the ledger's row."""
    counts = (
        select(
            _GATE.c.seq,
            changed.label("changed"),
            skipped.label("skipped"),
            literal(0, Integer).label("not_found"),
            failed.label("failed"),
            (_FROM_CURSOR + end.c.found).label("to_cursor"),
            end.c.key.label("to_key"),
        )
        .select_from(source.join(end, true()))
        .cte(parameter("counts"))
    )
    to_cursor, to_key = counts.c.to_cursor, counts.c.to_key
    is_done = to_key.collate("C") == range_.c.bound_key
    ledger = written(counts, to_cursor, from_key=_text("from_key"), to_key=to_key)
    return moved(counts, to_cursor, cursor_key=to_key, hi=case((is_done, to_cursor), else_=range_.c.hi)), ledger


def _fail_chain() -> Executable:
    rows = select(
        bindparam(parameter("of_job"), type_=BigInteger),
        _text("only_key"),
        bindparam(parameter("of_round"), type_=Integer),
        literal("failed", Text()),
        _text("bad_code"),
        _text("bad_reason"),
    ).select_from(_GATE)
    zero = literal(0, Integer)
    advanced, ledger = _advance(zero, zero, literal(1, Integer), _GATE, _only_end())
    return select(advanced).add_cte(report(rows), ledger)


FAIL_ONE = _fail_chain()
