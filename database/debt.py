"""The debt of a job: effects of committed chunks that are still to be sent. What a held channel owes doesn't count."""

from sqlalchemy import Connection, bindparam, func, literal, select

from bulklane.database.effect import OPEN_DELIVERY, OPEN_OWED
from bulklane.database.tables import channel_limit, delivery, owed

EVERY_TENANT = ""


def _held(channel: object) -> object:
    return (
        select(literal(1))
        .where(
            channel_limit.c.channel == channel,
            channel_limit.c.tenant.in_((EVERY_TENANT, bindparam("of_tenant"))),
            channel_limit.c.held_since.is_not(None),
        )
        .exists()
    )


# both from partial indexes of what is open
_DEBT = select(
    select(func.coalesce(func.sum(owed.c.size - owed.c.taken_to), 0))
    .where(OPEN_OWED, ~_held(owed.c.channel))  # type: ignore[operator]
    .scalar_subquery()
    + select(func.count())
    .select_from(delivery)
    .where(OPEN_DELIVERY, ~_held(delivery.c.channel))  # type: ignore[operator]
    .scalar_subquery()
)


def count_debt(connection: Connection, job_no: int, tenant: str) -> int:
    """How many effects of the job are neither final nor owed to a held channel."""
    return int(connection.execute(_DEBT, {"of_job": job_no, "of_tenant": tenant}).scalar_one())
