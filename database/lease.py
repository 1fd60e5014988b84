"""Leases: which job owns which resources. One resource, one job; no clock ever takes one away."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ARRAY, Connection, Integer, Text, bindparam, cast, delete, func, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert

from bulklane.database.tables import job, job_resource, lease


@dataclass(frozen=True)
class Holder:
    """The job that owns a resource, for the answer to a competitor."""

    resource: str
    job_id: str
    tenant: str
    state: str
    since: datetime


_WANTED = (
    func.unnest(cast(bindparam("resources"), ARRAY(Text()))).table_valued("resource", name="wanted").render_derived()
)

_ACQUIRE = (
    upsert(lease)
    .from_select(
        ["resource", "job_no", "round"],
        select(
            _WANTED.c.resource.collate("C"),
            bindparam("job_no", type_=lease.c.job_no.type),
            bindparam("round", type_=Integer),
            # every acquirer inserts in this order, so two of them wait for each other in one direction only
        ).order_by(_WANTED.c.resource.collate("C")),
    )
    .on_conflict_do_nothing()
    .returning(lease.c.resource)
)

_RECORD_TURN = insert(job_resource).from_select(
    ["resource", "turn", "job_no", "round"],
    select(
        _WANTED.c.resource.collate("C"),
        bindparam("turn", type_=job_resource.c.turn.type),
        bindparam("job_no", type_=job_resource.c.job_no.type),
        bindparam("round", type_=Integer),
    ),
)

_RELEASE = (
    delete(lease)
    .where(lease.c.job_no == bindparam("job_no"), lease.c.round == bindparam("round"))
    .returning(lease.c.resource)
)

_HOLDERS = (
    select(lease.c.resource, job.c.job_id, job.c.tenant, job.c.state, lease.c.since)
    .join(job, job.c.job_no == lease.c.job_no)
    .where(lease.c.resource == func.any(cast(bindparam("resources"), ARRAY(Text()))))
    .order_by(lease.c.resource)
)


def acquire(connection: Connection, resources: Sequence[str], *, job_no: int, round_no: int) -> bool:
    """Take all of the resources; where False comes back the caller must roll back, since some may have been taken."""
    values = {"resources": sorted(set(resources)), "job_no": job_no, "round": round_no}
    taken = connection.execute(_ACQUIRE, values).all()
    return len(taken) == len(values["resources"])  # type: ignore[arg-type]


def record_turn(connection: Connection, resources: Sequence[str], *, job_no: int, round_no: int, turn: int) -> None:
    """Remember the round's place in the order of effects on its resources."""
    values = {"resources": sorted(set(resources)), "job_no": job_no, "round": round_no, "turn": turn}
    connection.execute(_RECORD_TURN, values)


def holders(connection: Connection, resources: Sequence[str]) -> list[Holder]:
    """Who owns any of these resources now."""
    rows = connection.execute(_HOLDERS, {"resources": sorted(set(resources))})
    return [Holder(row.resource, row.job_id, row.tenant, row.state, row.since) for row in rows]


def release(connection: Connection, *, job_no: int, round_no: int) -> int:
    """Free what this round still owns; how many resources that was."""
    return len(connection.execute(_RELEASE, {"job_no": job_no, "round": round_no}).all())
