"""Freeze: one statement expands the selection into blocks; the last step compares round and state.

A live selection gets its bound and its ranges instead. What a search selects is walked before, outside of the
transaction, and stored page by page.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine
from temporalio import activity
from temporalio.exceptions import ApplicationError

from bulklane.activities.heartbeat import beating, schedule_number, superseded
from bulklane.activities.plan import operation_of
from bulklane.activities.search_walk import SearchFailed, SearchWalk
from bulklane.contracts import activity_calls
from bulklane.contracts.failure import FailureType
from bulklane.contracts.job import JobState, Wish
from bulklane.contracts.lane import lane_of
from bulklane.contracts.timing import Timing
from bulklane.contracts.walk import FreezeRequest
from bulklane.database.engine import limited_transaction
from bulklane.database.job import Job, get_job, lock_job, move, note_reason
from bulklane.database.live_selection import bound_live
from bulklane.database.range import RangeRef
from bulklane.database.search_freeze import WalkSuperseded, forget_pages, freeze_pages
from bulklane.database.selection import (
    StoredSelection,
    cut_ranges,
    freeze_matching,
    lock_selection,
    read_selection,
)
from bulklane.database.wish import set_wish
from bulklane.operations.channel import Endpoint
from bulklane.operations.operation import Registry
from bulklane.operations.request import read_condition
from bulklane.operations.senders.index_search import PAGE


@dataclass(frozen=True)
class Freeze:
    """The activity that freezes selections that can't be frozen at acceptance.

    For searches: `endpoints` by channel, the largest size of the small lane, and how many documents make a page.
    """

    engine: Engine
    registry: Registry
    timing: Timing
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    small_max_records: int = 0
    page: int = PAGE

    @activity.defn(name=activity_calls.freeze.__name__)
    def freeze(self, request: FreezeRequest) -> None:
        """Store blocks and ranges, and move the job on; nothing where it has moved on already."""
        with beating(self.timing.heartbeat_timeout / 4):
            if self._search(request) and not self._freeze(request):
                self._forget(request)

    def _search(self, request: FreezeRequest) -> bool:
        """Walk the index where the selection is a search; False: there is nothing to freeze."""
        with self.engine.connect() as connection:
            job = get_job(connection, request.job_no)
            operation = operation_of(self.registry, job)
            stored = read_selection(connection, job.selection_no)
        if not stored.stated or job.state is not JobState.FREEZING:
            return False
        if stored.kind != "search":
            return True
        walk = SearchWalk(self.engine, self.registry, self.endpoints, self.page)
        try:
            walk.store_keys(job, operation, stored, schedule_number())
        except SearchFailed as failure:
            self._fail(request, str(failure))
            return False
        except ApplicationError as trouble:
            if trouble.type == FailureType.SEARCH_TROUBLE:
                with self.engine.begin() as connection:
                    note_reason(connection, job, f"the freeze is tried again: {trouble.message}")
            raise
        return True

    def _fail(self, request: FreezeRequest, reason: str) -> None:
        with self.engine.begin() as connection:
            job = lock_job(connection, request.job_no)
            if _is_due(job, request):
                set_wish(connection, job.job_no, Wish.STOP, who="bulklane", why=reason)

    def _forget(self, request: FreezeRequest) -> None:
        """The job has moved on meanwhile: what was walked for it is of no use."""
        with self.engine.begin() as connection:
            job = get_job(connection, request.job_no)
            forget_pages(connection, job.selection_no, schedule_number())

    def _freeze(self, request: FreezeRequest) -> bool:
        """The last transaction; False where the job has moved on."""
        seconds = self.timing.freeze_statement_timeout
        with limited_transaction(self.engine, statement=seconds, transaction=seconds + 60) as connection:
            job = get_job(connection, request.job_no)
            stored = lock_selection(connection, job.selection_no)
            if not stored.stated or job.state is not JobState.FREEZING:
                return False
            total = self._store(connection, job, stored)
            # locked last: a statement over a million rows must not make a cancel wait
            job = lock_job(connection, request.job_no)
            if not _is_due(job, request):
                connection.rollback()
                return False
            if not stored.live:
                cut_ranges(connection, job_no=job.job_no, round_no=job.round, total=total, parallelism=job.parallelism)
            # a search is measured here at last, whatever was counted or couldn't be at acceptance
            lane = lane_of(total, self.small_max_records) if stored.kind == "search" else job.lane
            move(connection, job, JobState.WALKING, total=total, lane=lane, reason="")
            return True

    def _store(self, connection: Connection, job: Job, stored: StoredSelection) -> int:
        """Freeze it, or bound it where it is live; how many records it has."""
        if stored.kind == "search":
            try:
                return freeze_pages(connection, stored, schedule_number())
            except WalkSuperseded as error:
                raise superseded(schedule_number(), error.epoch) from None
        operation = operation_of(self.registry, job)
        condition = read_condition(operation, stored.kind, stored.spec)
        chosen = (stored.selection_no, operation.records, job.tenant, condition)
        if stored.live:
            return bound_live(connection, RangeRef(job.job_no, job.round, 0), *chosen, job.parallelism)
        return freeze_matching(connection, *chosen)


def _is_due(job: Job, request: FreezeRequest) -> bool:
    return job.round == request.round and job.state is JobState.FREEZING
