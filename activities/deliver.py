"""Deliver: sends what one job owes on one channel, while the walk goes on and after it."""

import asyncio
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from temporalio import activity

from bulklane.activities.call_delivery import CallDelivery
from bulklane.activities.channel_hold import ChannelHold
from bulklane.activities.heartbeat import give_way
from bulklane.activities.index_delivery import IndexDelivery
from bulklane.contracts import activity_calls
from bulklane.contracts.effect import DeliverAnswer, DeliverEnd, DeliverRequest
from bulklane.contracts.job import Wish
from bulklane.database import effect
from bulklane.database.job import Job, get_job
from bulklane.database.wish import note_heard, nudge, read_wish
from bulklane.operations.operation import Registry
from bulklane.operations.sender import CallSender, IndexSender

HEARTBEAT_SECONDS = 0.5
HEARD_SECONDS = 2.0
# how often it looks whether it may go on: a pause is heeded within that time, and a call in flight
LOOK_SECONDS = 0.25
# where nothing was to be sent: the job may be done
IDLE_LOOK_SECONDS = 0.05
HELD_LOOK_SECONDS = 2.0
# A channel may be held for days, and all that waits in its queue is held too: the wait is in the slot, where a resume
# is seen at once, and costs two activities an hour.
HELD_SECONDS = 1800.0
# Longer blocks are waited for in a timer: a slot is for other tenants.
BLOCKED_SECONDS = 10.0
# The earlier job nudges this one when it owes nothing more; the timer is for a nudge that went astray.
EARLIER_TURN_SECONDS = 1800.0

Delivery = CallDelivery | IndexDelivery


@dataclass(frozen=True)
class Deliver:
    """The delivery activity of the channels that this process serves."""

    engine: Engine
    registry: Registry
    senders: dict[str, CallSender | IndexSender]
    process: str

    @activity.defn(name=activity_calls.deliver.__name__)
    async def deliver(self, request: DeliverRequest) -> DeliverAnswer:
        """Send until nothing is owed there, something else comes first, or the budget ends."""
        job = await asyncio.to_thread(self._job, request.job_no)
        stint = _Stint(self.engine, request, self._delivery(job, request.channel), self.process)
        beat = asyncio.create_task(_beat())
        try:
            return await stint.run()
        finally:
            await stint.end()
            beat.cancel()

    def _delivery(self, job: Job, channel: str) -> Delivery:
        sender = self.senders[channel]
        if isinstance(sender, IndexSender):
            return IndexDelivery(self.engine, self.registry, job, channel, sender)
        return CallDelivery(self.engine, self.registry.channels[channel], job, sender)

    def _job(self, job_no: int) -> Job:
        with self.engine.connect() as connection:
            return get_job(connection, job_no)


class _Stint:
    """One attempt: looks whether it may send, sends, and looks again."""

    def __init__(self, engine: Engine, request: DeliverRequest, delivery: Delivery, process: str) -> None:
        self.delivery = delivery
        self._engine = engine
        self._request = request
        self._process = process
        self._hold = ChannelHold(request.channel)
        self._held: str | None = None
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._look_at = self._heard_at = 0.0
        self._looking: asyncio.Task[tuple[DeliverAnswer | None, str | None]] | None = None
        self._busy = False

    async def run(self) -> DeliverAnswer:
        """Until there is an answer."""
        while True:
            give_way()
            answer = await self._look() or self._waits()
            if answer is not None:
                return answer
            self._busy = await self.delivery.send_some()
            if not self._busy:
                await self._rest()

    async def end(self) -> None:
        """Settle what is out; a look that nobody waits for any more is let end."""
        if self._looking is not None:
            await asyncio.wait([self._looking])
        await self.delivery.finish()

    async def _look(self) -> DeliverAnswer | None:
        """Beside the calls, where some are made: they don't wait for it."""
        if self._looking is None:
            if self._clock() < self._look_at and self.delivery.held is None:
                return None
            self._looking = asyncio.create_task(asyncio.to_thread(self._standing))
        if self._busy and self.delivery.held is None and not self._looking.done():
            return None
        looking, self._looking = self._looking, None
        answer, self._held = await looking
        self._look_at = self._clock() + LOOK_SECONDS
        self.delivery.stopped = self._held is not None
        return answer

    def _waits(self) -> DeliverAnswer | None:
        """The budget is over, or the channel takes nothing for long."""
        settled, blocked = self.delivery.settled, self.delivery.blocked_seconds
        if self._held is not None and self._held != self._request.shown:
            return DeliverAnswer(DeliverEnd.HELD, settled, self._held)
        budget = self._request.seconds if self._held is None else HELD_SECONDS
        if activity.is_worker_shutdown() or self._clock() > self._began + budget:
            return DeliverAnswer(DeliverEnd.CONTINUE, settled)
        if blocked > BLOCKED_SECONDS:
            reason = f"the provider of {self._request.channel} wants no call for {blocked:.0f} s"
            return DeliverAnswer(DeliverEnd.WAITING, settled, reason, blocked)
        return None

    async def _rest(self) -> None:
        if self._held is None:
            self._look_at = min(self._look_at, self._clock() + IDLE_LOOK_SECONDS)
            await asyncio.sleep(self.delivery.ask_seconds)
            return
        self._look_at = self._clock() + HELD_LOOK_SECONDS
        while self._clock() < self._look_at and not activity.is_worker_shutdown():
            give_way()
            await asyncio.sleep(HELD_LOOK_SECONDS / 10)

    def _standing(self) -> tuple[DeliverAnswer | None, str | None]:
        """Why to stop here (nothing owed and none to come, paused, an earlier turn), and why the channel is held."""
        with self._engine.begin() as connection:
            if self._clock() > self._heard_at + HEARD_SECONDS:
                self._heard_at = self._clock()
                note_heard(connection, self._request.job_no, heard_by=self._process)
            # before the answer: the probe may have been the last that was owed
            self._hold.note(connection, self.delivery)
            answer = self._answer(connection)
            return answer, None if answer else self._hold.why(connection, self.delivery)

    def _answer(self, connection: Connection) -> DeliverAnswer | None:
        channel = self._request.channel
        job = get_job(connection, self._request.job_no)
        if not job.over and read_wish(connection, job.job_no).wish is Wish.PAUSE:
            return DeliverAnswer(DeliverEnd.PAUSED)
        if not effect.owes_on(connection, job.job_no, channel):
            if job.released_at is None and not job.over:
                return None
            nudge(connection, effect.later_turns(connection, job.job_no, channel))
            return DeliverAnswer(DeliverEnd.DONE, self.delivery.settled)
        earlier = effect.blocked_by(connection, job.job_no, channel)
        if earlier is None:
            return None
        owing = get_job(connection, earlier).job_id
        reason = f"job {owing} shared a resource before and still owes on {channel}"
        return DeliverAnswer(DeliverEnd.WAITING, 0, reason, EARLIER_TURN_SECONDS)


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(HEARTBEAT_SECONDS)
