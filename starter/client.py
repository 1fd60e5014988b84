"""The Python client: submit, preview, get, wait, watch, pause, resume, cancel, throttle, retry, decide, channels."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self
from uuid import uuid4

from sqlalchemy import Connection, Engine
from temporalio.client import Client as TemporalClient
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from bulklane.contracts.message import Decision, InvalidThrottle, Throttle, Verb, VerbMessage, read_throttle
from bulklane.contracts.start import start_options
from bulklane.database.accept import Accepted
from bulklane.database.advance import apply_message
from bulklane.database.decide import Decided
from bulklane.database.engine import connect_engine
from bulklane.database.job import Job, JobUnknown, find_job
from bulklane.database.range import count_ranges
from bulklane.database.retry import Retried
from bulklane.database.undecided import MOST, Undecided
from bulklane.operations.channel import ChannelSettings, Endpoint
from bulklane.operations.operation import Registry
from bulklane.operations.registry import load_registry
from bulklane.operations.request import InvalidRequest, Problem
from bulklane.starter.accept import accept_request, retry_job
from bulklane.starter.channels import ChannelStatus, end_hold, read_channels
from bulklane.starter.decide import list_undecided, write_decisions
from bulklane.starter.preview import Preview
from bulklane.starter.previewing import Previewer
from bulklane.starter.settings import ChannelsSettings, StarterSettings
from bulklane.starter.status import JobStatus, read_status

START_SECONDS = 2.0
CONNECT_SECONDS = 2.0


@dataclass(frozen=True)
class Submission:
    """An accepted job. `replayed`: the same request had been accepted before; this call stored nothing."""

    job_id: str
    lane: str
    replayed: bool


@dataclass
class Client:
    """Starts jobs and speaks to them. One per event loop.

    Everything is written to the database first: with Temporal away a submission is accepted all the same, and the
    control loop starts it.
    """

    engine: Engine
    registry: Registry
    small_max_records: int
    workflow_task_timeout: float = 5.0
    who: str = ""
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    channel_settings: Mapping[str, ChannelSettings] = field(default_factory=dict)
    _temporal: TemporalClient | None = field(default=None, repr=False)

    @classmethod
    def connect(cls, settings: StarterSettings | None = None) -> Self:
        """A client of the environment's settings. Raises pydantic's ValidationError naming each bad variable."""
        known, channels = settings or StarterSettings(), ChannelsSettings()
        return cls(
            engine=connect_engine(known.database_url, role="client", pool_size=known.pool_size),
            registry=load_registry(known.modules()),
            small_max_records=known.small_max_records,
            workflow_task_timeout=known.workflow_task_timeout,
            who=known.who,
            endpoints=channels.endpoints(),
            channel_settings=channels.channels,
        )

    async def __aenter__(self) -> Self:
        """The client itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Give up the connections."""
        self.engine.dispose()

    async def submit(
        self,
        operation: str,
        *,
        tenant: str,
        selection: Mapping[str, Any],
        parameters: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        job_id: str | None = None,
        **options: Any,
    ) -> Submission:
        """Accept a job and start it.

        `selection`: one of {"ids": [...]}, {"filter": {...}}, {"search": {...}}, {"all": True}; to filter and all,
        "live": True adds that they are walked in key order, without freezing keys first.
        `options`: parallelism, priority, who, why.
        Repeating a call with the same `idempotency_key` or `job_id` gives the same job.
        Raises InvalidRequest, Conflict (another job owns the data; its `holder` tells which) and JobIdReused.
        """
        raw: dict[str, Any] = {
            "operation": operation,
            "tenant": tenant,
            "selection": selection,
            "parameters": dict(parameters or {}),
            "who": self.who,
            **options,
        }
        raw |= {} if idempotency_key is None else {"idempotency_key": idempotency_key}
        raw |= {} if job_id is None else {"job_id": job_id}
        accepted = await asyncio.to_thread(
            accept_request, self.engine, self.registry, raw, self.small_max_records, self.endpoints
        )
        await self._start(accepted)
        return Submission(accepted.job.job_id, accepted.job.lane, accepted.replayed)

    async def preview(
        self,
        operation: str,
        *,
        tenant: str,
        selection: Mapping[str, Any],
        parameters: Mapping[str, Any] | None = None,
        sample: int = 10,
        **options: Any,
    ) -> Preview:
        """What `submit` with the same arguments would do, by a sample of 1 to 100 records whose change is rolled back.

        Nothing is stored, no lease is taken, no effect leaves. `options`: all that `submit` takes.
        Raises InvalidRequest and JobIdReused as `submit` does, OperationError for a bug of the operation, with its
        place, and PreviewUnable where the sample can't be had now, such as when others hold one of its rows.
        """
        raw = {
            "operation": operation,
            "tenant": tenant,
            "selection": selection,
            "parameters": dict(parameters or {}),
            "who": self.who,
            **{name: value for name, value in options.items() if value is not None},
        }
        previewer = Previewer(self.engine, self.registry, self.small_max_records, self.endpoints, self.channel_settings)
        return await asyncio.to_thread(previewer.preview, raw, sample)

    async def get(self, job_id: str, *, tenant: str | None = None) -> JobStatus:
        """The job's status now. Raises JobUnknown, also for another tenant's job."""

        def read() -> JobStatus:
            with self.engine.connect() as connection:
                return read_status(connection, job_id, tenant)

        return await asyncio.to_thread(read)

    async def watch(self, job_id: str, *, tenant: str | None = None, every: float = 0.5) -> AsyncIterator[JobStatus]:
        """The job's status every so many seconds, the last one when it is over. Raises JobUnknown."""
        while True:
            status = await self.get(job_id, tenant=tenant)
            yield status
            if status.over:
                return
            await asyncio.sleep(every)

    async def wait(self, job_id: str, *, tenant: str | None = None, seconds: float | None = None) -> JobStatus:
        """The job's status when it is over. Raises TimeoutError after so many seconds, and JobUnknown."""
        async with asyncio.timeout(seconds):
            async for status in self.watch(job_id, tenant=tenant, every=0.2):
                if status.over:
                    return status
        raise AssertionError("a watch ends only with a job that is over")

    async def pause(self, job_id: str, **message: str) -> JobStatus:
        """Pause: `pausing` at once, `paused` when no chunk can commit any more.

        `message`: who, why, tenant, message_id.
        """
        return await self._say(job_id, Verb.PAUSE, **message)

    async def resume(self, job_id: str, **message: str) -> JobStatus:
        """Resume a paused job."""
        return await self._say(job_id, Verb.RESUME, **message)

    async def cancel(self, job_id: str, **message: str) -> JobStatus:
        """Cancel: no further chunk; the effects of committed chunks are still delivered. Final."""
        return await self._say(job_id, Verb.CANCEL, **message)

    async def throttle(
        self,
        job_id: str,
        *,
        rows_per_second: float | None = None,
        parallelism: int | None = None,
        **message: str,
    ) -> JobStatus:
        """Let the job walk so many rows a second over all its ranges, and so many ranges side by side.

        It holds from the next chunk on, replaces the throttle before as a whole, and stands until it is lifted, over
        rounds too. `message`: as for pause. Raises InvalidRequest and JobUnknown.
        """
        try:
            throttle = read_throttle(rows_per_second, parallelism)
        except InvalidThrottle as error:
            raise InvalidRequest([Problem(error.field, error.rule)]) from None
        return await self._say(job_id, Verb.THROTTLE, throttle, **message)

    async def lift_throttle(self, job_id: str, **message: str) -> JobStatus:
        """Let the job walk as fast as it can again. `message`: as for pause."""
        return await self._say(job_id, Verb.THROTTLE, Throttle(), **message)

    async def retry(
        self,
        job_id: str,
        *,
        of_round: int | None = None,
        tenant: str | None = None,
        who: str = "",
        why: str = "",
        message_id: str = "",
    ) -> Retried:
        """Re-open a job that ended with failures: its failed and not started records, and what providers refused.

        `of_round`: the round that was seen, so that pressing twice makes one. The answer says what was re-opened, and
        why not all. Raises JobUnknown, and Conflict where another job owns the data now.
        """
        message = VerbMessage(message_id or str(uuid4()), Verb.RETRY, who or self.who, why)
        retried = await asyncio.to_thread(
            retry_job,
            self.engine,
            job_id,
            message,
            tenant=tenant,
            of_round=of_round,
            small_max_records=self.small_max_records,
        )
        if retried.records or retried.deliveries:
            await self._start(Accepted(retried.job, replayed=False))
        return retried

    async def channels(self) -> list[ChannelStatus]:
        """Every channel: its limits, what blocks or holds it, and what is owed there."""
        return await asyncio.to_thread(read_channels, self.engine, self.registry.channels)

    async def resume_channel(self, name: str) -> bool:
        """End a channel's hold: its deliveries go on within two seconds. False where it wasn't held.

        Raises ChannelUnknown.
        """
        return await asyncio.to_thread(end_hold, self.engine, self.registry.channels, name)

    async def undecided(self, job_id: str, *, effect: str | None = None, tenant: str | None = None) -> list[Undecided]:
        """The deliveries of which nobody can find out whether they happened. Raises JobUnknown."""
        return await asyncio.to_thread(list_undecided, self.engine, job_id, tenant=tenant, effect=effect)

    async def decide(
        self,
        job_id: str,
        decisions: Sequence[Decision],
        *,
        tenant: str | None = None,
        who: str = "",
        why: str = "",
        message_id: str = "",
    ) -> list[Decided]:
        """Decide undecided deliveries, each for the doubt that was shown; the job may be over.

        The answers, in the order of the decisions, say what could not be done and why. Raises JobUnknown.
        """
        message_id = message_id or str(uuid4())
        pages = [tuple(decisions[first : first + MOST]) for first in range(0, len(decisions), MOST)]
        messages = [
            VerbMessage(
                f"{message_id}/{number}" if number else message_id,
                Verb.DECIDE,
                who or self.who,
                why,
                decisions=page,
            )
            for number, page in enumerate(pages)
        ]
        answers = await asyncio.to_thread(write_decisions, self.engine, job_id, messages, tenant=tenant)
        await self._nudge(job_id)
        return answers

    async def _say(
        self,
        job_id: str,
        verb: Verb,
        throttle: Throttle | None = None,
        /,
        *,
        tenant: str | None = None,
        who: str = "",
        why: str = "",
        message_id: str = "",
    ) -> JobStatus:
        message = VerbMessage(message_id or str(uuid4()), verb, who or self.who, why, throttle)

        def write() -> Job:
            with self.engine.begin() as connection:
                job = find_job(connection, job_id, tenant)
                if job is None:
                    raise JobUnknown(f"there is no job {job_id!r}")
                _check_ranges(connection, job, throttle)
                return apply_message(connection, job.job_no, message)

        await asyncio.to_thread(write)
        await self._nudge(job_id)
        return await self.get(job_id, tenant=tenant)

    async def _nudge(self, job_id: str) -> None:
        """The row is what counts: without the signal the control loop sees it within two seconds."""
        with contextlib.suppress(RPCError, RuntimeError, TimeoutError):
            temporal = await self._connected()
            await temporal.get_workflow_handle(job_id).signal("look", rpc_timeout=timedelta(seconds=START_SECONDS))

    async def _start(self, accepted: Accepted) -> None:
        """Start the workflow; a start that fails is made up for by the control loop."""
        job = accepted.job
        if job.over or job.opened_round == job.round:
            return
        options = start_options(
            job.job_id, job.operation, job.tenant, job.lane, job.priority, self.workflow_task_timeout
        )
        with contextlib.suppress(WorkflowAlreadyStartedError, RPCError, RuntimeError, TimeoutError):
            temporal = await self._connected()
            await temporal.start_workflow("BulkJob", **options, rpc_timeout=timedelta(seconds=START_SECONDS))

    async def _connected(self) -> TemporalClient:
        if self._temporal is None:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._temporal = await TemporalClient.connect(**ClientConfig.load_client_connect_config())
        return self._temporal


def _check_ranges(connection: Connection, job: Job, throttle: Throttle | None) -> None:
    wanted = None if throttle is None else throttle.parallelism
    cut = count_ranges(connection, job.job_no, job.round)
    if wanted is not None and cut and wanted > cut:
        rule = f"{wanted} is more than the {cut} ranges into which the job was cut when its selection was frozen"
        raise InvalidRequest([Problem("parallelism", f"{rule}; submit with a higher parallelism, or name less")])
