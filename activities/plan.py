"""Turns an operation and a job into what the chunk transaction does."""

from typing import Any

from sqlalchemy import Connection
from temporalio.exceptions import ApplicationError

from bulklane.contracts.failure import FailureType
from bulklane.contracts.key import read_key
from bulklane.database.chunk_plan import ChunkPlan
from bulklane.database.course import Course, FrozenCourse, LiveCourse
from bulklane.database.job import Job
from bulklane.database.live_chain import LivePlan
from bulklane.database.plan import chunk_plan
from bulklane.database.range import RangeRef, Standing
from bulklane.database.selection import StoredSelection, read_selection
from bulklane.operations.live import check_live, columns_read
from bulklane.operations.operation import Operation, Registry, UnknownOperation
from bulklane.operations.request import read_condition, read_parameters
from bulklane.operations.work import work_of


def operation_of(registry: Registry, job: Job) -> Operation:
    """The job's operation; raises a failure that is retried, since a deploy may bring it."""
    try:
        return registry.operation(job.operation)
    except UnknownOperation as error:
        raise ApplicationError(str(error), type=FailureType.OPERATION_MISSING) from None


def plan_chunks(connection: Connection, registry: Registry, job: Job) -> tuple[ChunkPlan, StoredSelection]:
    """The job's chunk plan, and the selection that it walks."""
    operation = operation_of(registry, job)
    stored = read_selection(connection, job.selection_no)
    parameters = read_parameters(operation, job.parameters)
    condition = read_condition(operation, stored.kind, stored.spec)
    return chunk_plan(work_of(operation, parameters), job.tenant, condition, reopened=job.round > 1), stored


def plan_course(
    connection: Connection, registry: Registry, job: Job, ref: RangeRef, epoch: int, standing: Standing
) -> Course[Any]:
    """The way through a range that this attempt has taken. Raises NotLive where a deploy has made a live walk unfit."""
    plan, stored = plan_chunks(connection, registry, job)
    if standing.bound_key is None:
        return FrozenCourse(plan, ref, epoch, stored.selection_no)
    check_live(job.operation, plan.change, operation_of(registry, job).records, plan.condition)
    live = LivePlan.on(connection, plan, columns_read(plan.condition))
    return LiveCourse(live, ref, epoch, read_key(standing.bound_key, stored.key_types))
