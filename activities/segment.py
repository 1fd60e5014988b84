"""Segment: walks chunks of one range until its time budget ends, the range is done, or something wants it to stop."""

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from bulklane.activities.chunk_size import ChunkSize
from bulklane.activities.failure_threshold import FailureWatch
from bulklane.activities.failures import reason_of
from bulklane.activities.heartbeat import schedule_number, superseded
from bulklane.activities.pace import Debt, Pace, PaceLimits, Reason
from bulklane.activities.plan import operation_of, plan_course
from bulklane.activities.walk import Walk
from bulklane.contracts import activity_calls
from bulklane.contracts.job import Wish
from bulklane.contracts.lane import Lane
from bulklane.contracts.timing import Timing
from bulklane.contracts.walk import SegmentAnswer, SegmentEnd, SegmentRequest
from bulklane.database import effect
from bulklane.database import range as ranges
from bulklane.database.chunk_plan import Miscounted
from bulklane.database.course import Course
from bulklane.database.failure import Trouble, trouble_of
from bulklane.database.job import Job, get_job
from bulklane.database.live import ColumnMoved
from bulklane.database.range import RangeRef
from bulklane.database.wish import note_heard, set_wish
from bulklane.operations.operation import Registry

MOST_ATTEMPTS_OF_A_BUG = 8


@dataclass(frozen=True)
class Segment:
    """The activity that walks."""

    engine: Engine
    registry: Registry
    timing: Timing
    process: str
    limits: PaceLimits = field(default_factory=PaceLimits)
    health: Reason | None = None

    @activity.defn(name=activity_calls.segment.__name__, no_thread_cancel_exception=True)
    def segment(self, request: SegmentRequest) -> SegmentAnswer:
        """Walk; the answer says why it ended. Raises Superseded, Yielded, DatabaseTrouble, OperationMissing."""
        ref = RangeRef(request.job_no, request.round, request.range_no)
        epoch = schedule_number()
        with self.engine.begin() as connection:
            standing = ranges.take(connection, ref, epoch)
        if standing.epoch > epoch:
            raise superseded(epoch, standing.epoch)
        job, course = self._course(ref, epoch, standing)
        size = ChunkSize(self.timing.chunk_target, standing.chunk_size)
        watch = FailureWatch(self.engine, ref, operation_of(self.registry, job).failure_threshold)
        pace = Pace(self.engine, ref, self._reasons(job))
        walk = Walk(self.engine, self.timing, course, ref, epoch, size, standing, watch, pace)
        try:
            # the attempt before may have ended between a chunk and its look
            end = SegmentEnd.WISH if watch.stopped() else walk.run(until=time.monotonic() + request.seconds)
        except (ColumnMoved, Miscounted) as wrong:
            self._stop(ref, str(wrong))
            end = SegmentEnd.WISH
        except Exception as error:
            self._failed(ref, error)
            self._ended_in_order(ref, epoch, size)
            raise
        return self._left(walk, end)

    def _reasons(self, job: Job) -> list[Reason]:
        """A small job starts at once, whatever bulk jobs have done to the database."""
        if job.lane != Lane.BULK:
            return []
        debt = [Debt(self.engine, job.job_no, job.tenant, self.limits)] if job.channels else []
        return [*debt, *([] if self.health is None else [self.health])]

    def _course(self, ref: RangeRef, epoch: int, standing: ranges.Standing) -> tuple[Job, Course[Any]]:
        try:
            with self.engine.connect() as connection:
                job = get_job(connection, ref.job_no)
                return job, plan_course(connection, self.registry, job, ref, epoch, standing)
        except Exception as error:
            self._failed(ref, error)
            raise

    def _failed(self, ref: RangeRef, error: Exception) -> None:
        """A bug of the operation is tried again some times, since a deploy may mend it; then it ends the job."""
        if isinstance(error, ApplicationError) or trouble_of(error) is not Trouble.BUG:
            return
        if activity.info().attempt < MOST_ATTEMPTS_OF_A_BUG:
            return
        _, reason = reason_of(error)
        self._stop(ref, f"the operation fails: {reason}")

    def _stop(self, ref: RangeRef, why: str) -> None:
        with self.engine.begin() as connection:
            set_wish(connection, ref.job_no, Wish.STOP, who="bulklane", why=why)

    def _ended_in_order(self, ref: RangeRef, epoch: int, size: ChunkSize) -> None:
        """An error that could be raised is no death of the worker; where the database is away it counts as one."""
        with contextlib.suppress(SQLAlchemyError), self.engine.begin() as connection:
            ranges.leave(connection, ref, epoch, size.records)

    def _left(self, walk: Walk, end: SegmentEnd) -> SegmentAnswer:
        ref = walk.ref
        with self.engine.begin() as connection:
            ranges.leave(connection, ref, walk.epoch, walk.size.records)
            note_heard(connection, ref.job_no, heard_by=self.process)
            processed = ranges.counters(connection, ref.job_no, ref.round).processed
            owed = effect.count_owed(connection, ref.job_no)
            return SegmentAnswer(end, processed, owed, walk.pace.why, walk.retry_seconds)
