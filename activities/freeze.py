"""Freeze: one statement expands the selection into blocks; the last step compares round and state.

A live selection gets its bound and its ranges instead.
"""

from dataclasses import dataclass

from sqlalchemy import Engine
from temporalio import activity

from bulklane.activities.heartbeat import beating
from bulklane.activities.plan import operation_of
from bulklane.contracts import activity_calls
from bulklane.contracts.job import JobState
from bulklane.contracts.timing import Timing
from bulklane.contracts.walk import FreezeRequest
from bulklane.database.engine import limited_transaction
from bulklane.database.job import get_job, lock_job, move
from bulklane.database.live_selection import bound_live
from bulklane.database.range import RangeRef
from bulklane.database.selection import cut_ranges, freeze_matching, lock_selection
from bulklane.operations.operation import Registry
from bulklane.operations.request import read_condition


@dataclass(frozen=True)
class Freeze:
    """The activity that freezes selections too large to freeze at acceptance."""

    engine: Engine
    registry: Registry
    timing: Timing

    @activity.defn(name=activity_calls.freeze.__name__)
    def freeze(self, request: FreezeRequest) -> None:
        """Store blocks and ranges, and move the job on; nothing where it has moved on already."""
        seconds = self.timing.freeze_statement_timeout
        with (
            beating(self.timing.heartbeat_timeout / 4),
            limited_transaction(self.engine, statement=seconds, transaction=seconds + 60) as connection,
        ):
            job = get_job(connection, request.job_no)
            operation = operation_of(self.registry, job)
            stored = lock_selection(connection, job.selection_no)
            if not stored.stated or job.state is not JobState.FREEZING:
                return
            condition = read_condition(operation, stored.kind, stored.spec)
            chosen = (stored.selection_no, operation.records, job.tenant, condition)
            if stored.live:
                total = bound_live(connection, RangeRef(job.job_no, job.round, 0), *chosen, job.parallelism)
            else:
                total = freeze_matching(connection, *chosen)
            # locked last: a statement over a million rows must not make a cancel wait
            job = lock_job(connection, request.job_no)
            if job.round != request.round or job.state is not JobState.FREEZING:
                connection.rollback()
                return
            if not stored.live:
                cut_ranges(connection, job_no=job.job_no, round_no=job.round, total=total, parallelism=job.parallelism)
            move(connection, job, JobState.WALKING, total=total)
