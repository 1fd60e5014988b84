"""Deliveries to a provider: each written as `sending` before its call, and settled by its token after it.

Group commit: one transaction after another settles whatever was answered meanwhile and claims as much again. A kill
repeats at most the calls in flight and those marked ahead, each under the same key.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import uuid4

import stamina
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from bulklane.activities.call_answer import HeldLookUp, PutOffLookUp, Unasked, Undecided, answer_of
from bulklane.activities.call_pace import LONGEST_ASK, CallPace, backoff, look_up_backoff
from bulklane.contracts.effect import DeliveryState, idempotency_key
from bulklane.contracts.lane import Lane
from bulklane.database import delivery as deliveries
from bulklane.database.delivery import Claim, Settlement
from bulklane.database.job import Job
from bulklane.database.limit import Sender, need_not_last
from bulklane.operations.channel import Channel
from bulklane.operations.sender import Answer, Call, CallSender, Done, Held, Later, Refused, Unknown

CLAIM_MARGIN = 5.0
SETTLE_SECONDS = 15.0
# a call whose start is that near is marked already, so that its start is kept to the millisecond and a round has
# several; where keys are not kept, none before its start
MARK_AHEAD = 0.15

# a round that comes at once would settle a call or two; what is marked ahead lasts longer than this
ROUND_SECONDS = 0.02

# how often it asks for those that were sent before, where there are enough that never were: a statement less a round
AGAIN_SECONDS = 0.1

_D = DeliveryState


@dataclass(frozen=True)
class _Begun:
    """A claim and when its call may start."""

    claim: Claim
    start: float


class CallDelivery:
    """What one job owes to one provider, as many calls at once as the channel allows.

    `held`: why the provider refuses everybody. `stopped`: no call begins. `concluded`: calls with a definite result.
    """

    def __init__(self, engine: Engine, channel: Channel, job: Job, sender: CallSender) -> None:
        self.settled = 0
        self.concluded = 0
        self.held: str | None = None
        self.stopped = False
        small = job.lane == Lane.SMALL
        self._pace = CallPace(
            Sender(channel.name, job.tenant, small, channel.limits, uuid4()),
            call_seconds=channel.call_seconds,
            mark_ahead=MARK_AHEAD if channel.keeps_keys else 0.0,
        )
        self._engine = engine
        self._channel = channel
        self._job = job
        self._sender = sender
        self._calls: set[asyncio.Task[None]] = set()
        self._answered: list[Settlement] = []
        self._slots = asyncio.Semaphore(channel.concurrency)
        self._wake = asyncio.Event()
        self._ending = False
        self._again_at = 0.0
        self._in_round: list[Settlement] = []
        self._round_task: asyncio.Task[list[_Begun]] | None = None

    @property
    def blocked_seconds(self) -> float:
        """For how long the provider wants no calls, where none is out."""
        return 0.0 if self._calls or self._answered else self._pace.blocked_seconds

    @property
    def ask_seconds(self) -> float:
        """How long to wait where a round found nothing to send."""
        blocked = self._pace.blocked_seconds
        return min(blocked, LONGEST_ASK) if blocked else self._pace.ask_seconds

    def try_one(self) -> None:
        """Begin one call at once until they go well again."""
        self._pace.try_one()

    async def send_some(self) -> bool:
        """One round: settle what was answered, claim as many as there is room for; False where nothing goes on."""
        # one marked ahead per sender keeps all of them busy while a round commits
        room = 0 if self._closed else self._channel.concurrency * self._ahead - len(self._calls)
        self._wake.clear()
        next_round = time.monotonic() + ROUND_SECONDS
        began = await self._one_round(room)
        if not began and self._calls:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.ask_seconds):
                    await self._wake.wait()
        if self._calls and self._channel.keeps_keys:
            await asyncio.sleep(next_round - time.monotonic())
        return bool(began or self._calls or self._answered)

    async def finish(self) -> None:
        """Wait for the calls that are out and settle them, so that an ordered end leaves no doubt; start no others."""
        self._ending = True
        if self._round_task is not None:
            with contextlib.suppress(SQLAlchemyError):
                await self._after_round(self._round_task)
        if self._calls:
            await asyncio.wait(self._calls)
        # worth some patience: what can't be settled is a doubt until its claim has run out
        async for attempt in stamina.retry_context(on=SQLAlchemyError, attempts=None, timeout=SETTLE_SECONDS):
            with attempt:
                await self._one_round(0)

    async def _one_round(self, room: int) -> int:
        """One transaction: how many calls it let begin. A cancellation doesn't stop it: `finish` takes it up."""
        self._in_round, self._answered = self._answered, []
        calls = len(self._calls)
        self._round_task = asyncio.create_task(asyncio.to_thread(self._round, list(self._in_round), room, calls))
        return await self._after_round(self._round_task)

    async def _after_round(self, task: asyncio.Task[list[_Begun]]) -> int:
        try:
            begun = await asyncio.shield(task)
        except SQLAlchemyError:
            self._answered, self._in_round, self._round_task = self._in_round + self._answered, [], None
            raise
        self.settled += len(self._in_round)
        self.concluded += sum(one.state in (_D.DONE, _D.REFUSED) for one in self._in_round)
        self._in_round, self._round_task = [], None
        for one in begun:
            call = asyncio.create_task(self._make(one))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        return len(begun)

    @property
    def _ahead(self) -> int:
        # a mark that a kill leaves behind is a doubt, which only keys or a look-up can settle
        return 2 if self._channel.keeps_keys else 1

    @property
    def _closed(self) -> bool:
        return self._ending or self.stopped or self.held is not None or self._pace.blocked_seconds > 0

    def _round(self, answered: list[Settlement], room: int, calls: int) -> list[_Begun]:
        with self._engine.begin() as connection:
            deliveries.settle_deliveries(connection, self._job.job_no, answered)
            self._pace.tell(connection)
            if self._ending and not calls:
                self._pace.leave(connection)
            starts = self._starts(connection, room, calls) if room > 0 else []
            claims = self._claim(connection, len(starts)) if starts else []
            if not (answered or claims):
                need_not_last(connection)
        self._pace.use(len(claims))
        return [_Begun(claim, start) for claim, start in zip(claims, starts, strict=False)]

    def _starts(self, connection: Connection, room: int, calls: int) -> list[float]:
        name, claimable = self._channel.name, room
        if self._channel.limits.any:
            claimable = deliveries.count_claimable(connection, self._job.job_no, name, room)
        return self._pace.take(connection, room, calls, claimable)

    def _claim(self, connection: Connection, most: int) -> list[Claim]:
        now = time.monotonic()
        claims: list[Claim] = []
        if now < self._again_at:
            claims = self._claim_by(deliveries.claim_first, connection, most)
        if len(claims) < most:
            again = self._claim_by(deliveries.claim, connection, most - len(claims))
            more_due = any(one.attempts > 1 or one.doubtful for one in again)
            self._again_at = now if more_due else now + AGAIN_SECONDS
            claims += again
        return claims

    def _claim_by(self, claim: Callable[..., list[Claim]], connection: Connection, most: int) -> list[Claim]:
        return claim(
            connection,
            self._job.job_no,
            self._channel.name,
            turn=self._job.turn,
            most=most,
            token=uuid4(),
            claim_seconds=self._claim_seconds,
        )

    @property
    def _claim_seconds(self) -> float:
        return self._channel.call_seconds * 2 + CLAIM_MARGIN

    def _has_time(self, begun: _Begun) -> bool:
        """Whether its claim lasts as long as it may take: it may have waited for a slot. A look-up is a call too."""
        longest = self._channel.call_seconds * (2 if begun.claim.doubtful else 1)
        # no claim is older: it was made after its start was drawn, which was at most that far ahead
        claimed_at = begun.start - MARK_AHEAD
        return time.monotonic() + longest <= claimed_at + self._claim_seconds

    async def _make(self, begun: _Begun) -> None:
        await asyncio.sleep(begun.start - time.monotonic())
        async with self._slots:
            sendable = not self._closed and self._has_time(begun)
            answer = await self._answer(begun.claim) if sendable else _NotSent()
        match answer:
            case Held(reason=reason):
                self.held = reason
            case _NotSent():
                pass
            case Later(seconds=seconds):
                answer = replace(answer, seconds=self._pace.note_later(seconds))
            case Done():
                self._pace.note_done()
        self._answered.append(self._settlement(begun.claim, answer))
        self._wake.set()

    async def _answer(self, claim: Claim) -> Answer:
        call = Call(idempotency_key(self._job.job_id, claim.effect, claim.key, claim.generation), claim.body)
        return await answer_of(self._sender, self._channel, claim, call)

    def _settlement(self, claim: Claim, answer: Answer) -> Settlement:
        state, code, text, due = _D.UNKNOWN, "", "", 0.0
        match answer:
            case Done(code=code, text=text):
                state = _D.DONE
            case Refused(code=code, reason=text):
                state = _D.REFUSED
            case Later(seconds=seconds, reason=text):
                state, due = _D.LATER, seconds or 0.0
            case Held(reason=text):
                # what keeps it back is the channel's hold, which may end at any moment
                state = _D.LATER
            case Undecided(reason=text):
                state = _D.UNDECIDED
            case Unasked(reason=text):
                due = look_up_backoff(claim.first_sent_seconds)
            case Unknown(reason=text):
                due = backoff(claim.attempts)
        if claim.doubtful and state is _D.LATER:
            # the call before is still unanswered: a look-up comes first again
            state = _D.UNKNOWN
        unsent = isinstance(answer, (_NotSent, HeldLookUp, PutOffLookUp, Unasked))
        # nothing was done: what a person has permitted still is
        permitted = claim.permitted and isinstance(answer, (Later, Held))
        return Settlement(claim.effect, claim.key, claim.token, state, code, text, due, unsent, permitted)


@dataclass(frozen=True)
class _NotSent(Later):
    """It was marked, and then nothing was to be sent any more."""

    seconds: float | None = 0.0
    reason: str = "not sent: nothing was to be sent any more"
