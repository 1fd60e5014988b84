"""Documents that an index refused and a retry has re-opened: sent again by their rows of `delivery`."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, and_, bindparam, func, select, update

from bulklane.contracts.effect import DeliveryState
from bulklane.database.effect import DELIVERY_ON_CHANNEL, LONGEST_ANSWER, OPEN_DELIVERY
from bulklane.database.storable import storable
from bulklane.database.tables import delivery, owed

_D = DeliveryState


@dataclass(frozen=True)
class Reopened:
    """Refused documents of one effect, and the versions at which their records were changed."""

    effect: str
    keys: list[str]
    versions: list[int]


_OPEN = (
    select(delivery.c.effect, delivery.c.key, owed.c.versions[delivery.c.place + 1].label("version"))
    .join(
        owed,
        and_(
            owed.c.job_no == delivery.c.job_no,
            owed.c.round == delivery.c.round,
            owed.c.range_no == delivery.c.range_no,
            owed.c.seq == delivery.c.seq,
            owed.c.effect == delivery.c.effect,
        ),
    )
    .where(OPEN_DELIVERY, DELIVERY_ON_CHANNEL)
    .order_by(delivery.c.effect, delivery.c.key)
    .limit(bindparam("most"))
)
_SETTLE = (
    update(delivery)
    .where(
        delivery.c.job_no == bindparam("of_job"),
        delivery.c.effect == bindparam("of_effect"),
        delivery.c.key == bindparam("of_key"),
        # `done` always wins
        delivery.c.state != _D.DONE,
    )
    .values(
        state=bindparam("to_state"),
        code=bindparam("new_code"),
        answer=bindparam("new_answer"),
        attempts=delivery.c.attempts + 1,
        settled_at=func.clock_timestamp(),
    )
)


def reopened(connection: Connection, job_no: int, channel: str, most: int) -> list[Reopened]:
    """Up to `most` documents of the job that are to be sent again, by effect."""
    found: dict[str, Reopened] = {}
    for row in connection.execute(_OPEN, {"of_job": job_no, "of_channel": channel, "most": most}):
        piece = found.setdefault(row.effect, Reopened(row.effect, [], []))
        piece.keys.append(row.key)
        piece.versions.append(row.version)
    return list(found.values())


def settle_reopened(
    connection: Connection, job_no: int, piece: Reopened, refused: Sequence[tuple[int, str, str]]
) -> None:
    """They are done, but for what was refused again: (place, code, reason) each."""
    again = {place: (code, reason) for place, code, reason in refused}
    rows = [
        {
            "of_job": job_no,
            "of_effect": piece.effect,
            "of_key": key,
            "to_state": _D.REFUSED if place in again else _D.DONE,
            "new_code": storable(again.get(place, ("", ""))[0], LONGEST_ANSWER),
            "new_answer": storable(again.get(place, ("", ""))[1], LONGEST_ANSWER),
        }
        for place, key in enumerate(piece.keys)
    ]
    connection.execute(_SETTLE, rows)
