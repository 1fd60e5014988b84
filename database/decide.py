"""Decisions: what becomes of deliveries of which nobody can find out whether they happened."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ARRAY,
    Connection,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    insert,
    select,
    update,
)

from bulklane.contracts.effect import DeliveryState
from bulklane.contracts.message import Decision, VerbMessage, Verdict
from bulklane.database.job import Job, lock_job
from bulklane.database.superseded import SUPERSEDED
from bulklane.database.tables import decision, delivery
from bulklane.database.wish import note_message

_D = DeliveryState
# the code of a delivery that a person has taken as done
DECIDED = "decided"
_STATE_OF = {Verdict.RESEND: _D.UNKNOWN, Verdict.DONE: _D.DONE, Verdict.GIVE_UP: _D.GIVEN_UP}


@dataclass(frozen=True)
class Decided:
    """What came of a decision. `refused`: why nothing was done; empty where it was done as asked."""

    decision: Decision
    refused: str = ""


_TEXTS = ARRAY(Text())
_asked = (
    func.unnest(cast(bindparam("effects"), _TEXTS), cast(bindparam("keys"), _TEXTS))
    .table_valued("effect", "key", name="asked")
    .render_derived()
)
_STANDING = (
    select(
        delivery.c.effect,
        delivery.c.key,
        delivery.c.state,
        delivery.c.doubt,
        SUPERSEDED.label("superseded"),
    )
    .join(_asked, and_(delivery.c.effect == _asked.c.effect, delivery.c.key == _asked.c.key))
    .where(delivery.c.job_no == bindparam("of_job"))
    .order_by(delivery.c.effect, delivery.c.key)
    .with_for_update(of=delivery)
)
_BEFORE = (
    select(decision)
    .join(_asked, and_(decision.c.effect == _asked.c.effect, decision.c.key == _asked.c.key))
    .where(decision.c.job_no == bindparam("of_job"))
)
_made = (
    func.unnest(
        cast(bindparam("effects"), _TEXTS),
        cast(bindparam("keys"), _TEXTS),
        cast(bindparam("doubts"), ARRAY(Integer())),
        cast(bindparam("states"), _TEXTS),
    )
    .table_valued("effect", "key", "doubt", "state", name="made")
    .render_derived()
)
_RESENT = cast(_made.c.state, Text()) == _D.UNKNOWN
_DECIDE = (
    update(delivery)
    .where(
        delivery.c.job_no == bindparam("of_job"),
        delivery.c.effect == _made.c.effect,
        delivery.c.key == _made.c.key,
        delivery.c.doubt == cast(_made.c.doubt, Integer()),
        delivery.c.state == _D.UNDECIDED,
    )
    .values(
        state=_made.c.state,
        permitted=_RESENT,
        attempts_before=case((_RESENT, delivery.c.attempts), else_=delivery.c.attempts_before),
        code=case((cast(_made.c.state, Text()) == _D.DONE, DECIDED), else_=delivery.c.code),
        token=None,
        due=func.clock_timestamp(),
        settled_at=func.clock_timestamp(),
    )
)
_WRITE = insert(decision)


def decide(connection: Connection, job_no: int, message: VerbMessage) -> list[Decided]:
    """Apply the decisions of a message, once by its id; what came of each, in their order. Raises JobUnknown.

    The job may be over: what is to be sent again is then delivered without it, and its state stays as it is.
    """
    job = lock_job(connection, job_no)
    values = {
        "of_job": job_no,
        "effects": [one.effect for one in message.decisions],
        "keys": [one.key for one in message.decisions],
    }
    standing = {(row.effect, row.key): row for row in connection.execute(_STANDING, values)}
    before = {(row.effect, row.key, row.doubt): row for row in connection.execute(_BEFORE, values)}
    made: dict[tuple[str, str], Decision] = {}
    answers = []
    for one in message.decisions:
        place = one.effect, one.key
        refused = _refusal(one, standing.get(place), before.get((*place, one.doubt)), made.get(place))
        if not refused:
            made[place] = one
        answers.append(Decided(one, refused))
    if not note_message(connection, job, message, applied=bool(made)):
        return [Decided(one, "this message was received before") for one in message.decisions]
    _apply(connection, job, list(made.values()), message)
    return answers


def _refusal(one: Decision, standing: Any, before: Any, now: Decision | None) -> str:
    if standing is None:
        return "the job has no such delivery"
    if before is not None:
        return f"{before.who or 'somebody'} has decided this doubt before: {before.verdict}"
    if now is not None:
        return f"the same message has decided it before: {now.verdict}"
    if standing.state != _D.UNDECIDED:
        return f"it is not undecided any more: {standing.state.replace('_', ' ')}"
    if standing.doubt != one.doubt:
        return f"doubt {one.doubt} is not the present one: that is doubt {standing.doubt}"
    if one.verdict is Verdict.RESEND and standing.superseded:
        return "superseded: a later job has sent for this record on the channel"
    return ""


def _apply(connection: Connection, job: Job, made: Sequence[Decision], message: VerbMessage) -> None:
    if not made:
        return
    values = {
        "of_job": job.job_no,
        "effects": [one.effect for one in made],
        "keys": [one.key for one in made],
        "doubts": [one.doubt for one in made],
        "states": [str(_STATE_OF[one.verdict]) for one in made],
    }
    connection.execute(_DECIDE, values)
    connection.execute(
        _WRITE,
        [
            {
                "job_no": job.job_no,
                "effect": one.effect,
                "key": one.key,
                "doubt": one.doubt,
                "verdict": one.verdict,
                "who": message.who,
                "why": message.why,
            }
            for one in made
        ],
    )
