"""Deliveries: one provider effect for one record, claimed before its call and settled by its token after it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Double,
    Integer,
    Row,
    ScalarSelect,
    Select,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    func,
    insert,
    literal,
    or_,
    select,
    true,
    update,
)

from bulklane.contracts.effect import DeliveryState
from bulklane.database.effect import (
    DELIVERY_ON_CHANNEL,
    LONGEST_ANSWER,
    OPEN_DELIVERY,
    OPEN_OWED,
    OPEN_STATES,
    OWED_ON_CHANNEL,
)
from bulklane.database.storable import storable
from bulklane.database.tables import delivery, owed

_D = DeliveryState


@dataclass(frozen=True)
class Claim:
    """One delivery that this sender may make now. `doubtful`: an earlier call under this key has no known outcome.

    `attempts`: those of this generation, or since a person decided. `permitted`: a person has decided that it is sent
    once more.
    """

    effect: str
    key: str
    generation: int
    token: UUID
    attempts: int
    doubtful: bool
    first_sent_seconds: float
    body: str
    permitted: bool = False


@dataclass(frozen=True)
class Settlement:
    """What became of a claimed delivery. `due_seconds`: when it may be sent again, from now. `unsent`: no attempt.

    `permitted`: the permission to send it once more is not used up, since nothing was done.
    """

    effect: str
    key: str
    token: UUID
    state: DeliveryState
    code: str = ""
    answer: str = ""
    due_seconds: float = 0.0
    unsent: bool = False
    permitted: bool = False


_CLAIM_SECONDS = bindparam("claim_seconds", type_=Double)
_claim_end = func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, _CLAIM_SECONDS)
_TOKEN = bindparam("new_token", type_=Uuid)


_DUE = or_(
    and_(delivery.c.state == _D.SENDING, delivery.c.claimed_until < func.clock_timestamp()),
    and_(delivery.c.state.in_((_D.LATER, _D.UNKNOWN)), delivery.c.due <= func.clock_timestamp()),
)


def _all_of(column: ColumnElement[str]) -> ColumnElement[Any]:
    return cast(select(func.array_agg(column.distinct())).scalar_subquery(), ARRAY(Text()))


def _again() -> Any:
    """Claim what was sent before and may be sent or looked up again: due, or its sender is gone."""
    due = (
        select(delivery.c.effect, delivery.c.key, delivery.c.state, delivery.c.permitted)
        .where(
            OPEN_DELIVERY,
            DELIVERY_ON_CHANNEL,
            _DUE,
        )
        .order_by(delivery.c.due)
        .limit(bindparam("most"))
        .with_for_update(skip_locked=True)
        .cte("due")
        .prefix_with("MATERIALIZED")
    )
    claimed = (
        update(delivery)
        .where(
            delivery.c.job_no == bindparam("of_job"),
            delivery.c.effect == due.c.effect,
            delivery.c.key == due.c.key,
            # said twice, as in _SETTLE
            delivery.c.effect == func.any(_all_of(due.c.effect)),
            delivery.c.key == func.any(_all_of(due.c.key)),
        )
        .values(
            state=_D.SENDING,
            token=_TOKEN,
            claimed_until=_claim_end,
            attempts=delivery.c.attempts + 1,
            first_sent_at=func.coalesce(delivery.c.first_sent_at, func.clock_timestamp()),
            # used up by the claim: a sender that dies may have sent
            permitted=False,
        )
        .returning(
            delivery.c.effect,
            delivery.c.key,
            delivery.c.generation,
            (delivery.c.attempts - delivery.c.attempts_before).label("attempts"),
            delivery.c.round,
            delivery.c.range_no,
            delivery.c.seq,
            delivery.c.place,
            delivery.c.first_sent_at,
            (due.c.state != _D.LATER).label("doubtful"),
            due.c.permitted,
        )
        .cte("claimed")
    )
    sent = func.extract("epoch", func.clock_timestamp() - claimed.c.first_sent_at).cast(Double)
    return select(
        claimed.c.effect,
        claimed.c.key,
        claimed.c.generation,
        claimed.c.attempts,
        claimed.c.doubtful,
        sent.label("first_sent_seconds"),
        _body_of(claimed).label("body"),
        claimed.c.permitted,
    )


def _body_of(claimed: CTE) -> ScalarSelect[Any]:
    """The body that was fixed at commit."""
    return (
        select(owed.c.bodies[claimed.c.place + 1])
        .where(
            owed.c.job_no == bindparam("of_job"),
            owed.c.round == claimed.c.round,
            owed.c.range_no == claimed.c.range_no,
            owed.c.seq == claimed.c.seq,
            owed.c.effect == claimed.c.effect,
        )
        .scalar_subquery()
    )


_WRITTEN = (
    "job_no", "effect", "key", "channel", "turn", "round", "range_no", "seq", "place",
    "state", "token", "claimed_until", "attempts", "first_sent_at",
)  # fmt: skip


def _first() -> Any:
    """Claim what was never sent: the next records of one chunk's row."""
    head = (
        select(owed)
        .where(OPEN_OWED, OWED_ON_CHANNEL)
        .order_by(owed.c.round, owed.c.range_no, owed.c.seq)
        .limit(1)
        .with_for_update(skip_locked=True)
        .cte("head")
        .prefix_with("MATERIALIZED")
    )
    end = func.least(head.c.size, head.c.taken_to + bindparam("most", type_=Integer))
    taken = (
        update(owed)
        .where(
            owed.c.job_no == head.c.job_no,
            owed.c.round == head.c.round,
            owed.c.range_no == head.c.range_no,
            owed.c.seq == head.c.seq,
            owed.c.effect == head.c.effect,
        )
        .values(taken_to=end)
        .returning(owed.c.taken_to)
        .cte("taken")
    )
    items = _items(head, end)
    written = (
        insert(delivery)
        .from_select(_WRITTEN, _sending(items))
        .returning(delivery.c.effect, delivery.c.key, delivery.c.generation, delivery.c.place)
        .cte("written")
    )
    return (
        select(
            written.c.effect,
            written.c.key,
            written.c.generation,
            literal(1, Integer).label("attempts"),
            literal(False, Boolean).label("doubtful"),
            literal(0.0, Double).label("first_sent_seconds"),
            items.c.body,
            literal(False, Boolean).label("permitted"),
        )
        .select_from(written.join(items, written.c.place == items.c.place))
        .add_cte(taken)
    )


