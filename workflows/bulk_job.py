"""BulkJob: one bulk job. It decides order and waiting; where the job stands, the database says.

    open_job ─► freeze ─► walk (one stream of segments a range) ─► release ─► deliver ─► close
                          └── deliveries of committed chunks run beside the walk ──┘

The workflow keeps only the last answer, and asks again after anything unusual: so a reset, a second run or a repeated
activity needs no code of its own.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from bulklane.contracts import activity_calls as activities
    from bulklane.contracts.effect import DeliverAnswer, DeliverEnd, DeliverRequest
    from bulklane.contracts.job import JobState, JobView, Phase
    from bulklane.contracts.lane import Lane, control_queue, effects_queue, segment_queue
    from bulklane.contracts.message import InvalidThrottle, Verb, VerbMessage, VerbRequest
    from bulklane.contracts.walk import FreezeRequest, SegmentAnswer, SegmentEnd, SegmentRequest
    from bulklane.workflows.activity_options import control_options, deliver_options, freeze_options, segment_options
    from bulklane.workflows.read import check_start, read_message
    from bulklane.workflows.show import show_job, show_progress
    from bulklane.workflows.waiting import ended, until

# Where two answers contradict each other: a pause, so that asking again doesn't fill the history.
_REST = 1.0
_LONGEST_REST = 60.0
# Events. Temporal suggests a new run at 4,096 and ends a workflow at 51,200.
_LONGEST_HISTORY = 25_000


T = TypeVar("T")


@workflow.defn(name="BulkJob")
class BulkJob:
    """The workflow of a job; its id is the job id. It returns the job's last state."""

    def __init__(self) -> None:
        self._job: JobView | None = None
        self._round = 0
        self._nudged = False
        self._looks = 0
        self._seen = 0
        self._verbs: list[VerbMessage] = []
        self._verb_count = 0
        self._ignored = ""
        self._waits: dict[str, str] = {}
        self._segments: dict[int, workflow.ActivityHandle[SegmentAnswer]] = {}
        self._deliveries: dict[str, workflow.ActivityHandle[DeliverAnswer]] = {}
        self._frozen: workflow.ActivityHandle[None] | None = None
        self._one_view = asyncio.Lock()
        self._queue = control_queue(workflow.info().task_queue)

    @workflow.run
    async def run(self, *arguments: Any) -> Any:
        """Drive the job to its end. A cancellation is one more verb: it never interrupts a step."""
        drive = asyncio.create_task(self._drive(list(arguments)))
        while True:
            try:
                state = await asyncio.shield(drive)
                break
            except asyncio.CancelledError:
                if drive.cancelled():
                    raise
                self._hear(Verb.CANCEL, ())
        if state is JobState.CANCELLED and workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError(state)
        return str(state)

    @workflow.signal
    def look(self, *_arguments: Any) -> None:
        """Something was written about this job: look."""
        self._nudged = True

    @workflow.signal
    def pause(self, *arguments: Any) -> None:
        """Pause; optional arguments: why, who, message id."""
        self._hear(Verb.PAUSE, arguments)

    @workflow.signal
    def resume(self, *arguments: Any) -> None:
        """Resume; optional arguments as for pause."""
        self._hear(Verb.RESUME, arguments)

    @workflow.signal
    def cancel(self, *arguments: Any) -> None:
        """Cancel; optional arguments as for pause."""
        self._hear(Verb.CANCEL, arguments)

    @workflow.signal
    def throttle(self, *arguments: Any) -> None:
        """Throttle: rows_per_second, parallelism, then as for pause; or one object, {"lift": true} to lift it."""
        self._hear(Verb.THROTTLE, arguments)

    @workflow.signal
    def decide(self, *arguments: Any) -> None:
        """Decide undecided deliveries: one object with effect, key, doubt and verdict (resend, done, give-up).

        Up to 100 at once as a list `decisions` of such objects. Beside them, optional: why, who, message_id.
        """
        self._hear(Verb.DECIDE, arguments)

    @workflow.query
    def status(self) -> dict[str, Any]:
        """What the job last knew of itself, and what it waits for."""
        job = self._job
        known = (
            {}
            if job is None
            else {
                "state": job.state,
                "total": job.total,
                "processed": job.processed,
                "owed": job.owed,
                "calls_out": job.calls_out,
            }
        )
        ignored = {"ignored": self._ignored} if self._ignored else {}
        return {**known, **ignored, "waits": dict(self._waits)}

    def _hear(self, verb: Verb, arguments: Sequence[Any]) -> None:
        self._verb_count += 1
        info = workflow.info()
        # the same for a signal that a reset hears again, other in each run of a chain
        default_id = f"{info.first_execution_run_id}/{info.continued_run_id or ''}/{self._verb_count}"
        try:
            self._verbs.append(read_message(verb, arguments, default_id))
        except InvalidThrottle as error:
            self._ignored = f"the signal {verb}: {error}"
            self._nudged = True

    async def _drive(self, arguments: list[Any]) -> JobState:
        check_start(arguments)
        await self._see("open_job", arguments)
        rounds = asyncio.create_task(self._rounds(arguments))
        beside = asyncio.create_task(self._beside())
        await workflow.wait([rounds, beside], return_when=asyncio.FIRST_COMPLETED)
        if not rounds.done():
            beside.result()
        beside.cancel()
        await rounds
        return self._known.state

    async def _beside(self) -> None:
        """Never ends by itself; where it fails, the job must not wait on for what nobody hears any more."""
        await asyncio.gather(self._watch(), self._bound_barrier())

    async def _rounds(self, arguments: list[Any]) -> None:
        rest = _REST
        while self._phase is not Phase.OVER:
            if self._known.state is JobState.ACCEPTED:
                # a retry came before this run had ended: no other can be started meanwhile
                await self._see("open_job", arguments)
            self._round = self._known.round
            await asyncio.gather(self._rows(), self._deliver_all())
            if self._full:
                await self._barrier()
            if self._full:
                workflow.continue_as_new(args=arguments)
            await self._see("close")
            if self._phase in (Phase.WALK, Phase.DELIVER):
                await self._wait("close", "something became due meanwhile", rest)
                rest = min(rest * 2, _LONGEST_REST)

    @property
    def _known(self) -> JobView:
        if self._job is None:
            raise ApplicationError("the job isn't open yet", non_retryable=True)
        return self._job

    @property
    def _phase(self) -> Phase:
        return self._known.phase

    @property
    def _full(self) -> bool:
        info = workflow.info()
        if workflow.cancellation_reason() is not None:
            # a new run could not end as cancelled, since nobody has asked for that run's cancellation
            return info.get_current_history_length() > _LONGEST_HISTORY
        return info.is_continue_as_new_suggested()

    @property
    def _leaving(self) -> bool:
        """The streams end: for a new run, or for a new round."""
        return self._full or self._known.round != self._round

    async def _see(self, step: str, argument: Any = None) -> None:
        """The only place where the view is set; one at a time, so that it never goes back."""
        seen = self._seen
        async with self._one_view:
            if argument is None and self._seen > seen:
                return  # one that was asked for later has answered: when a job stops, each of its streams asks
            self._seen += 1
            given = self._known.job_no if argument is None else argument
            self._job = await workflow.execute_activity(
                step, given, result_type=JobView, summary=step.replace("_", " "), **control_options(self._queue)
            )
        show_job(self._job, self._waits, self._ignored)
        if self._phase not in (Phase.WALK, Phase.PAUSED, Phase.FREEZE):
            self._stop_segments()
        elif self._known.round != self._round:
            self._stop_segments()
            self._stop_deliveries()

    def _stop_segments(self) -> None:
        # queued, backing off, paused in the UI, on a dead worker: the gate is shut, so none of them is needed
        for handle in self._segments.values():
            handle.cancel()
        if self._frozen is not None:
            self._frozen.cancel()

    def _stop_deliveries(self) -> None:
        for delivery in self._deliveries.values():
            delivery.cancel()

    async def _go(self, stream: str, *phases: Phase) -> bool:
        """Wait while the job is paused; False: this stream has no more to do in this run."""
        if self._phase is Phase.PAUSED:
            self._waits[stream] = "paused"
            await until(lambda: self._phase is not Phase.PAUSED or self._leaving)
            self._waits.pop(stream, None)
        return self._phase in phases and not self._leaving

    async def _watch(self) -> None:
        """Write what signals ask for as rows, then look."""
        while True:
            await until(lambda: self._nudged or bool(self._verbs))
            self._nudged = False
            while self._verbs:
                request = VerbRequest(self._known.job_no, self._verbs[0], workflow.info().run_id)
                await workflow.execute_activity(
                    activities.apply_verb,
                    request,
                    summary=self._verbs[0].verb,
                    **control_options(self._queue),
                )
                self._verbs.pop(0)
            await self._see("look")
            self._looks += 1

    async def _bound_barrier(self) -> None:
        """The barrier waits for nothing stuck: after one budget it is cancelled, and the epoch fences a segment."""
        while True:
            await until(lambda: self._full)
            await workflow.sleep(timedelta(seconds=self._known.segment_seconds + 1), summary="barrier")
            if self._full:
                self._stop_segments()
                self._stop_deliveries()
            await until(lambda: not self._full)

    async def _barrier(self) -> None:
        await until(
            lambda: workflow.all_handlers_finished() and not (self._verbs or self._nudged or self._one_view.locked())
        )

    async def _rows(self) -> None:
        await self._freeze()
        while await self._go("rows", Phase.WALK):
            await asyncio.gather(*(self._walk(number) for number in range(self._known.ranges)))
            await self._ask("release", "rows")
        if self._full:
            self._stop_deliveries()

    async def _freeze(self) -> None:
        while await self._go("freeze", Phase.FREEZE):
            job = self._known
            queue = segment_queue(Lane(job.lane))
            handle = workflow.start_activity(
                activities.freeze,
                FreezeRequest(job.job_no, job.round),
                summary="freeze the selection",
                **freeze_options(job, queue),
            )
            self._frozen = handle
            await self._ended("freeze", f"the freeze, on the queue {queue}", handle)
            await self._ask("look", "freeze")

    async def _walk(self, number: int) -> None:
        """One range's stream of segments: it waits for the gate itself, and one stuck segment stops no other."""
        slowed = ""
        while await self._go(f"range {number}", Phase.WALK):
            job, looks = self._known, self._looks
            queue = segment_queue(Lane(job.lane))
            request = SegmentRequest(job.job_no, job.round, number, job.segment_seconds)
            handle = self._segments[number] = workflow.start_activity(
                activities.segment,
                request,
                summary=f"range {number}",
                **segment_options(job, queue),
            )
            answer = await self._ended(f"range {number}", f"a segment, on the queue {queue}{slowed}", handle)
            if answer is not None and answer.end is SegmentEnd.DONE:
                self._looks += 1  # a range that the throttle holds may be the next
                return
            slowed = f"; {answer.reason}" if answer is not None and answer.reason else ""
            if answer is not None and answer.end is SegmentEnd.HELD:
                if self._looks == looks:  # else what holds it may be over
                    await self._wait(f"range {number}", answer.reason, answer.retry_seconds)
            elif answer is None or answer.end is not SegmentEnd.CONTINUE:
                await self._ask("look", f"range {number}")
            else:
                show_progress(self._known, answer, self._waits, self._ignored)

    async def _deliver_all(self) -> None:
        await until(lambda: self._phase is not Phase.FREEZE or self._leaving)
        await asyncio.gather(*(self._deliver(channel) for channel in self._known.channels))

    async def _deliver(self, channel: str) -> None:
        """One channel's stream of deliveries; done only when the walk is over and nothing is owed there."""
        stream, shown = f"deliver {channel}", ""
        while await self._go(stream, Phase.WALK, Phase.DELIVER):
            job = self._known
            handle = self._deliveries[channel] = workflow.start_activity(
                activities.deliver,
                DeliverRequest(job.job_no, channel, job.deliver_seconds, shown),
                summary=stream,
                **deliver_options(job, effects_queue(channel)),
            )
            what = shown or f"a delivery, on the queue {effects_queue(channel)}"
            answer = await self._ended(stream, what, handle)
            # a held channel is waited for by the next delivery, in its slot
            shown = answer.reason if answer is not None and answer.end is DeliverEnd.HELD else ""
            if answer is None or answer.end is DeliverEnd.DONE:
                return
            if answer.end is DeliverEnd.PAUSED:
                await self._ask("look", stream)
            elif answer.end in (DeliverEnd.HELD, DeliverEnd.WAITING):
                await self._wait(stream, answer.reason, answer.retry_seconds)

    async def _ended(self, stream: str, what: str, handle: workflow.ActivityHandle[T]) -> T | None:
        """The activity's answer, None where it was cancelled; meanwhile it is shown as what the stream waits for."""
        self._waits[stream] = what
        try:
            return await ended(handle)
        finally:
            self._waits.pop(stream, None)

    async def _ask(self, step: str, stream: str) -> None:
        """Ask the database, unless the view says already that this phase is left."""
        phase = self._phase
        if phase in (Phase.FREEZE, Phase.WALK, Phase.DELIVER) and not self._leaving:
            await self._see(step)
            if self._phase is phase and not self._leaving:
                await self._wait(stream, "the database to agree with what the last attempt found", _REST)

    async def _wait(self, stream: str, why: str, seconds: float) -> None:
        """Wait in a timer, not in a slot; a nudge ends it."""
        self._waits[stream] = why
        show_job(self._known, self._waits, self._ignored)
        phase, looks = self._phase, self._looks
        with suppress(TimeoutError):
            await until(
                lambda: self._leaving or self._phase is not phase or self._looks != looks,
                at_most=timedelta(seconds=max(seconds, _REST)),
                summary=why,
            )
        self._waits.pop(stream, None)
        show_job(self._known, self._waits, self._ignored)
