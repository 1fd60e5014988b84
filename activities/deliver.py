"""Deliver: sends what one job owes on one channel, while the walk goes on and after it."""

import asyncio
from dataclasses import dataclass

from sqlalchemy import Engine
from temporalio import activity

from bulklane.activities.call_delivery import CallDelivery
from bulklane.activities.heartbeat import give_way
from bulklane.activities.index_delivery import IndexDelivery
from bulklane.contracts import activity_calls
from bulklane.contracts.effect import DeliverAnswer, DeliverEnd, DeliverRequest
from bulklane.contracts.job import Wish
from bulklane.database import effect
from bulklane.database.job import Job, get_job
from bulklane.database.wish import note_heard, read_wish
from bulklane.operations.operation import Registry
from bulklane.operations.sender import CallSender, IndexSender

IDLE_SECONDS = 0.05
HEARTBEAT_SECONDS = 0.5
EARLIER_TURN_SECONDS = 5.0
HELD_SECONDS = 60.0
HEARD_SECONDS = 2.0


@dataclass(frozen=True)
class Deliver:
    """The delivery activity of the channels that this process serves."""

    engine: Engine
    registry: Registry
    senders: dict[str, CallSender | IndexSender]
    process: str

    @activity.defn(name=activity_calls.deliver.__name__)
    async def deliver(self, request: DeliverRequest) -> DeliverAnswer:
        """Send until nothing is owed there, the channel is held, or the budget ends."""
        job = await asyncio.to_thread(self._job, request.job_no)
        delivery = self._delivery(job, request.channel)
        beat = asyncio.create_task(_beat())
        try:
            return await self._deliver(request, delivery)
        finally:
            await delivery.finish()
            beat.cancel()

    def _delivery(self, job: Job, channel: str) -> CallDelivery | IndexDelivery:
        sender = self.senders[channel]
        if isinstance(sender, IndexSender):
            return IndexDelivery(self.engine, self.registry, job, channel, sender)
        return CallDelivery(self.engine, self.registry.channels[channel], job, sender)

    async def _deliver(self, request: DeliverRequest, delivery: CallDelivery | IndexDelivery) -> DeliverAnswer:
        clock = asyncio.get_running_loop().time
        until, heard = clock() + request.seconds, 0.0
        while True:
            give_way()
            if clock() - heard > HEARD_SECONDS:
                heard = clock()
                await asyncio.to_thread(self._hear, request.job_no)
            standing = await asyncio.to_thread(self._standing, request)
            if standing is not None:
                return standing
            if activity.is_worker_shutdown() or clock() > until:
                return DeliverAnswer(DeliverEnd.CONTINUE, delivery.settled)
            if delivery.held is not None:
                return DeliverAnswer(DeliverEnd.HELD, delivery.settled, delivery.held, HELD_SECONDS)
            if not await delivery.send_some():
                await asyncio.sleep(IDLE_SECONDS)

    def _job(self, job_no: int) -> Job:
        with self.engine.connect() as connection:
            return get_job(connection, job_no)

    def _hear(self, job_no: int) -> None:
        with self.engine.begin() as connection:
            note_heard(connection, job_no, heard_by=self.process)

    def _standing(self, request: DeliverRequest) -> DeliverAnswer | None:
        """Why to stop here: nothing owed and none to come, paused, or an earlier turn still owes."""
        with self.engine.begin() as connection:
            job = get_job(connection, request.job_no)
            if not job.over and read_wish(connection, job.job_no).wish is Wish.PAUSE:
                return DeliverAnswer(DeliverEnd.PAUSED)
            owes = effect.owes_on(connection, job.job_no, request.channel)
            if not owes:
                walking = job.released_at is None and not job.over
                return None if walking else DeliverAnswer(DeliverEnd.DONE)
            earlier = effect.blocked_by(connection, job.job_no, request.channel)
            if earlier is None:
                return None
            owing = get_job(connection, earlier).job_id
            reason = f"job {owing} shared a resource before and still owes on {request.channel}"
            return DeliverAnswer(DeliverEnd.WAITING, 0, reason, EARLIER_TURN_SECONDS)


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(HEARTBEAT_SECONDS)