def _items(head: CTE, end: ColumnElement[int]) -> CTE:
    """The next places of a chunk's row, each with key and body."""
    # cut out once: each look at an element of a stored array would unpack the whole of it
    cut = [
        func.coalesce(head.c[name][head.c.taken_to + 1 : end], cast(literal("{}"), ARRAY(Text())))
        for name in ("keys", "bodies")
    ]
    one = func.unnest(*cut).table_valued("key", "body", with_ordinality="ordinal", name="one").render_derived()
    return (
        select(
            *(head.c[name] for name in ("job_no", "effect", "channel", "round", "range_no", "seq")),
            (head.c.taken_to + cast(one.c.ordinal, Integer) - 1).label("place"),
            one.c.key,
            one.c.body,
        )
        .select_from(head.join(one, true()))
        .cte("items")
        .prefix_with("MATERIALIZED")
    )


def _sending(items: CTE) -> Select[Any]:
    """The rows of deliveries that are sent for the first time."""
    return select(
        items.c.job_no,
        items.c.effect,
        items.c.key,
        items.c.channel,
        bindparam("of_turn", type_=BigInteger),
        items.c.round,
        items.c.range_no,
        items.c.seq,
        items.c.place,
        literal(_D.SENDING, Text()),
        _TOKEN,
        _claim_end,
        literal(1, Integer),
        func.clock_timestamp(),
    )


_AGAIN, _FIRST = _again(), _first()

# no more is counted than is asked for: a job may owe thousands of chunks
_SOME_DUE = select(literal(1)).where(OPEN_DELIVERY, DELIVERY_ON_CHANNEL, _DUE).limit(bindparam("most")).subquery()
_SOME_OWED = (
    select((owed.c.size - owed.c.taken_to).label("untaken"))
    .where(OPEN_OWED, OWED_ON_CHANNEL)
    .limit(bindparam("most"))
    .subquery()
)
_CLAIMABLE = select(
    select(func.count()).select_from(_SOME_DUE).scalar_subquery()
    + select(func.coalesce(func.sum(_SOME_OWED.c.untaken), 0)).scalar_subquery()
)

