"""A trial: the real chunk statement on a few records, read, and always rolled back. Nothing of it stays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Column, Connection, Engine, Update, bindparam, select, text
from sqlalchemy.sql import visitors

from bulklane.contracts.key import Key, format_key
from bulklane.database.chunk import apply_chunk, apply_to_good, chunk_parameters, locked_records
from bulklane.database.chunk_plan import ChunkPlan, ChunkResult
from bulklane.database.constraint import broken_rule
from bulklane.database.document import read_documents
from bulklane.database.engine import rolled_back_transaction
from bulklane.database.failure import Trouble, rule_of, trouble_of
from bulklane.database.range import RangeRef
from bulklane.database.record import key_text
from bulklane.database.selection import Slice, cut_ranges, freeze_keys, insert_selection
from bulklane.database.tables import job_sequence, outcome, owed
from bulklane.database.written import written_columns

UNTAKEN = 0
"""The epoch of a range that no attempt has taken."""

CHANGED = "changed"
_OUTCOMES = select(outcome.c.key, outcome.c.kind, outcome.c.code, outcome.c.reason).where(
    outcome.c.job_no == bindparam("of_job")
)
_OWED = (
    select(owed.c.effect, owed.c.channel, owed.c["keys"], owed.c.bodies)
    .where(owed.c.job_no == bindparam("of_job"))
    .order_by(owed.c.effect)
)
# a deferred constraint is looked at by the commit, which never comes
_CHECK_DEFERRED = text("SET CONSTRAINTS ALL IMMEDIATE")

# seconds
PATIENCE = 5.0
HELD_BY_OTHERS = (
    "a record of the sample, or what it refers to, is locked by another transaction, and a preview neither waits long"
    " nor skips it: try again"
)
Apply = Callable[[Connection, ChunkPlan, RangeRef, int, Slice], ChunkResult | None]


class TrialHeldUp(RuntimeError):
    """The trial gave up, so that it holds up nobody: others hold a record, or one record takes too long."""


@dataclass(frozen=True)
class OwedBody:
    """An effect that a record would owe; `body` is None where it is made when the effect is sent."""

    effect: str
    channel: str
    body: str | None


@dataclass(frozen=True)
class SampledRecord:
    """What would become of one record: `changed`, `skipped`, `failed` (with code and reason) or `not_found`.

    `before` and `after`: its row by column, the key and the columns that the operation writes; of a deletion all. None:
    there was no row, or none is left.
    """

    key: str
    outcome: str
    code: str
    reason: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    owes: Sequence[OwedBody] = field(default_factory=list)

    @property
    def differing(self) -> list[str]:
        """The columns that would have another value; of a deleted row all."""
        before, after = self.before or {}, self.after or {}
        return [name for name in before if name not in after or before[name] != after[name]]


@dataclass(frozen=True)
class Trial:
    """Tries a chunk plan. Each of its transactions holds the records' locks for `transaction` seconds at the most."""

    engine: Engine
    plan: ChunkPlan
    statement: float
    transaction: float

    def of(self, keys: Sequence[Key]) -> list[SampledRecord]:
        """What becomes of records, which must be in key order.

        Records that break a rule are asked for or found by halving, as in a walk, each try in a transaction of its own.
        Raises TrialHeldUp, and what the statement raises where it is no record's fault.
        """
        if not keys:
            return []
        try:
            return self._try(keys, apply_chunk)
        except Exception as error:
            return self._troubled(error, keys)

    def _troubled(self, error: Exception, keys: Sequence[Key]) -> list[SampledRecord]:
        if len(keys) > 1 and broken_rule(error) is not None:
            try:
                return self._try(keys, apply_to_good)
            except Exception as again:
                error = again
        trouble = trouble_of(error)
        if trouble is Trouble.LOCKED:
            raise TrialHeldUp(HELD_BY_OTHERS) from None
        if trouble not in (Trouble.RECORD, Trouble.SLOW, Trouble.LARGE):
            raise error
        if len(keys) > 1:
            middle = len(keys) // 2
            return [*self.of(keys[:middle]), *self.of(keys[middle:])]
        if trouble is Trouble.RECORD:
            return [self._failed(keys[0], error)]
        raise TrialHeldUp(f"the change of one record takes longer than {self.statement:g} s, as a chunk may") from None

    def _try(self, keys: Sequence[Key], apply: Apply) -> list[SampledRecord]:
        plan = self.plan
        with self.transact() as connection:
            ref, piece = stage(connection, plan, keys)
            # so that the rows before are those that the change meets
            key = key_text(list(plan.records.key), plan.records.key_types)
            connection.execute(locked_records(plan, key), chunk_parameters(ref, UNTAKEN, piece)).all()
            before = self._rows(connection, keys)
            if apply(connection, plan, ref, UNTAKEN, piece) is None:
                raise RuntimeError("the gate refused a range that nobody else can know")
            connection.execute(_CHECK_DEFERRED)
            outcomes = {row.key: row for row in connection.execute(_OUTCOMES, {"of_job": ref.job_no})}
            owes = _owes(connection, ref.job_no)
            after = self._rows(connection, keys)
        return [_sampled(format_key(one), outcomes, before, after, owes) for one in keys]

    def _failed(self, key: Key, error: Exception) -> SampledRecord:
        code, reason = rule_of(error)
        with self.transact() as connection:
            row = self._rows(connection, [key]).get(format_key(key))
        return SampledRecord(format_key(key), "failed", code, reason, row, row)

    def _rows(self, connection: Connection, keys: Sequence[Key]) -> dict[str, Mapping[str, Any]]:
        plan = self.plan
        columns = {column.key: column for column in shown_columns(plan)}
        found = read_documents(connection, plan.records, plan.tenant, keys, columns)
        return {key: row for key, (_, row) in found.items()}

    def transact(self) -> Any:
        """A transaction within the limits, rolled back at its end."""
        return rolled_back_transaction(self.engine, statement=self.statement, transaction=self.transaction)

    def patiently(self) -> Any:
        """The same for questions that hold no row of the users'."""
        return rolled_back_transaction(self.engine, statement=PATIENCE, transaction=2 * PATIENCE)


