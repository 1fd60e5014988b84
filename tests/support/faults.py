"""Faults made by hand: rows held, processes frozen and swapped, the operator's verbs, a pooler, other clocks."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Engine, make_url, text
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest, ResetWorkflowExecutionRequest

from bulklane.stack import free_port
from bulklane.stack.accounts import unprivileged_account
from bulklane.stack.processes import ChildProcess
from bulklane.starter.local import LocalStack
from tests.support.counting import items_of
from tests.support.jobs import temporal_client
from tests.support.waiting import until, until_async

TEMPORAL = Path(sys.executable).with_name("temporal")
FAKETIME = next(iter(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

_HOLD = text("SELECT 1 FROM counted WHERE item = ANY(:held) FOR UPDATE")
_WAITING = text(
    """SELECT application_name FROM pg_stat_activity
       WHERE application_name LIKE :role AND query LIKE :statement AND wait_event_type = 'Lock'"""
)
_IN_A_TRANSACTION = text(
    "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE :process AND xact_start IS NOT NULL"
)
A_CHUNK = "%bulklane.block%"
THE_JOB = "%FROM bulklane.job%FOR UPDATE%"


@contextmanager
def held_items(engine: Engine, tenant: str, *shares: float) -> Iterator[Callable[[], None]]:
    """Lock the tenant's items at these shares of its list, until the given function is called."""
    items = items_of(tenant)
    with engine.connect() as connection:
        connection.execute(_HOLD, {"held": [items[int(len(items) * share)] for share in shares]})
        yield connection.rollback


def waiting_workers(local: LocalStack, engine: Engine, role: str, statement: str = A_CHUNK) -> list[ChildProcess]:
    """The workers of a role that wait for a row lock in such a statement."""
    with engine.begin() as connection:
        names = list(connection.execute(_WAITING, {"role": f"bulklane {role} %", "statement": statement}).scalars())
    # `bulklane bulk NAME:PID/...`: the process that the session belongs to
    pids = {int(name.split(":")[-1].split("/")[0]) for name in names}
    return [one for one in local.stack.workers.values() if one.pid in pids]


def inside_a_chunk(local: LocalStack, engine: Engine, role: str = "bulk") -> ChildProcess:
    """A worker that is in the middle of a chunk, waiting for a held row."""
    return until(lambda: waiting_workers(local, engine, role), what="a chunk waits for the held row")[0]


