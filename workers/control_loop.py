"""The control loop: in every control worker, any number of them; each may die at any time.

It starts what isn't opened, steps in where a wish isn't heard, settles what is dead, and has delivered what is owed by
jobs that are over. It reads first, asks Temporal, and acts only where what it read still holds.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TypeVar

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from bulklane.contracts.job import JobState
from bulklane.contracts.lane import JOBS_QUEUE
from bulklane.contracts.start import start_options
from bulklane.contracts.timing import Timing
from bulklane.database import control
from bulklane.database.advance import JobMovedOn, advance, settle
from bulklane.database.control import Named, Suspect
from bulklane.database.engine import limited_transaction
from bulklane.database.wish import note_heard

UNOPENED_SECONDS = 1.0
UNHEARD_SECONDS = 2.0
MOST = 100
_AWAY = (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.RESOURCE_EXHAUSTED)

T = TypeVar("T")
log = structlog.get_logger("bulklane.control_loop")


@contextlib.contextmanager
def _one_job(job_id: str) -> Iterator[None]:
    """One job that can't be helped now must not starve those behind it; a server that is away ends the step."""
    try:
        yield
    except (SQLAlchemyError, RPCError) as error:
        if isinstance(error, RPCError) and error.status in _AWAY:
            raise
        log.warning("job passed over", job_id=job_id, error=type(error).__name__)


class ControlLoop:
    """One process's control loop."""

    def __init__(self, engine: Engine, client: Client, timing: Timing, process: str) -> None:
        self._engine = engine
        self._client = client
        self._timing = timing
        self._process = process

    async def run(self) -> None:
        """Round after round, until cancelled. A database or server that is away ends a step, never the loop."""
        steps: Sequence[Callable[[], Awaitable[None]]] = (
            self._start_unopened,
            self._hear_wishes,
            self._ask_about_suspects,
            self._deliver_owed,
        )
        while True:
            for step in steps:
                try:
                    await step()
                except (SQLAlchemyError, RPCError) as error:
                    log.warning("step failed", step=step.__name__.strip("_"), error=type(error).__name__)
            await asyncio.sleep(self._timing.control_interval)

    async def _start_unopened(self) -> None:
        found = await self._read(lambda c: control.unopened(c, older_than=UNOPENED_SECONDS, most=MOST))
        for job in found:
            options = start_options(
                job.job_id, job.operation, job.tenant, job.lane, job.priority, self._timing.workflow_task_timeout
            )
            with _one_job(job.job_id), contextlib.suppress(WorkflowAlreadyStartedError):
                await self._client.start_workflow("BulkJob", **options)

    async def _hear_wishes(self) -> None:
        for job in await self._read(lambda c: control.unheard(c, older_than=UNHEARD_SECONDS, most=MOST)):
            with _one_job(job.job_id):
                await asyncio.to_thread(self._advance, job)
                await self._client.get_workflow_handle(job.job_id).signal("look")

    async def _ask_about_suspects(self) -> None:
        silent = self._timing.suspect_after
        for suspect in await self._read(lambda c: control.suspects(c, silent_for=silent, most=MOST)):
            with _one_job(suspect.job_id):
                await self._ask_about(suspect)

    async def _ask_about(self, suspect: Suspect) -> None:
        state, reason = await self._verdict(suspect)
        if state is None:
            await self._read(partial(note_heard, job_no=suspect.job_no, heard_by=self._process))
        elif await asyncio.to_thread(self._settle, suspect, state, reason):
            log.info("settled", job_id=suspect.job_id, state=str(state), reason=reason)

    async def _verdict(self, suspect: Suspect) -> tuple[JobState | None, str]:
        """Temporal's word on the job's workflow: how the job ends, or None where it is alive."""
        try:
            status = (await self._client.get_workflow_handle(suspect.job_id).describe()).status
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return JobState.FAILED, "Temporal knows no such workflow any more"
        if status in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW):
            return None, ""
        if status is WorkflowExecutionStatus.TERMINATED:
            return JobState.TERMINATED, "the workflow was terminated"
        name = "closed" if status is None else status.name.lower().replace("_", " ")
        return JobState.FAILED, f"the workflow is {name} before the job was over"

    async def _deliver_owed(self) -> None:
        for job in await self._read(lambda c: control.owing(c, most=MOST)):
            with _one_job(job.job_id), contextlib.suppress(WorkflowAlreadyStartedError):
                await self._client.start_workflow(
                    "DeliverOwed",
                    job.job_no,
                    id=f"{job.job_id}/owed",
                    task_queue=JOBS_QUEUE,
                    id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                    task_timeout=timedelta(seconds=self._timing.workflow_task_timeout),
                    static_summary=f"effects still owed by {job.job_id}",
                )

    def _advance(self, job: Named) -> None:
        seconds = self._timing.shift_statement_timeout
        with limited_transaction(self._engine, statement=seconds, transaction=seconds + 5) as connection:
            advance(connection, job.job_no, heard_by=self._process)

    def _settle(self, suspect: Suspect, state: JobState, reason: str) -> bool:
        seconds = self._timing.shift_statement_timeout
        try:
            with limited_transaction(self._engine, statement=seconds, transaction=seconds + 5) as connection:
                return settle(
                    connection,
                    suspect.job_no,
                    round_no=suspect.round,
                    run_id=suspect.run_id,
                    epochs=suspect.epochs,
                    state=state,
                    reason=reason,
                )
        except JobMovedOn:
            return False

    async def _read(self, question: Callable[[Connection], T]) -> T:
        def ask() -> T:
            with self._engine.begin() as connection:
                return question(connection)

        return await asyncio.to_thread(ask)
