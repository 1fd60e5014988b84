"""Deliveries to a provider: each written as `sending` before its call, and settled by its token after it.

Group commit: one transaction after another settles whatever was answered meanwhile and claims as much again. A kill
repeats at most the calls in flight and those marked ahead, each under the same key.
"""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from uuid import uuid4

import stamina
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from bulklane.activities.call_answer import Undecided, answer_of
from bulklane.contracts.effect import DeliveryState, idempotency_key
from bulklane.database import delivery as deliveries
from bulklane.database.delivery import Claim, Settlement
from bulklane.database.job import Job
from bulklane.operations.channel import Channel
from bulklane.operations.sender import Answer, Call, CallSender, Done, Held, Later, Refused, Unknown

SHORTEST_BACKOFF = 0.5
LONGEST_BACKOFF = 60.0
CLAIM_MARGIN = 5.0
SETTLE_SECONDS = 15.0
IDLE_SECONDS = 0.5

_D = DeliveryState


class CallDelivery:
    """What one job owes to one provider, as many calls at once as the channel allows."""

    def __init__(self, engine: Engine, channel: Channel, job: Job, sender: CallSender) -> None:
        self.settled = 0
        self.held: str | None = None
        self._engine = engine
        self._channel = channel
        self._job = job
        self._sender = sender
        self._calls: set[asyncio.Task[None]] = set()
        self._answered: list[Settlement] = []
        self._slots = asyncio.Semaphore(channel.concurrency)
        self._wake = asyncio.Event()
        self._ending = False
        self._in_round: list[Settlement] = []
        self._round_task: asyncio.Task[list[Claim]] | None = None

    async def send_some(self) -> bool:
        """One round: settle what was answered, claim as many as there is room for; False where nothing goes on."""
        # one marked ahead per sender keeps all of them busy while a round commits
        room = 0 if self.held else self._channel.concurrency * self._ahead - len(self._calls)
        self._wake.clear()
        began = await self._one_round(room)
        if not began and self._calls:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_SECONDS):
                    await self._wake.wait()
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
        self._round_task = asyncio.create_task(asyncio.to_thread(self._round, list(self._in_round), room))
        return await self._after_round(self._round_task)

    async def _after_round(self, task: asyncio.Task[list[Claim]]) -> int:
        try:
            claims = await asyncio.shield(task)
        except SQLAlchemyError:
            self._answered, self._in_round, self._round_task = self._in_round + self._answered, [], None
            raise
        self.settled += len(self._in_round)
        self._in_round, self._round_task = [], None
        self._call(claims)
        return len(claims)

    def _call(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            task = asyncio.create_task(self._make(claim))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    @property
    def _ahead(self) -> int:
        # a mark that a kill leaves behind is a doubt, which only keys or a look-up can settle
        return 2 if self._channel.keeps_keys else 1

    def _round(self, answered: list[Settlement], room: int) -> list[Claim]:
        with self._engine.begin() as connection:
            deliveries.settle_deliveries(connection, self._job.job_no, answered)
            if room <= 0:
                return []
            return deliveries.claim(
                connection,
                self._job.job_no,
                self._channel.name,
                turn=self._job.turn,
                most=room,
                token=uuid4(),
                claim_seconds=self._channel.call_seconds * 2 + CLAIM_MARGIN,
            )

    async def _make(self, claim: Claim) -> None:
        async with self._slots:
            answer = _NOT_SENT if self._ending else await self._answer(claim)
        if isinstance(answer, Held):
            self.held = answer.reason
        self._answered.append(self._settlement(claim, answer))
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
                state, due = _D.LATER, seconds if seconds is not None else _backoff(claim.attempts)
            case Held(reason=text):
                state, due = _D.LATER, _backoff(claim.attempts)
            case Undecided(reason=text):
                state = _D.UNDECIDED
            case Unknown(reason=text):
                due = _backoff(claim.attempts)
        if claim.doubtful and state is _D.LATER:
            # the call before is still unanswered: a look-up comes first again
            state = _D.UNKNOWN
        # nothing was done: what a person has permitted still is
        permitted = claim.permitted and isinstance(answer, (Later, Held))
        return Settlement(claim.effect, claim.key, claim.token, state, code, text, due, permitted)


_NOT_SENT = Later(0.0, "not sent: the delivery ended first")


def _backoff(attempts: int) -> float:
    """Full jitter over a doubling ceiling (AWS Architecture Blog, "Exponential Backoff And Jitter")."""
    ceiling = min(LONGEST_BACKOFF, SHORTEST_BACKOFF * 2 ** min(attempts - 1, 10))
    return random.uniform(ceiling / 2, ceiling)  # noqa: S311