@contextmanager
def frozen(*processes: ChildProcess) -> Iterator[None]:
    """SIGSTOP for the body of a `with`, then SIGCONT."""
    for one in processes:
        os.kill(one.pid or 0, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in processes:
            if one.running:
                os.kill(one.pid or 0, signal.SIGCONT)


@contextmanager
def frozen_between_chunks(engine: Engine, process: ChildProcess) -> Iterator[None]:
    """The same, at a moment when it has no transaction open, so that none of its sessions is ended meanwhile."""

    def caught() -> bool:
        os.kill(process.pid or 0, signal.SIGSTOP)
        with engine.begin() as connection:
            inside = connection.execute(_IN_A_TRANSACTION, {"process": f"bulklane %:{process.pid}/%"}).scalar_one()
        if inside:
            os.kill(process.pid or 0, signal.SIGCONT)
        return not inside

    until(caught, what="a moment between two chunks")
    try:
        yield
    finally:
        os.kill(process.pid or 0, signal.SIGCONT)


@contextmanager
def without_workers(local: LocalStack, *names: str) -> Iterator[None]:
    """Stop these of the stack's own workers, and start them again afterwards."""
    for name in names:
        local.stack.stop_worker(name)
    try:
        yield
    finally:
        roles = local.workers()
        for name in names:
            local.start_worker(name, roles[name])
        local.wait_until_serving(list(names))


@contextmanager
def swapped(local: LocalStack, *names: str, environment: Mapping[str, str]) -> Iterator[None]:
    """Other processes in the place of these workers, with a changed environment."""
    roles = local.workers()
    with without_workers(local, *names):
        others = [f"other-{name}" for name in names]
        for name in names:
            local.start_worker(f"other-{name}", roles[name], environment)
        local.wait_until_serving(others)
        try:
            yield
        finally:
            for other in others:
                local.stack.stop_worker(other)


async def operator(*words: str) -> str:
    """What the Temporal CLI says; as an operator calls it. Raises AssertionError where it fails."""
    process = await asyncio.create_subprocess_exec(
        str(TEMPORAL), *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, f"temporal {' '.join(words)}: {said.decode()}"
    return said.decode()


async def reset_workflow(job_id: str, where: str, run_id: str = "") -> str:
    """Reset to the first, middle or last workflow task that can be reset to; the new run's id."""
    temporal = await temporal_client()
    history = await temporal.get_workflow_handle(job_id, run_id=run_id or None).fetch_history()
    tasks = [
        event.event_id for event in history.events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]
    request = ResetWorkflowExecutionRequest(
        namespace=temporal.namespace,
        workflow_execution=WorkflowExecution(workflow_id=job_id, run_id=run_id),
        reason="test",
        workflow_task_finish_event_id={"first": tasks[0], "middle": tasks[len(tasks) // 2], "last": tasks[-1]}[where],
        request_id=uuid4().hex,
    )
    return (await temporal.workflow_service.reset_workflow_execution(request)).run_id


async def pending(job_id: str, kind: str) -> dict[str, int]:
    """By id: the attempts of the workflow's activities of a kind that have begun and aren't ended."""
    return {
        one.activity_id: one.attempt
        for one in await _pending(job_id)
        if one.activity_type.name == kind and one.HasField("last_started_time")
    }


async def _pending(job_id: str) -> list[PendingActivityInfo]:
    temporal = await temporal_client()
    request = DescribeWorkflowExecutionRequest(
        namespace=temporal.namespace, execution=WorkflowExecution(workflow_id=job_id)
    )
    return list((await temporal.workflow_service.describe_workflow_execution(request)).pending_activities)


async def walker_of(local: LocalStack, job_id: str) -> ChildProcess:
    """The worker that walks for the job now."""
    names = await until_async(lambda: _walkers(job_id), what=f"a segment of {job_id}")
    # `NAME:PID/...`
    return local.stack.workers[names[0].split(":")[0]]


async def _walkers(job_id: str) -> list[str]:
    return [
        one.last_worker_identity
        for one in await _pending(job_id)
        if one.activity_type.name == "segment" and one.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    ]


@contextmanager
def pooler(database_url: str, most_server_connections: int = 5) -> Iterator[str]:
    """PgBouncer in transaction mode before the database; the URL through it. Skips where the program is missing."""
    if PGBOUNCER is None:
        pytest.skip("PgBouncer is missing: install the Debian package pgbouncer")
    url, port = make_url(database_url), free_port()
    host, number = url.query["host"], url.query["port"]
    account = unprivileged_account() if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="bl-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "users.txt").write_text(f'"{url.username}" ""\n')
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={host} port={number}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
            f"auth_type = trust\nauth_file = {folder}/users.txt\npool_mode = transaction\nunix_socket_dir =\n"
            f"default_pool_size = {most_server_connections}\nmax_client_conn = 400\n"
        )
        command = [PGBOUNCER, str(folder / "pgbouncer.ini")]
        process = ChildProcess("pgbouncer", command, folder / "pgbouncer.log", dict(os.environ), Path("/"), account)
        process.start()
        through = url.set(host="127.0.0.1", port=port, query={})
        try:
            until(lambda: _connects(through.render_as_string()), what=f"PgBouncer: {process.tail_of_log()}")
            yield through.render_as_string()
        finally:
            process.kill()


def _connects(url: str) -> bool:
    try:
        psycopg.connect(url.replace("+psycopg", "", 1), connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def clock_off_by(seconds: int) -> dict[str, str]:
    """The environment of a process whose clock is wrong. Skips where the library is missing."""
    if FAKETIME is None:
        pytest.skip("libfaketime is missing: install the Debian package faketime")
    return {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME": f"{seconds:+d}s",
        # timeouts are measured by this clock, which no wrong setting moves on a real machine either
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def lines_of_logs(processes: Sequence[ChildProcess], sign: str) -> list[str]:
    """The lines with that sign in the logs of these processes, all their starts."""
    logs = {one.log for one in processes}
    return [line for log in sorted(logs) for line in log.read_text(errors="replace").splitlines() if sign in line]
