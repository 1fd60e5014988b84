"""The composition root: from settings to engine, registry, senders and Temporal workers."""

import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from bulklane.activities.deliver import Deliver
from bulklane.activities.freeze import Freeze
from bulklane.activities.health import HealthWatch
from bulklane.activities.interceptor import FailureInterceptor
from bulklane.activities.job_lifecycle import JobLifecycle
from bulklane.activities.segment import Segment
from bulklane.contracts.timing import Timing, check_timing
from bulklane.database.document import has_row_version_trigger, has_unique_key
from bulklane.database.engine import DatabaseUnfit, check_server, connect_engine
from bulklane.database.migrate import check_schema
from bulklane.operations.operation import OperationError, Registry
from bulklane.operations.registry import load_registry
from bulklane.operations.sender import CallSender, IndexSender
from bulklane.workers.roles import Role, Served
from bulklane.workers.settings import WorkerSettings
from bulklane.workflows.bulk_job import BulkJob
from bulklane.workflows.deliver_owed import DeliverOwed

WORKFLOWS: Mapping[str, type] = {"BulkJob": BulkJob, "DeliverOwed": DeliverOwed}
SPARE_CONNECTIONS = 2
# deliveries wait for their channel most of the time: so many share what one slot has of the process
DELIVERIES_A_SLOT = 8


@dataclass
class Parts:
    """What a worker process is made of."""

    role: Role
    settings: WorkerSettings
    timing: Timing
    engine: Engine
    registry: Registry
    process: str
    senders: dict[str, CallSender | IndexSender] = field(default_factory=dict)
    executors: list[ThreadPoolExecutor] = field(default_factory=list)


def process_name(settings: WorkerSettings) -> str:
    """Unique for each start, so that a restarted process is never taken for the dead one of the same host and pid."""
    return f"{settings.process_name or socket.gethostname()[:20]}:{os.getpid()}/{uuid4().hex[:8]}"


def build_parts(role: Role, settings: WorkerSettings) -> Parts:
    """Everything but Temporal; raises TimingError, OperationError and DatabaseUnfit, each with the way out."""
    timing = settings.timing()
    check_timing(timing)
    pool_size = settings.slots + SPARE_CONNECTIONS
    if pool_size * settings.processes > settings.connection_budget:
        raise DatabaseUnfit(
            f"{settings.processes} processes with {pool_size} connections each would pass BULKLANE_CONNECTION_BUDGET"
            f" ({settings.connection_budget}): lower BULKLANE_SLOTS or BULKLANE_PROCESSES, or raise the budget"
        )
    registry = _limited(load_registry(settings.modules()), settings)
    process = process_name(settings)
    engine = connect_engine(settings.database_url, role=f"{role.name} {process}", pool_size=pool_size)
    parts = Parts(role, settings, timing, engine, registry, process)
    _check_database(parts)
    return parts


def _limited(registry: Registry, settings: WorkerSettings) -> Registry:
    """The registry with the limits that the settings put over the channels' own."""
    channels = dict(registry.channels)
    for name, where in settings.channels.items():
        if name not in channels:
            continue
        try:
            limits = where.limits_over(channels[name].limits)
        except ValueError as error:
            raise OperationError(f"BULKLANE_CHANNELS__{name.upper()}: {error}") from None
        channels[name] = replace(channels[name], limits=limits)
    return replace(registry, channels=channels)


def connect_senders(parts: Parts) -> None:
    """The sender of the role's channel; inside the event loop, since clients belong to one. Raises OperationError."""
    name = parts.role.channel
    if name is None:
        return
    channel = parts.registry.channels.get(name)
    where = parts.settings.channels.get(name)
    if channel is None or where is None:
        known = ", ".join(sorted(parts.registry.channels)) or "none"
        raise OperationError(
            f"the channel {name!r} needs an entry in CHANNELS of a module (known: {known})"
            f" and BULKLANE_CHANNELS__{name.upper()}__URL"
        )
    endpoint = where.endpoint()
    if channel.indexes:
        parts.senders[name] = channel.sender.connect_index(endpoint)
    else:
        parts.senders[name] = channel.sender.connect(endpoint, channel.concurrency)


def build_workers(parts: Parts, client: Client, *, search_attributes: bool) -> list[Worker]:
    """One Temporal worker for each queue of the role."""
    bodies = _bodies(parts, search_attributes)
    return [_worker(parts, client, served, bodies) for served in parts.role.queues]


def _check_database(parts: Parts) -> None:
    with parts.engine.connect() as connection:
        check_server(connection, parts.timing.deadlock_timeout)
        check_schema(connection)
        for operation in parts.registry.operations.values():
            records = operation.records
            if not has_unique_key(connection, records):
                raise DatabaseUnfit(
                    f"no unique index of {records.table.fullname} makes the key of operation {operation.name!r}"
                    f" ({', '.join(column.name for column in records.key)}) unique within its tenant"
                )
            if records.row_version_by == "trigger" and not has_row_version_trigger(connection, records):
                raise DatabaseUnfit(
                    f"the table {records.table.fullname} of operation {operation.name!r} has no row version trigger:"
                    " run `bulklane install`"
                )


def _bodies(parts: Parts, search_attributes: bool) -> dict[str, Any]:
    engine, registry, timing, process = parts.engine, parts.registry, parts.timing, parts.process
    small = parts.settings.small_max_records
    endpoints = {name: channel.endpoint() for name, channel in parts.settings.channels.items()}
    limits = parts.settings.pace()
    health = HealthWatch(engine, limits)
    lifecycle = JobLifecycle(engine, registry, timing, small, search_attributes, process, endpoints)
    return {
        "open_job": lifecycle.open_job,
        "look": lifecycle.look,
        "release": lifecycle.release,
        "close": lifecycle.close,
        "apply_verb": lifecycle.apply_verb,
        "freeze": Freeze(engine, registry, timing, endpoints, small).freeze,
        "segment": Segment(engine, registry, timing, process, limits, health).segment,
        "deliver": Deliver(engine, registry, parts.senders, process).deliver,
    }


def _most_at_once(role: Role, slots: int) -> int:
    return slots if role.channel is None else slots * DELIVERIES_A_SLOT


def _worker(parts: Parts, client: Client, served: Served, bodies: Mapping[str, Any]) -> Worker:
    slots = parts.settings.slots
    executor = ThreadPoolExecutor(slots, thread_name_prefix=served.queue) if served.activities else None
    if executor is not None:
        parts.executors.append(executor)
    timing = parts.timing
    return Worker(
        client,
        task_queue=served.queue,
        workflows=[WORKFLOWS[name] for name in served.workflows],
        activities=[bodies[name] for name in served.activities],
        activity_executor=executor,
        max_concurrent_activities=_most_at_once(parts.role, slots) if served.activities else None,
        identity=parts.process,
        interceptors=[FailureInterceptor()],
        # contracts import the standard library and temporalio only: nothing in them can break determinism
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules("bulklane.contracts")
        ),
        graceful_shutdown_timeout=timedelta(seconds=parts.settings.drain_seconds),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=timing.sticky_timeout),
        max_heartbeat_throttle_interval=timedelta(seconds=timing.heartbeat_throttle),
        default_heartbeat_throttle_interval=timedelta(seconds=timing.heartbeat_throttle),
    )
