"""The accepting transaction: idempotency key, lease, turn, job and selection, all or nothing; no Temporal call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Connection, bindparam, func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from bulklane.contracts.job import JobState
from bulklane.contracts.key import Key, KeyType
from bulklane.contracts.lane import Lane, lane_of
from bulklane.database import lease
from bulklane.database.job import Job, find_job, get_job
from bulklane.database.live_selection import bound_live, check_table
from bulklane.database.range import RangeRef
from bulklane.database.record import RecordSet
from bulklane.database.selection import count_matching, cut_ranges, freeze_keys, freeze_matching, insert_selection
from bulklane.database.tables import idempotency, job, job_sequence, turn_sequence
from bulklane.database.wish import insert_wish

IDEMPOTENCY_KEPT = timedelta(days=30)


class Proposal(Protocol):
    """A job as it was asked for, read and checked: all that the accepting transaction stores.

    `operations.Request` is one.
    """

    @property
    def job_id(self) -> str:
        """The caller's name for the job."""

    @property
    def tenant(self) -> str:
        """Whose records."""

    @property
    def operation(self) -> str:
        """Its name."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """As JSON values."""

    @property
    def content_hash(self) -> str:
        """Equal for equal requests only."""

    @property
    def resources(self) -> Sequence[str]:
        """What the job must own."""

    @property
    def records(self) -> RecordSet:
        """The rows."""

    @property
    def selection_kind(self) -> str:
        """Ids, filter or all."""

    @property
    def selection_spec(self) -> Mapping[str, Any]:
        """As asked for, without the ids."""

    @property
    def keys(self) -> Sequence[Key] | None:
        """Distinct and in key order; None where a condition selects."""

    @property
    def condition(self) -> ColumnElement[bool] | None:
        """What selects, where no keys do; None where the search engine does."""

    @property
    def duplicates(self) -> int:
        """How many keys were folded."""

    @property
    def live(self) -> bool:
        """Walked in key order, without freezing keys."""

    @property
    def channels(self) -> Sequence[str]:
        """Where effects go."""

    @property
    def parallelism(self) -> int:
        """Ranges."""

    @property
    def hold_lease(self) -> bool:
        """Until the effects are final."""

    @property
    def priority(self) -> int:
        """1 (first) to 5."""

    @property
    def idempotency_key(self) -> str | None:
        """The caller's."""

    @property
    def who(self) -> str:
        """Asked for it."""

    @property
    def why(self) -> str:
        """In their words."""


@dataclass(frozen=True)
class Accepted:
    """The job, and whether this call stored it or found it there."""

    job: Job
    replayed: bool


class Conflict(RuntimeError):
    """Another job owns a resource; nothing was stored."""

    def __init__(self, holder: lease.Holder) -> None:
        super().__init__(
            f"job {holder.job_id} ({holder.state}) owns {holder.resource} since {holder.since.isoformat()};"
            " try again when it is over"
        )
        self.holder = holder


class JobIdReused(RuntimeError):
    """The job id (or idempotency key) stands for other content; nothing was stored."""


_CLAIM_KEY = upsert(idempotency).on_conflict_do_nothing().returning(idempotency.c.key)
_READ_KEY = select(idempotency.c.job_no, idempotency.c.content_hash).where(
    idempotency.c.tenant == bindparam("tenant"), idempotency.c.key == bindparam("key")
)
_BIND_KEY = (
    update(idempotency)
    .where(idempotency.c.tenant == bindparam("of_tenant"), idempotency.c.key == bindparam("of_key"))
    .values(job_no=bindparam("job"))
)
_INSERT_JOB = upsert(job).on_conflict_do_nothing(index_elements=[job.c.job_id]).returning(job.c.job_no)


def find_accepted(connection: Connection, proposal: Proposal) -> Accepted | None:
    """The job that the same request was accepted as before, if any. Raises JobIdReused where the content differs."""
    if proposal.idempotency_key is not None:
        values = {"tenant": proposal.tenant, "key": proposal.idempotency_key}
        row = connection.execute(_READ_KEY, values).one_or_none()
        if row is not None and row.job_no is not None:
            return _replayed(get_job(connection, row.job_no), proposal, f"idempotency key {proposal.idempotency_key!r}")
    known = find_job(connection, proposal.job_id)
    return None if known is None else _replayed(known, proposal, f"job id {proposal.job_id!r}")


def measure(
    connection: Connection, proposal: Proposal, small_max_records: int, found_by_search: int | None = None
) -> int:
    """How many records the selection has, counted up to `small_max_records` + 1.

    What the search engine selects can't be counted here: the caller says, and a number that isn't known is a large one.
    Raises LiveUnfit where it is live and its table can't be walked so.
    """
    if proposal.live:
        check_table(connection, proposal.records)
    if proposal.keys is not None:
        return len(proposal.keys)
    if proposal.condition is None:
        return small_max_records + 1 if found_by_search is None else found_by_search
    return count_matching(connection, proposal.records, proposal.tenant, proposal.condition, small_max_records)