_arrays = (
    func.unnest(
        cast(bindparam("effects"), ARRAY(Text())),
        cast(bindparam("keys"), ARRAY(Text())),
        cast(bindparam("tokens"), ARRAY(Uuid())),
        cast(bindparam("states"), ARRAY(Text())),
        cast(bindparam("codes"), ARRAY(Text())),
        cast(bindparam("answers"), ARRAY(Text())),
        cast(bindparam("dues"), ARRAY(Double())),
        cast(bindparam("unsent"), ARRAY(Integer())),
        cast(bindparam("permissions"), ARRAY(Boolean())),
    )
    .table_valued(
        "effect", "key", "token", "state", "code", "answer", "due_seconds", "unsent", "permitted", name="settled"
    )
    .render_derived()
)
_UNDECIDED_NOW = cast(_arrays.c.state, Text()) == _D.UNDECIDED
# a person who decides wants to know what the provider said last
_UNDECIDED_AFTER_AN_ANSWER = and_(_UNDECIDED_NOW, delivery.c.answer != "")
_WITH_ANSWER_BEFORE = func.left(
    func.concat(cast(_arrays.c.answer, Text()), " (before: ", delivery.c.answer, ")"), LONGEST_ANSWER
)
_SETTLE = (
    update(delivery)
    .where(
        delivery.c.job_no == bindparam("of_job"),
        delivery.c.effect == _arrays.c.effect,
        delivery.c.key == _arrays.c.key,
        # said twice: a job newer than the table's statistics seems to have one delivery, and all of them would be read
        delivery.c.effect == func.any(cast(bindparam("distinct_effects"), ARRAY(Text()))),
        delivery.c.key == func.any(cast(bindparam("keys"), ARRAY(Text()))),
        # done always wins: the call has happened, whoever holds the claim now
        or_(
            and_(delivery.c.token == _arrays.c.token, delivery.c.state.in_(OPEN_STATES)),
            and_(cast(_arrays.c.state, Text()) == _D.DONE, delivery.c.state != _D.DONE),
        ),
    )
    .values(
        state=_arrays.c.state,
        code=_arrays.c.code,
        answer=case((_UNDECIDED_AFTER_AN_ANSWER, _WITH_ANSWER_BEFORE), else_=_arrays.c.answer),
        doubt=delivery.c.doubt + case((_UNDECIDED_NOW, 1), else_=0),
        due=func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, cast(_arrays.c.due_seconds, Double)),
        claimed_until=None,
        attempts=delivery.c.attempts - cast(_arrays.c.unsent, Integer),
        permitted=cast(_arrays.c.permitted, Boolean),
        settled_at=func.clock_timestamp(),
    )
)


def claim(
    connection: Connection, job_no: int, channel: str, *, turn: int, most: int, token: UUID, claim_seconds: float
) -> list[Claim]:
    """Mark up to `most` deliveries as `sending` with the token, those already begun first; they may be made now."""
    values = {"of_job": job_no, "of_channel": channel, "new_token": token, "claim_seconds": claim_seconds}
    claims = _claims(connection.execute(_AGAIN, values | {"most": most}), token)
    if len(claims) < most:
        left = most - len(claims)
        claims += claim_first(
            connection, job_no, channel, turn=turn, most=left, token=token, claim_seconds=claim_seconds
        )
    return claims


def claim_first(
    connection: Connection, job_no: int, channel: str, *, turn: int, most: int, token: UUID, claim_seconds: float
) -> list[Claim]:
    """As `claim`, but only those that were never sent."""
    values = {"of_job": job_no, "of_channel": channel, "new_token": token, "claim_seconds": claim_seconds}
    return _claims(connection.execute(_FIRST, values | {"most": most, "of_turn": turn}), token)


def _claims(rows: Iterable[Row[Any]], token: UUID) -> list[Claim]:
    return [
        Claim(
            row.effect,
            row.key,
            row.generation,
            token,
            row.attempts,
            row.doubtful,
            row.first_sent_seconds or 0.0,
            row.body,
            row.permitted,
        )
        for row in rows
    ]


def count_claimable(connection: Connection, job_no: int, channel: str, most: int) -> int:
    """How many deliveries could be claimed now, up to `most`."""
    values = {"of_job": job_no, "of_channel": channel, "most": most}
    return min(most, int(connection.execute(_CLAIMABLE, values).scalar_one()))


def settle_deliveries(connection: Connection, job_no: int, settlements: Sequence[Settlement]) -> None:
    """Write what became of claimed deliveries; one that another has claimed since is left to it, unless done."""
    if not settlements:
        return
    # a sender may have two answers for one delivery, which it lost and claimed again: the update would take either
    done = {(one.effect, one.key) for one in settlements if one.state is _D.DONE}
    settlements = [one for one in settlements if one.state is _D.DONE or (one.effect, one.key) not in done]
    ordered = sorted(settlements, key=lambda one: (one.effect, one.key))
    connection.execute(
        _SETTLE,
        {
            "of_job": job_no,
            "effects": [one.effect for one in ordered],
            "keys": [one.key for one in ordered],
            "distinct_effects": sorted({one.effect for one in ordered}),
            "tokens": [one.token for one in ordered],
            "states": [str(one.state) for one in ordered],
            "codes": [storable(one.code, LONGEST_ANSWER) for one in ordered],
            "answers": [storable(one.answer, LONGEST_ANSWER) for one in ordered],
            "dues": [one.due_seconds for one in ordered],
            "unsent": [int(one.unsent) for one in ordered],
            "permissions": [one.permitted for one in ordered],
        },
    )


_NEXT_DUE = select(
    func.extract(
        "epoch",
        func.min(case((delivery.c.state == _D.SENDING, delivery.c.claimed_until), else_=delivery.c.due))
        - func.clock_timestamp(),
    ).cast(Double)
).where(OPEN_DELIVERY, DELIVERY_ON_CHANNEL)


def next_due_seconds(connection: Connection, job_no: int, channel: str) -> float | None:
    """In how many seconds the next open delivery becomes due; None where none is open."""
    seconds = connection.execute(_NEXT_DUE, {"of_job": job_no, "of_channel": channel}).scalar_one()
    return None if seconds is None else float(seconds)
