"""What the control loop asks: which jobs aren't opened, which wishes unheard, which jobs silent, which still owe."""

from dataclasses import dataclass

from sqlalchemy import Connection, Double, bindparam, func, select, union

from bulklane.contracts.job import OVER_STATES
from bulklane.database.effect import OPEN_STATES
from bulklane.database.tables import delivery, job, owed, range_, wish


@dataclass(frozen=True)
class Unopened:
    """A round whose workflow has not opened it yet."""

    job_no: int
    job_id: str
    tenant: str
    operation: str
    lane: str
    priority: int


@dataclass(frozen=True)
class Suspect:
    """A job that wasn't heard from, as it stood when it was looked at."""

    job_no: int
    job_id: str
    round: int
    run_id: str | None
    epochs: int


@dataclass(frozen=True)
class Named:
    """A job's number and id."""

    job_no: int
    job_id: str


def _ago(name: str) -> object:
    return func.clock_timestamp() - func.make_interval(0, 0, 0, 0, 0, 0, bindparam(name, type_=Double))


_NOT_OVER = job.c.over_at.is_(None)
_UNOPENED = (
    select(job.c.job_no, job.c.job_id, job.c.tenant, job.c.operation, job.c.lane, job.c.priority)
    .where(_NOT_OVER, job.c.opened_round < job.c.round, job.c.accepted_at < _ago("seconds"))
    .order_by(job.c.job_no)
    .limit(bindparam("most"))
)
_EPOCHS = select(func.coalesce(func.sum(range_.c.epoch), 0)).where(range_.c.job_no == job.c.job_no).scalar_subquery()
_SUSPECTS = (
    select(job.c.job_no, job.c.job_id, job.c.round, job.c.run_id, _EPOCHS.label("epochs"))
    .join(wish, wish.c.job_no == job.c.job_no)
    .where(_NOT_OVER, job.c.opened_round == job.c.round, wish.c.heard_at < _ago("seconds"))
    .order_by(wish.c.heard_at)
    .limit(bindparam("most"))
)
_UNHEARD = (
    select(job.c.job_no, job.c.job_id)
    .join(wish, wish.c.job_no == job.c.job_no)
    .where(_NOT_OVER, wish.c.looked_at < wish.c.wished_at, wish.c.wished_at < _ago("seconds"))
    .order_by(wish.c.wished_at)
    .limit(bindparam("most"))
)
# from the partial indexes of what is open, not from the jobs of all times
_OPEN_DEBTS = union(
    select(owed.c.job_no).where(owed.c.taken_to < owed.c.size),
    select(delivery.c.job_no).where(delivery.c.state.in_(OPEN_STATES)),
).subquery("open_debts")
_OWING = (
    select(job.c.job_no, job.c.job_id)
    .join(_OPEN_DEBTS, _OPEN_DEBTS.c.job_no == job.c.job_no)
    .where(job.c.state.in_(OVER_STATES))
    .order_by(job.c.job_no)
    .limit(bindparam("most"))
)


def unopened(connection: Connection, *, older_than: float, most: int) -> list[Unopened]:
    """Rounds that were accepted more than `older_than` seconds ago and aren't opened."""
    rows = connection.execute(_UNOPENED, {"seconds": older_than, "most": most})
    return [Unopened(*row) for row in rows]


def suspects(connection: Connection, *, silent_for: float, most: int) -> list[Suspect]:
    """Opened jobs not heard from for `silent_for` seconds, the longest silent first."""
    rows = connection.execute(_SUSPECTS, {"seconds": silent_for, "most": most})
    return [Suspect(row.job_no, row.job_id, row.round, row.run_id, int(row.epochs)) for row in rows]


def unheard(connection: Connection, *, older_than: float, most: int) -> list[Named]:
    """Jobs with a wish of more than `older_than` seconds ago on which nothing has acted."""
    return [Named(*row) for row in connection.execute(_UNHEARD, {"seconds": older_than, "most": most})]


def owing(connection: Connection, *, most: int) -> list[Named]:
    """Jobs that are over and still owe effects."""
    return [Named(*row) for row in connection.execute(_OWING, {"most": most})]
