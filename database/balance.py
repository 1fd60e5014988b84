"""What `verify` reads of our own tables and of the user's: the selected keys, exceptions, versions, what is left."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, and_, bindparam, case, cast, func, literal, or_, select

from bulklane.contracts.effect import DeliveryState
from bulklane.contracts.key import KeyType
from bulklane.database.decide import DECIDED
from bulklane.database.record import RecordSet, key_text, owned_by, unnested
from bulklane.database.tables import block, chunk, delivery, job_resource, key_column, lease, outcome
from bulklane.database.tables import job as job_table

_D = DeliveryState


@dataclass(frozen=True)
class Change:
    """One change of a record, as the audit saw it."""

    key: str
    changed_at: datetime


def selected_keys(connection: Connection, selection_no: int, key_types: Sequence[KeyType]) -> list[str]:
    """Every frozen key, in order; a doubled one would come twice."""
    names = [f"key{position}" for position in range(1, len(key_types) + 1)]
    arrays = [block.c[key_column(position, key_type)] for position, key_type in enumerate(key_types, 1)]
    rows = unnested(arrays, names, "one")
    statement = (
        select(key_text([rows.c[name] for name in names], key_types))
        .select_from(block.join(rows, block.c.selection_no == block.c.selection_no))
        .where(block.c.selection_no == selection_no)
        .order_by(block.c.no, rows.c.ordinal)
    )
    return list(connection.execute(statement).scalars())


_EXCEPTIONS = select(outcome.c.key, outcome.c.kind).where(outcome.c.job_no == bindparam("of_job"))
_LEASES: Select[int] = select(func.count()).select_from(lease).where(lease.c.job_no == bindparam("of_job"))
_mine, _theirs = job_resource.alias("mine"), job_resource.alias("theirs")
_LAST_TURN = select(func.max(_mine.c.turn)).where(_mine.c.job_no == bindparam("of_job")).scalar_subquery()
_NEXT_ACCEPTED = (
    select(func.min(job_table.c.accepted_at))
    .join(_theirs, _theirs.c.job_no == job_table.c.job_no)
    .join(_mine, (_mine.c.resource == _theirs.c.resource) & (_mine.c.job_no == bindparam("of_job")))
    .where(_theirs.c.job_no != bindparam("of_job"), _theirs.c.turn > _LAST_TURN)
)


_LAST_GENERATION = select(func.coalesce(func.max(delivery.c.generation), 1)).where(
    delivery.c.job_no == bindparam("of_job")
)


def last_generation(connection: Connection, job_no: int) -> int:
    """The highest generation of any delivery of the job; at least 1."""
    return int(connection.execute(_LAST_GENERATION, {"of_job": job_no}).scalar_one())


_DELIVERY_EXCEPTIONS = select(
    delivery.c.effect, delivery.c.key, case((delivery.c.state == _D.DONE, _D.GIVEN_UP), else_=delivery.c.state)
).where(
    delivery.c.job_no == bindparam("of_job"),
    or_(
        delivery.c.state.in_((_D.REFUSED, _D.UNDECIDED, _D.GIVEN_UP)),
        # a person has taken it as done: what the provider knows of it decides nothing any more
        and_(delivery.c.state == _D.DONE, delivery.c.code == DECIDED),
    ),
)


def delivery_exceptions(connection: Connection, job_no: int) -> dict[tuple[str, str], DeliveryState]:
    """By effect and key, deliveries that are final without being known as done; one decided as done is given up."""
    rows = connection.execute(_DELIVERY_EXCEPTIONS, {"of_job": job_no})
    return {(effect, key): DeliveryState(state) for effect, key, state in rows}


def exceptions(connection: Connection, job_no: int) -> dict[str, str]:
    """The keys that were not changed, with the kind of their outcome."""
    return {row.key: row.kind for row in connection.execute(_EXCEPTIONS, {"of_job": job_no})}


def leases_left(connection: Connection, job_no: int) -> int:
    """How many resources the job still owns."""
    return int(connection.execute(_LEASES, {"of_job": job_no}).scalar_one())


def next_accepted_at(connection: Connection, job_no: int) -> datetime | None:
    """When the next job that shares a resource with this one was accepted; None where there is none."""
    accepted: datetime | None = connection.execute(_NEXT_ACCEPTED, {"of_job": job_no}).scalar_one()
    return accepted


def changes(
    connection: Connection, audit: Select[Any], job_no: int, since: datetime, until: datetime | None
) -> list[Change]:
    """The audit's changes from `since` on, up to `until`, but for those in other jobs' transactions."""
    audited = audit.subquery("audited")
    others = (
        select(literal(1)).where(chunk.c.transaction_id == audited.c.transaction_id, chunk.c.job_no != job_no).exists()
    )
    statement = select(audited.c.key, audited.c.changed_at).where(audited.c.changed_at >= since, ~others)
    if until is not None:
        statement = statement.where(audited.c.changed_at < until)
    return [Change(row.key, row.changed_at) for row in connection.execute(statement)]


def changed_by(connection: Connection, audit: Select[Any], job_no: int) -> list[str]:
    """The keys that the job's own transactions have changed, by audit and ledger; a doubled change comes twice."""
    audited = audit.subquery("audited")
    statement = select(audited.c.key).where(
        audited.c.transaction_id.in_(select(chunk.c.transaction_id).where(chunk.c.job_no == job_no))
    )
    return list(connection.execute(statement).scalars())


def row_versions(connection: Connection, records: RecordSet, tenant: str) -> dict[str, int]:
    """By key: the version of every row of the tenant."""
    statement = select(key_text(list(records.key), records.key_types), cast(records.row_version, BigInteger)).where(
        owned_by(records, tenant)
    )
    return {row[0]: int(row[1]) for row in connection.execute(statement)}
