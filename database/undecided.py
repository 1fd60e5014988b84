"""Undecided deliveries: nobody can find out whether they happened, and each waits for a person's decision."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, select, tuple_

from bulklane.contracts.effect import DeliveryState
from bulklane.database.tables import delivery

_D = DeliveryState
MOST = 1000


@dataclass(frozen=True)
class Undecided:
    """A delivery that waits for a decision. `answer`: what was last known; `attempts`: those that may have called."""

    effect: str
    key: str
    channel: str
    doubt: int
    since: datetime
    answer: str
    attempts: int


_UNDECIDED = (
    select(
        delivery.c.effect,
        delivery.c.key,
        delivery.c.channel,
        delivery.c.doubt,
        delivery.c.settled_at,
        delivery.c.answer,
        delivery.c.attempts,
    )
    .where(
        delivery.c.job_no == bindparam("of_job"),
        delivery.c.state == _D.UNDECIDED,
        tuple_(delivery.c.effect, delivery.c.key) > tuple_(bindparam("after_effect"), bindparam("after_key")),
    )
    .order_by(delivery.c.effect, delivery.c.key)
    .limit(bindparam("most"))
)
_UNDECIDED_OF_EFFECT = _UNDECIDED.where(delivery.c.effect == bindparam("of_effect"))


def undecided(
    connection: Connection,
    job_no: int,
    *,
    effect: str | None = None,
    after: Undecided | None = None,
    most: int = MOST,
) -> list[Undecided]:
    """The job's undecided deliveries in the order of effect and key, up to `most`, from behind `after` on."""
    after_effect, after_key = ("", "") if after is None else (after.effect, after.key)
    values: dict[str, Any] = {"of_job": job_no, "after_effect": after_effect, "after_key": after_key, "most": most}
    if effect is None:
        rows = connection.execute(_UNDECIDED, values)
    else:
        rows = connection.execute(_UNDECIDED_OF_EFFECT, values | {"of_effect": effect})
    return [Undecided(*row) for row in rows]