def stage(connection: Connection, plan: ChunkPlan, keys: Sequence[Key]) -> tuple[RangeRef, Slice]:
    """A selection of these keys with one range, under a number that no job has."""
    types = plan.records.key_types
    job_no = int(connection.execute(select(job_sequence.next_value())).scalar_one())
    selection_no = insert_selection(connection, kind="ids", spec={}, key_types=types)
    freeze_keys(connection, selection_no, types, keys)
    cut_ranges(connection, job_no=job_no, round_no=1, total=len(keys), parallelism=1)
    return RangeRef(job_no, 1, 0), Slice(selection_no, 0, len(keys))


def shown_columns(plan: ChunkPlan) -> list[Column[Any]]:
    """The key columns, those that the statement writes, and the row version; of a deleted row all."""
    table, change = plan.records.table, plan.change
    if not isinstance(change, Update):
        return list(table.columns)
    targets = (part for one in written_columns(change).values() for part in visitors.iterate(one))
    written = {part for part in targets if isinstance(part, Column)}
    named = {*written, *plan.records.key, plan.records.row_version}
    return [column for column in table.columns if column in named or column.onupdate is not None]


def _owes(connection: Connection, job_no: int) -> dict[str, list[OwedBody]]:
    found: dict[str, list[OwedBody]] = {}
    for effect, channel, keys, bodies in connection.execute(_OWED, {"of_job": job_no}):
        for key, body in zip(keys, bodies or [None] * len(keys), strict=True):
            found.setdefault(key, []).append(OwedBody(effect, channel, body))
    return found


def _sampled(
    key: str,
    outcomes: Mapping[str, Any],
    before: Mapping[str, Mapping[str, Any]],
    after: Mapping[str, Mapping[str, Any]],
    owes: Mapping[str, list[OwedBody]],
) -> SampledRecord:
    known = outcomes.get(key)
    kind, code, reason = (CHANGED, "", "") if known is None else (known.kind, known.code, known.reason)
    return SampledRecord(key, kind, code, reason, before.get(key), after.get(key), owes.get(key, []))
