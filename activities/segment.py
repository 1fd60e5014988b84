"""Segment: walks chunks of one range until its time budget ends, the range is done, or something wants it to stop."""

import contextlib
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from bulklane.activities.chunk_size import ChunkSize
from bulklane.activities.failure_threshold import FailureWatch
from bulklane.activities.failures import Trouble, database_trouble, reason_of, trouble_of
from bulklane.activities.heartbeat import give_way, schedule_number, superseded
from bulklane.activities.pace import Debt, Pace, PaceLimits, Reason
from bulklane.activities.plan import plan_chunks
from bulklane.contracts import activity_calls
from bulklane.contracts.job import Wish
from bulklane.contracts.lane import Lane
from bulklane.contracts.timing import Timing
from bulklane.contracts.walk import SegmentAnswer, SegmentEnd, SegmentRequest
from bulklane.database import effect
from bulklane.database import range as ranges
from bulklane.database.bad_records import apply_to_good
from bulklane.database.chunk import ChunkPlan, apply_chunk, fail_chunk, keys_of
from bulklane.database.constraint import broken_rule
from bulklane.database.engine import limited_transaction
from bulklane.database.job import Job, get_job
from bulklane.database.range import RangeRef
from bulklane.database.selection import Slice, StoredSelection, slice_at
from bulklane.database.trouble import note_trouble, tell_slowed
from bulklane.database.wish import Wanted, note_heard, read_wish, set_wish
from bulklane.operations.operation import Registry

