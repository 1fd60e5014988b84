"""Segment: walks chunks of one range until its time budget ends, the range is done, or something wants it to stop."""

import contextlib
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from bulklane.activities.chunk_size import ChunkSize
from bulklane.activities.failures import Trouble, database_trouble, reason_of, trouble_of
from bulklane.activities.heartbeat import give_way, schedule_number, superseded
from bulklane.activities.plan import plan_chunks
from bulklane.contracts import activity_calls
from bulklane.contracts.job import Wish
from bulklane.contracts.timing import Timing
from bulklane.contracts.walk import SegmentAnswer, SegmentEnd, SegmentRequest
from bulklane.database import effect
from bulklane.database import range as ranges
from bulklane.database.chunk import ChunkPlan, apply_chunk, fail_chunk, keys_of
from bulklane.database.engine import limited_transaction
from bulklane.database.job import get_job
from bulklane.database.range import RangeRef
from bulklane.database.selection import Slice, StoredSelection, slice_at
from bulklane.database.wish import note_heard, read_wish, set_wish
from bulklane.operations.operation import Registry

LONGEST_PAUSE = 0.5
MOST_ATTEMPTS_OF_A_BUG = 8


@dataclass(frozen=True)
class Segment:
    """The activity that walks."""

    engine: Engine
    registry: Registry
    timing: Timing
    process: str

    @activity.defn(name=activity_calls.segment.__name__, no_thread_cancel_exception=True)
    def segment(self, request: SegmentRequest) -> SegmentAnswer:
        """Walk; the answer says why it ended. Raises Superseded, Yielded, DatabaseTrouble, OperationMissing."""
        ref = RangeRef(request.job_no, request.round, request.range_no)
        epoch = schedule_number()
        with self.engine.begin() as connection:
            standing = ranges.take(connection, ref, epoch)
        if standing.epoch > epoch:
            raise superseded(epoch, standing.epoch)
        plan, stored = self._plan(ref)
        size = ChunkSize(self.timing.chunk_target, standing.chunk_size)
        walk = Walk(self.engine, self.timing, plan, ref, epoch, stored.selection_no, size, standing)
        try:
            end = walk.run(until=time.monotonic() + request.seconds)
        except Exception as error:
            self._failed(ref, error)
            self._ended_in_order(ref, epoch, size)
            raise
        return self._left(ref, epoch, size, end)

    def _plan(self, ref: RangeRef) -> tuple[ChunkPlan, StoredSelection]:
        try:
            with self.engine.connect() as connection:
                return plan_chunks(connection, self.registry, get_job(connection, ref.job_no))
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
        with self.engine.begin() as connection:
            set_wish(connection, ref.job_no, Wish.STOP, who="bulklane", why=f"the operation fails: {reason}")

    def _ended_in_order(self, ref: RangeRef, epoch: int, size: ChunkSize) -> None:
        """An error that could be raised is no death of the worker; where the database is away it counts as one."""
        with contextlib.suppress(SQLAlchemyError), self.engine.begin() as connection:
            ranges.leave(connection, ref, epoch, size.records)

    def _left(self, ref: RangeRef, epoch: int, size: ChunkSize, end: SegmentEnd) -> SegmentAnswer:
        with self.engine.begin() as connection:
            ranges.leave(connection, ref, epoch, size.records)
            note_heard(connection, ref.job_no, heard_by=self.process)
            processed = ranges.counters(connection, ref.job_no, ref.round).processed
            return SegmentAnswer(end, processed, effect.count_owed(connection, ref.job_no))


@dataclass
class Walk:
    """One attempt's walk of one range."""

    engine: Engine
    timing: Timing
    plan: ChunkPlan
    ref: RangeRef
    epoch: int
    selection_no: int
    size: ChunkSize
    standing: ranges.Standing

    def run(self, until: float) -> SegmentEnd:
        """Chunk after chunk; between two of them every reason to stop is looked at."""
        pause = 0.0
        while True:
            if self.standing.done:
                return SegmentEnd.DONE
            if not self.standing.open:
                return SegmentEnd.SHUT
            try:
                self._chunk()
                pause = 0.0
            except Exception as error:
                if trouble_of(error) is Trouble.BUG:
                    raise
                if time.monotonic() > until:
                    raise database_trouble(error) from None
                pause = min(LONGEST_PAUSE, pause * 2 or 0.02)
                time.sleep(pause)
                self._look_again()
            activity.heartbeat(self.standing.cursor)
            give_way()
            if self._wish() is not Wish.RUN:
                return SegmentEnd.WISH
            if (activity.is_worker_shutdown() or time.monotonic() > until) and not self.standing.done:
                return SegmentEnd.CONTINUE

    def _chunk(self) -> None:
        size = self.size.after(self.standing.deaths)
        piece = slice_at(self.selection_no, self.standing.cursor, self.standing.hi, size)
        if self.standing.deaths > ranges.MOST_BLAMELESS:
            self._fail(piece, "worker_died", f"{self.standing.deaths} workers died at this record")
            return
        began = time.monotonic()
        try:
            with self._transaction() as connection:
                result = apply_chunk(connection, self.plan, self.ref, self.epoch, piece)
        except Exception as error:
            self._troubled(error, piece)
            return
        self.size.took(piece.hi - piece.lo, time.monotonic() - began)
        self._moved(result is not None, piece)

    def _troubled(self, error: Exception, piece: Slice) -> None:
        """Narrow down to the record at fault, make the next chunk smaller, or leave it to the caller."""
        trouble = trouble_of(error)
        records = piece.hi - piece.lo
        if trouble is Trouble.RECORD and records == 1:
            self._fail(piece, *reason_of(error))
        elif trouble is Trouble.RECORD:
            self.size.halve(records)
        else:
            if trouble is Trouble.SLOW:
                self.size.halve(records)
            raise error

    def _fail(self, piece: Slice, code: str, reason: str) -> None:
        """Report the one record of the slice, and step over it."""
        with self._transaction() as connection:
            (key,) = keys_of(connection, piece, self.plan.records.key_types)
            passed = fail_chunk(connection, self.ref, self.epoch, piece, key, code, reason)
        self._moved(passed is not None, piece)

    def _moved(self, passed: bool, piece: Slice) -> None:
        if passed:
            self.standing = self.standing.at(piece.hi)
        else:
            self._look_again()

    def _look_again(self) -> None:
        """Not through the gate, or no answer: the range's row tells whether the cursor moved, and whose it is."""
        with self.engine.begin() as connection:
            self.standing = ranges.read(connection, self.ref)
        if self.standing.epoch != self.epoch:
            raise superseded(self.epoch, self.standing.epoch)

    def _transaction(self) -> AbstractContextManager[Connection]:
        return limited_transaction(
            self.engine, statement=self.timing.statement_timeout, transaction=self.timing.transaction_timeout
        )

    def _wish(self) -> Wish:
        with self.engine.begin() as connection:
            return read_wish(connection, self.ref.job_no).wish
