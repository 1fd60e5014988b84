"""open, look, release, close, and the verbs: one function of the database under five names."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine
from temporalio import activity
from temporalio.exceptions import ApplicationError

from bulklane.activities.heartbeat import beating, schedule_number
from bulklane.contracts import activity_calls
from bulklane.contracts.failure import FailureType
from bulklane.contracts.job import JobView, phase_of
from bulklane.contracts.message import VerbRequest
from bulklane.contracts.timing import Timing
from bulklane.database import accept, effect
from bulklane.database import range as ranges
from bulklane.database.advance import advance, apply_message, open_round
from bulklane.database.engine import limited_transaction
from bulklane.database.job import Job, find_job, stamp_run
from bulklane.database.live_selection import LiveUnfit
from bulklane.operations.channel import Endpoint
from bulklane.operations.operation import Registry
from bulklane.operations.request import InvalidRequest, Request, read_request
from bulklane.operations.search import measure_search

# a step takes milliseconds: one that takes longer says that it lives
BEAT_SECONDS = 0.75


@dataclass(frozen=True)
class JobLifecycle:
    """The activities that move a job; `process` names this worker process for people."""

    engine: Engine
    registry: Registry
    timing: Timing
    small_max_records: int
    search_attributes: bool
    process: str
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)

    @activity.defn(name=activity_calls.open_job.__name__)
    def open_job(self, start_arguments: list[Any]) -> JobView:
        """Accept a direct start, stamp round and run, take each step that is due."""
        info = activity.info()
        job_id = str(info.workflow_id)
        request = self._direct_start(job_id, start_arguments)
        found = self._found(request)
        with self._shift() as connection:
            job_no = self._job_no(connection, job_id, request, found)
            # accepting and stamping are one transaction: nobody takes the round for unopened meanwhile
            stamp_run(connection, job_no, run_id=str(info.workflow_run_id), scheduled=schedule_number())
            open_round(connection, job_no)
            return self._view(connection, advance(connection, job_no, heard_by=self.process))

    @activity.defn(name=activity_calls.look.__name__)
    def look(self, job_no: int) -> JobView:
        """Take each step that is due."""
        return self._advance(job_no)

    @activity.defn(name=activity_calls.release.__name__)
    def release(self, job_no: int) -> JobView:
        """The same, when every range is done."""
        return self._advance(job_no)

    @activity.defn(name=activity_calls.close.__name__)
    def close(self, job_no: int) -> JobView:
        """The same, when every effect is final."""
        return self._advance(job_no)

    @activity.defn(name=activity_calls.apply_verb.__name__)
    def apply_verb(self, request: VerbRequest) -> None:
        """Write what a signal asks for as a row, once by its id."""
        with self._shift() as connection:
            apply_message(connection, request.job_no, request.message)

    def _advance(self, job_no: int) -> JobView:
        with self._shift() as connection:
            return self._view(connection, advance(connection, job_no, heard_by=self.process))

    @contextmanager
    def _shift(self) -> Iterator[Connection]:
        seconds = self.timing.shift_statement_timeout
        with (
            beating(BEAT_SECONDS),
            limited_transaction(self.engine, statement=seconds, transaction=seconds + 5) as connection,
        ):
            yield connection

    def _direct_start(self, job_id: str, start_arguments: list[Any]) -> Request | None:
        """The request of the start's argument; None where an accepted job needs none. Raises final failures."""
        with self.engine.connect() as connection:
            accepted = find_job(connection, job_id) is not None
        argument = start_arguments[0] if len(start_arguments) == 1 else None
        if accepted and not start_arguments:
            return None
        if not isinstance(argument, Mapping):
            raise _final(FailureType.INVALID_START, "BulkJob takes one object: tenant, operation, selection, ...")
        try:
            return read_request({**argument, "job_id": job_id}, self.registry)
        except InvalidRequest as error:
            if accepted:
                # it could be read when it was accepted: a deploy may bring its operation back
                return None
            raise _final(FailureType.INVALID_START, str(error)) from None

    def _found(self, request: Request | None) -> int | None:
        """How many documents a search finds, asked before the transaction."""
        if request is None:
            return None
        try:
            with beating(BEAT_SECONDS):
                return measure_search(request, self.registry, self.endpoints, self.small_max_records)
        except InvalidRequest as error:
            raise _final(FailureType.INVALID_START, str(error)) from None

    def _job_no(self, connection: Connection, job_id: str, request: Request | None, found_by_search: int | None) -> int:
        if request is None:
            known = find_job(connection, job_id)
            if known is None:
                raise _final(FailureType.INVALID_START, f"there is no job {job_id}")
            return known.job_no
        try:
            found = accept.find_accepted(connection, request)
            if found is None:
                size = accept.measure(connection, request, self.small_max_records, found_by_search)
                found = accept.store(connection, request, size=size, small_max_records=self.small_max_records)
            if found.job.job_id != job_id:
                message = f"the idempotency key stands for job {found.job.job_id}, not for {job_id}"
                raise _final(FailureType.JOB_ID_REUSED, message)
            return found.job.job_no
        except accept.LeaseMissed:
            connection.rollback()
            raise self._refused(request) from None
        except accept.JobIdReused as error:
            raise _final(FailureType.JOB_ID_REUSED, str(error)) from None
        except LiveUnfit as error:
            raise _final(FailureType.INVALID_START, f"selection.live: {error}") from None

    def _refused(self, request: Request) -> ApplicationError:
        try:
            with self.engine.connect() as connection:
                found = accept.conflict(connection, request)
        except accept.JobIdReused as error:
            return _final(FailureType.JOB_ID_REUSED, str(error))
        if isinstance(found, accept.Conflict):
            holder = found.holder.job_id if found.holder.tenant == request.tenant else "another tenant's job"
            return _final(FailureType.LEASE_HELD, str(found), holder)
        return ApplicationError("the holder went at this moment", type=FailureType.DATABASE_TROUBLE)

    def _view(self, connection: Connection, job: Job) -> JobView:
        counters = ranges.counters(connection, job.job_no, job.round)
        return JobView(
            job_no=job.job_no,
            job_id=job.job_id,
            tenant=job.tenant,
            operation=job.operation,
            round=job.round,
            state=job.state,
            phase=phase_of(job.state),
            lane=job.lane,
            ranges=ranges.count_ranges(connection, job.job_no, job.round),
            channels=job.channels,
            # a live walk may meet more than was counted at its start
            total=None if job.total is None else max(job.total, counters.processed),
            processed=counters.processed,
            owed=effect.count_owed(connection, job.job_no),
            reason=job.reason,
            segment_seconds=self.timing.segment,
            deliver_seconds=self.timing.deliver,
            heartbeat_seconds=self.timing.heartbeat_timeout,
            search_attributes=self.search_attributes,
            calls_out=effect.count_calls_out(connection, job.job_no),
            undecided=effect.count_undecided(connection, job.job_no),
        )


def _final(failure: FailureType, message: str, *details: Any) -> ApplicationError:
    return ApplicationError(message[:1000], *details, type=failure, non_retryable=True)