LONGEST_PAUSE = 0.5
# a wait in a slot hears wishes and beats as often as this
LONGEST_SLEEP = 0.25
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
        job, plan, stored = self._plan(ref)
        size = ChunkSize(self.timing.chunk_target, standing.chunk_size)
        watch = FailureWatch.of(self.engine, self.registry, ref)
        pace = Pace(self.engine, ref, self._reasons(job))
        walk = Walk(self.engine, self.timing, plan, ref, epoch, stored.selection_no, size, standing, watch, pace)
        try:
            # the attempt before may have ended between a chunk and its look
            end = SegmentEnd.WISH if watch.stopped() else walk.run(until=time.monotonic() + request.seconds)
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

    def _plan(self, ref: RangeRef) -> tuple[Job, ChunkPlan, StoredSelection]:
        try:
            with self.engine.connect() as connection:
                job = get_job(connection, ref.job_no)
                return job, *plan_chunks(connection, self.registry, job)
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

    def _left(self, walk: "Walk", end: SegmentEnd) -> SegmentAnswer:
        ref = walk.ref
        with self.engine.begin() as connection:
            ranges.leave(connection, ref, walk.epoch, walk.size.records)
            note_heard(connection, ref.job_no, heard_by=self.process)
            processed = ranges.counters(connection, ref.job_no, ref.round).processed
            owed = effect.count_owed(connection, ref.job_no)
            return SegmentAnswer(end, processed, owed, walk.pace.why, walk.retry_seconds)


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
    watch: FailureWatch
    pace: Pace
    unasked: set[tuple[str, str]] = field(default_factory=set)
    """Rules that no query can ask about: their bad records are found by bisection."""
    retry_seconds: float = 0.0
    _told: str = ""
    _pause: float = 0.0

    def run(self, until: float) -> SegmentEnd:
        """Chunk after chunk; before each of them every reason to stop or to go slower is looked at."""
        while True:
            if self.standing.done:
                return SegmentEnd.DONE
            if not self.standing.open:
                return SegmentEnd.SHUT
            if (end := self._step(until)) is not None:
                return end
            activity.heartbeat(self.standing.cursor)
            give_way()
            if self.watch.stopped():
                return SegmentEnd.WISH
            if (activity.is_worker_shutdown() or time.monotonic() > until) and not self.standing.done:
                return SegmentEnd.CONTINUE

    def _step(self, until: float) -> SegmentEnd | None:
        """One chunk, or one wait; a reason to end the segment."""
        wanted = self._wanted()
        if wanted.wish is not Wish.RUN:
            return SegmentEnd.WISH
        piece = self._piece()
        turn = self.pace.turn(wanted, piece.hi - piece.lo)
        if not self._pause:  # trouble is told until a chunk gets through
            self._tell(self.pace.why)
        if turn.held:
            self.retry_seconds = turn.seconds
            return SegmentEnd.HELD
        if not turn.rows:
            time.sleep(min(turn.seconds, LONGEST_SLEEP))
            return None
        return self._try(replace(piece, hi=piece.lo + turn.rows), until)

    def _piece(self) -> Slice:
        size = self.size.after(self.standing.deaths)
        return slice_at(self.selection_no, self.standing.cursor, self.standing.hi, size)

    def _try(self, piece: Slice, until: float) -> SegmentEnd | None:
        try:
            self._chunk(piece)
        except Exception as error:
            if trouble_of(error) is Trouble.BUG:
                raise
            self._pause = min(LONGEST_PAUSE, self._pause * 2 or 0.02)
            time.sleep(self._pause)
            return self._troubled_for(error, until)
        self._pause = 0.0
        return None

    def _troubled_for(self, error: Exception, until: float) -> SegmentEnd | None:
        """Trouble that passes: try again within the budget; beyond it the job fails."""
        code, reason = reason_of(error)
        trouble = f"the database: {reason} ({code})"
        budget = self.timing.trouble_budget
        with self.engine.begin() as connection:
            seconds = note_trouble(connection, self.ref, self.epoch, self.standing.cursor, trouble)
            if seconds > budget:
                why = f"{trouble}; no chunk of range {self.ref.range_no} got through for {budget:,.10g} s"
                set_wish(connection, self.ref.job_no, Wish.STOP, who="bulklane", why=why)
        self._told = trouble
        self._look_again()
        if seconds > budget:
            return SegmentEnd.WISH
        if time.monotonic() > until:
            raise database_trouble(error) from None
        return None

    def _tell(self, why: str) -> None:
        if why == self._told:
            return
        with self.engine.begin() as connection:
            tell_slowed(connection, self.ref, self.epoch, why)
        self._told = why

    def _chunk(self, piece: Slice) -> None:
        if self.standing.deaths > ranges.MOST_DEATHS:
            self._fail(piece, "worker_died", f"{self.standing.deaths} workers died at this record")
            return
        began = time.monotonic()
        try:
            with self._transaction() as connection:
                result = apply_chunk(connection, self.plan, self.ref, self.epoch, piece)
        except Exception as error:
            self._troubled(error, piece, time.monotonic() - began)
            return
        self.size.took(piece.hi - piece.lo, time.monotonic() - began)
        self._moved(result is not None, piece)

    def _troubled(self, error: Exception, piece: Slice, seconds: float) -> None:
        """Narrow down to the record at fault, make the next chunk smaller, or leave it to the caller."""
        trouble = trouble_of(error)
        records = piece.hi - piece.lo
        if trouble is Trouble.RECORD and records == 1:
            self._fail(piece, *reason_of(error))
            self.size.found()
        elif trouble is Trouble.RECORD:
            if not self._asked(error, piece):
                self.size.bisect(records)
        elif trouble is Trouble.LARGE:
            self.size.halve(records)
        else:
            # A wait for a lock ends before the statement's time is up, and is told by its own code. Who is cancelled
            # before that was cancelled by somebody: the chunk was not too large.
            if trouble is Trouble.SLOW and seconds >= self.timing.statement_timeout:
                self.size.halve(records)
            raise error

    def _asked(self, error: Exception, piece: Slice) -> bool:
        """Whether the records that break the rule could be asked for: they are reported, their neighbours changed."""
        rule = broken_rule(error)
        if rule is None or rule in self.unasked:
            return False
        began = time.monotonic()
        try:
            with self._transaction() as connection:
                result = apply_to_good(connection, self.plan, self.ref, self.epoch, piece)
        except SQLAlchemyError as again:
            if trouble_of(again) is Trouble.PASSING:
                raise
            if broken_rule(again) in (rule, None):
                self.unasked.add(rule)
            return False
        self.size.took(piece.hi - piece.lo, time.monotonic() - began)
        self._moved(result is not None, piece)
        return True

    def _fail(self, piece: Slice, code: str, reason: str) -> None:
        """Report the one record of the slice, and step over it."""
        with self._transaction() as connection:
            (key,) = keys_of(connection, piece, self.plan.records.key_types)
            passed = fail_chunk(connection, self.ref, self.epoch, piece, key, code, reason)
        self._moved(passed is not None, piece)

    def _moved(self, passed: bool, piece: Slice) -> None:
        if passed:
            self.pace.used(piece.hi - piece.lo)
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

    def _wanted(self) -> Wanted:
        with self.engine.begin() as connection:
            return read_wish(connection, self.ref.job_no)