def store(connection: Connection, proposal: Proposal, *, size: int, small_max_records: int) -> Accepted:
    """Store the job with all that belongs to it, in the caller's transaction, which must roll back on any error.

    Raises LeaseMissed and JobIdReused.
    """
    if proposal.idempotency_key is not None and not _claim_key(connection, proposal):
        # a second statement: the first one's snapshot may not see the row that it met
        found = find_accepted(connection, proposal)
        if found is not None:
            return found
    job_no = int(connection.execute(select(job_sequence.next_value())).scalar_one())
    if not lease.acquire(connection, proposal.resources, job_no=job_no, round_no=1):
        raise LeaseMissed(proposal.resources)
    turn = int(connection.execute(select(turn_sequence.next_value())).scalar_one())
    lease.record_turn(connection, proposal.resources, job_no=job_no, round_no=1, turn=turn)
    lane = lane_of(size, small_max_records)
    selection_no, total = _store_selection(connection, proposal, job_no, lane)
    row = _row(proposal, job_no=job_no, turn=turn, lane=lane, selection_no=selection_no) | {"total": total}
    if connection.execute(_INSERT_JOB, row).one_or_none() is None:
        # the job id was taken since the caller looked for it
        raise LeaseMissed(proposal.resources)
    insert_wish(connection, job_no)
    if proposal.idempotency_key is not None:
        values = {"of_tenant": proposal.tenant, "of_key": proposal.idempotency_key, "job": job_no}
        connection.execute(_BIND_KEY, values)
    return Accepted(get_job(connection, job_no), replayed=False)


class LeaseMissed(RuntimeError):
    """Fewer resources than asked were free, or the job id was taken: roll back, and `conflict` tells what stands."""

    def __init__(self, resources: Sequence[str]) -> None:
        super().__init__("another job owns one of the resources, or has the job id")
        self.resources = resources


def conflict(connection: Connection, proposal: Proposal) -> Accepted | Conflict | None:
    """After a missed lease: the same request's own job, or the holder; None where the holder has gone meanwhile."""
    found = find_accepted(connection, proposal)
    if found is not None:
        return found
    owners = lease.holders(connection, proposal.resources)
    return Conflict(owners[0]) if owners else None


def _claim_key(connection: Connection, proposal: Proposal) -> bool:
    values = {
        "tenant": proposal.tenant,
        "key": proposal.idempotency_key,
        "content_hash": proposal.content_hash,
        "kept_until": None,
    }
    claimed = connection.execute(_CLAIM_KEY.values(kept_until=func.clock_timestamp() + IDEMPOTENCY_KEPT), values)
    return claimed.one_or_none() is not None


def _replayed(found: Job, proposal: Proposal, name: str) -> Accepted:
    if found.content_hash != proposal.content_hash or found.tenant != proposal.tenant:
        raise JobIdReused(f"{name} already stands for another request; use a new one for other content")
    return Accepted(found, replayed=True)


def _store_selection(connection: Connection, proposal: Proposal, job_no: int, lane: Lane) -> tuple[int, int | None]:
    key_types: Sequence[KeyType] = proposal.records.key_types
    selection_no = insert_selection(
        connection,
        kind=proposal.selection_kind,
        spec=proposal.selection_spec,
        key_types=key_types,
        duplicates=proposal.duplicates,
        live=proposal.live,
    )
    if proposal.live and lane is Lane.SMALL and proposal.condition is not None:
        chosen = (proposal.records, proposal.tenant, proposal.condition, proposal.parallelism)
        return selection_no, bound_live(connection, RangeRef(job_no, 1, 0), selection_no, *chosen)
    if proposal.keys is not None:
        total = freeze_keys(connection, selection_no, key_types, proposal.keys)
    elif lane is Lane.SMALL and proposal.condition is not None:
        total = freeze_matching(connection, selection_no, proposal.records, proposal.tenant, proposal.condition)
    else:
        return selection_no, None
    cut_ranges(connection, job_no=job_no, round_no=1, total=total, parallelism=proposal.parallelism)
    return selection_no, total


def _row(proposal: Proposal, *, job_no: int, turn: int, lane: Lane, selection_no: int) -> dict[str, Any]:
    return {
        "job_no": job_no,
        "job_id": proposal.job_id,
        "tenant": proposal.tenant,
        "operation": proposal.operation,
        "parameters": proposal.parameters,
        "content_hash": proposal.content_hash,
        "lane": lane,
        "priority": proposal.priority,
        "parallelism": proposal.parallelism,
        "hold_lease": proposal.hold_lease,
        "channels": list(proposal.channels),
        "state": JobState.ACCEPTED,
        "selection_no": selection_no,
        "first_selection_no": selection_no,
        "turn": turn,
        "who": proposal.who,
        "why": proposal.why,
    }
