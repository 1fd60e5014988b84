"""Walk: chunk after chunk of one range, looking before each at every reason to stop or to go slower."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from temporalio import activity

from bulklane.activities.chunk_size import ChunkSize
from bulklane.activities.failure_threshold import FailureWatch
from bulklane.activities.failures import database_trouble, reason_of
from bulklane.activities.heartbeat import give_way, superseded
from bulklane.activities.pace import Pace
from bulklane.contracts.job import Wish
from bulklane.contracts.timing import Timing
from bulklane.contracts.walk import SegmentEnd
from bulklane.database import range as ranges
from bulklane.database.constraint import broken_rule
from bulklane.database.course import Course
from bulklane.database.engine import KeptConnection, limits, set_locally, single_statements
from bulklane.database.failure import Trouble, trouble_of
from bulklane.database.range import RangeRef
from bulklane.database.trouble import note_trouble, tell_slowed
from bulklane.database.wish import Wanted, read_wish, read_wish_setting, set_wish

LONGEST_PAUSE = 0.5
# a wait in a slot hears wishes and beats as often as this
LONGEST_SLEEP = 0.25
# the worker sends no more of them anyway, and each wakes another thread in the middle of the walk
BEAT_SECONDS = 0.2


@dataclass
class Walk:
    """One attempt's walk of one range."""

    engine: Engine
    timing: Timing
    course: Course[Any]
    ref: RangeRef
    epoch: int
    size: ChunkSize
    standing: ranges.Standing
    watch: FailureWatch
    pace: Pace
    unasked: set[tuple[str, str]] = field(default_factory=set)
    """Rules that no query can ask about: their bad records are found by bisection."""
    retry_seconds: float = 0.0
    _wanted: Wanted = field(init=False)
    _kept: KeptConnection = field(init=False)
    _told: str = ""
    _pause: float = 0.0
    _beat_at: float = 0.0

    def run(self, until: float) -> SegmentEnd:
        """Chunk after chunk; before each of them every reason to stop or to go slower is looked at."""
        self._wanted = self._ask()
        with closing(KeptConnection(self.engine)) as self._kept:
            return self._run(until)

    def _run(self, until: float) -> SegmentEnd:
        while True:
            if self.standing.done:
                return SegmentEnd.DONE
            if not self.standing.open:
                return SegmentEnd.SHUT
            if (end := self._step(until)) is not None:
                return end
            self._beat()
            give_way()
            if self.watch.stopped():
                return SegmentEnd.WISH
            if (activity.is_worker_shutdown() or time.monotonic() > until) and not self.standing.done:
                return SegmentEnd.CONTINUE

    def _beat(self) -> None:
        if time.monotonic() > self._beat_at:
            activity.heartbeat(self.standing.cursor)
            self._beat_at = time.monotonic() + BEAT_SECONDS

    def _step(self, until: float) -> SegmentEnd | None:
        """One chunk, or one wait; a reason to end the segment."""
        if self._wanted.wish is not Wish.RUN:
            return SegmentEnd.WISH
        size = self.size.of(self.course.ahead(self.standing), self.standing.deaths)
        turn = self.pace.turn(self._wanted, size)
        if not self._pause:  # trouble is told until a chunk gets through
            self._tell(self.pace.why)
        if turn.held:
            self.retry_seconds = turn.seconds
            return SegmentEnd.HELD
        if not turn.rows:
            self._kept.close()
            time.sleep(min(turn.seconds, LONGEST_SLEEP))
            self._wanted = self._ask()
            return None
        return self._try(turn.rows, until)

    def _try(self, size: int, until: float) -> SegmentEnd | None:
        try:
            passed = self._chunk(size)
        except Exception as error:
            if trouble_of(error) is Trouble.BUG:
                raise
            self._pause = min(LONGEST_PAUSE, self._pause * 2 or 0.02)
            time.sleep(self._pause)
            return self._troubled_for(error, until)
        if passed:
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

    def _chunk(self, size: int) -> bool:
        """Whether there was one: not where something else is wanted by now."""
        if self.standing.deaths > ranges.MOST_BLAMELESS:
            return self._die_no_more(size)
        piece = None
        began = time.monotonic()
        try:
            with self._still_wanted() as connection:
                if connection is None:
                    return False
                piece = self.course.next_piece(connection, self.standing, size)
                moved = self.course.apply(connection, self.standing, piece)
        except Exception as error:
            self._troubled(error, piece, time.monotonic() - began)
            return True
        self.size.took(self.course.records(piece), time.monotonic() - began)
        self._moved(moved)
        return True

    def _troubled(self, error: Exception, piece: Any, seconds: float) -> None:
        """Narrow down to the record at fault, make the next chunk smaller, or leave it to the caller."""
        trouble = trouble_of(error)
        records = 0 if piece is None else self.course.records(piece)
        if trouble is Trouble.RECORD and records == 1:
            self._fail(piece, *reason_of(error))
            self.size.found()
        elif trouble is Trouble.RECORD and records:
            if not self._asked(error, piece):
                self.size.bisect(records)
        elif trouble is Trouble.LARGE:
            self.size.halve(records)
        else:
            # A wait for a lock ends before the statement's time is up, and is told by its own code. Who is cancelled
            # before that was cancelled by somebody: the chunk was not too large.
            slow = trouble is Trouble.SLOW and seconds >= self.timing.statement_timeout
            # a smaller chunk meets fewer users, and holds up fewer while it waits
            if records and (slow or trouble is Trouble.LOCKED):
                self.size.halve(records)
            raise error

    def _asked(self, error: Exception, piece: Any) -> bool:
        """Whether the records that break the rule could be asked for: they are reported, their neighbours changed."""
        rule = broken_rule(error)
        if rule is None or rule in self.unasked:
            return False
        began = time.monotonic()
        try:
            with self._transaction() as connection:
                moved = self.course.apply_to_good(connection, self.standing, piece)
        except SQLAlchemyError as again:
            if trouble_of(again) in (Trouble.PASSING, Trouble.LOCKED):
                raise
            if broken_rule(again) in (rule, None):
                self.unasked.add(rule)
            return False
        self.size.took(self.course.records(piece), time.monotonic() - began)
        self._moved(moved)
        return True

    def _fail(self, piece: Any, code: str, reason: str) -> None:
        """Report the one record of the piece, and step over it."""
        with self._transaction() as connection:
            moved = self.course.fail(connection, self.standing, piece, code, reason)
        self._moved(moved)

    def _die_no_more(self, size: int) -> bool:
        """Report the record that stands alone where workers have died, and step over it."""
        why = f"{self.standing.deaths} workers died at this record"
        with self._still_wanted() as connection:
            if connection is None:
                return False
            piece = self.course.next_piece(connection, self.standing, size)
            moved = self.course.fail(connection, self.standing, piece, "worker_died", why)
        self._moved(moved)
        return True

    def _moved(self, moved: ranges.Standing | None) -> None:
        if moved is None:
            self._look_again()
            return
        self.pace.used(moved.cursor - self.standing.cursor)
        self.standing = moved

    def _look_again(self) -> None:
        """Not through the gate, or no answer: the range's row tells whether the cursor moved, and whose it is."""
        with self.engine.begin() as connection:
            self.standing = ranges.read(connection, self.ref)
        if self.standing.epoch != self.epoch:
            raise superseded(self.epoch, self.standing.epoch)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self.engine.begin() as connection:
            set_locally(connection, self._settings)
            yield connection

    @cached_property
    def _settings(self) -> Mapping[str, str]:
        timing = self.timing
        within = limits(statement=timing.statement_timeout, transaction=timing.transaction_timeout)
        return {**within, **self.course.settings}

    @contextmanager
    def _still_wanted(self) -> Iterator[Connection | None]:
        """A chunk's transaction; None where by now something else is wanted than what its turn was taken for."""
        with self._kept.begin() as connection:
            wanted = read_wish_setting(connection, self.ref.job_no, self._settings)
            yield connection if wanted == self._wanted else None
        self._wanted = wanted

    def _ask(self) -> Wanted:
        with single_statements(self.engine) as connection:
            return read_wish(connection, self.ref.job_no)
