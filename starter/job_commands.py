"""The commands that start jobs and speak to them."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bulklane.starter.complaints import complaints
from bulklane.starter.options import DEFAULT_FOLDER, AsJson, Folder, JobId, Who, Why
from bulklane.starter.request_options import (
    Assignments,
    Every,
    Filters,
    IdempotencyKey,
    Ids,
    IdsFile,
    Live,
    Operation,
    Parallelism,
    Parameters,
    Priority,
    Searches,
    Tenant,
    WantedJobId,
    read_options,
    with_keys,
)

# What a command needs is imported when it runs: `--help` answers at once, and without any server's library.
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bulklane.starter.client import Client
    from bulklane.starter.status import JobStatus
    from bulklane.starter.verify import Report


def submit(
    operation: Operation,
    tenant: Tenant,
    ids: Ids = None,
    ids_file: IdsFile = None,
    filters: Filters = None,
    searches: Searches = None,
    every: Every = False,
    live: Live = False,
    parameters: Parameters = None,
    assignments: Assignments = None,
    job_id: WantedJobId = None,
    idempotency_key: IdempotencyKey = None,
    parallelism: Parallelism = None,
    priority: Priority = None,
    who: Who = None,
    why: Why = "",
    watching: Annotated[bool, typer.Option("--watch", help="Watch the job until it is over.")] = False,
    as_json: AsJson = False,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Start a job. Exit code 2: it can't be as asked for; 3: another job owns the data; 5: a server is away."""
    options = {"parallelism": parallelism, "priority": priority, "job_id": job_id, "idempotency_key": idempotency_key}
    named = {"operation": operation, "tenant": tenant, "who": who, "why": why, **options}
    with complaints():
        selected = (ids, ids_file, filters, searches)
        request = read_options(*selected, parameters, assignments, named, every=every, live=live)
        _finish(asyncio.run(_submit(folder, request, watching=watching, as_json=as_json)))


async def _submit(folder: Path, request: dict[str, Any], *, watching: bool, as_json: bool) -> "JobStatus | None":
    from bulklane.starter.connect import connected, watch_job
    from bulklane.starter.show import as_json as json_line
    from bulklane.starter.show import make_console, status_json, submission_line

    async with connected(folder, operations=True) as client:
        request = with_keys(request, client.registry.operations)
        submission = await client.submit(**{"who": client.who, **request})
        status = await client.get(submission.job_id)
        told = {**status_json(status), "replayed": submission.replayed}
        make_console().print(json_line(told) if as_json else submission_line(submission, status))
        if not watching:
            return None
        return await watch_job(client, submission.job_id, json_lines=as_json)


def _finish(status: "JobStatus | None") -> None:
    if status is not None and status.state != "completed":
        raise typer.Exit(1)


def status(job_id: JobId, as_json: AsJson = False, folder: Folder = DEFAULT_FOLDER) -> None:
    """Show where a job stands. Exit code 4: there is no such job."""

    async def ask(client: "Client") -> "JobStatus":
        return await client.get(job_id)

    with complaints():
        _print(asyncio.run(_with_client(folder, ask)), as_json=as_json)


def watch(job_id: JobId, as_json: AsJson = False, folder: Folder = DEFAULT_FOLDER) -> None:
    """Watch a job until it is over. Exit code 0: completed; 1: ended otherwise; 4: there is no such job."""

    async def ask(client: "Client") -> "JobStatus":
        from bulklane.starter.connect import watch_job

        return await watch_job(client, job_id, json_lines=as_json)

    with complaints():
        _finish(asyncio.run(_with_client(folder, ask)))


def pause(
    job_id: JobId, why: Why = "", who: Who = None, as_json: AsJson = False, folder: Folder = DEFAULT_FOLDER
) -> None:
    """Pause a job: `pausing` until no chunk can commit any more, then `paused`. It keeps its lease."""
    _say("pause", job_id, why, who, as_json, folder)


def resume(
    job_id: JobId, why: Why = "", who: Who = None, as_json: AsJson = False, folder: Folder = DEFAULT_FOLDER
) -> None:
    """Resume a paused job."""
    _say("resume", job_id, why, who, as_json, folder)


def cancel(
    job_id: JobId, why: Why = "", who: Who = None, as_json: AsJson = False, folder: Folder = DEFAULT_FOLDER
) -> None:
    """Cancel a job: no further chunk; the effects of committed chunks are still delivered. Final."""
    _say("cancel", job_id, why, who, as_json, folder)


def throttle(
    job_id: JobId,
    rows_per_second: Annotated[float | None, typer.Option(help="Over all ranges of the job.")] = None,
    parallelism: Annotated[int | None, typer.Option(help="Ranges walked side by side.")] = None,
    lift: Annotated[bool, typer.Option("--lift", help="Take the limits away.")] = False,
    why: Why = "",
    who: Who = None,
    as_json: AsJson = False,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Limit a job's speed from its next chunk on. Replaces the throttle before as a whole; stands until it is lifted.

    Exit code 2: a limit can't be as asked for.
    """
    from bulklane.contracts.message import read_throttle

    with complaints():
        read_throttle(rows_per_second, parallelism, lift=lift)
    given = {} if lift else {"rows_per_second": rows_per_second, "parallelism": parallelism}
    _say("lift_throttle" if lift else "throttle", job_id, why, who, as_json, folder, **given)


def retry(
    job_id: JobId, why: Why = "", who: Who = None, as_json: AsJson = False, folder: Folder = DEFAULT_FOLDER
) -> None:
    """Re-open a job that ended with failures: its failed and not started records, and what providers refused."""
    from bulklane.starter.arguments import check_texts

    async def ask(client: "Client") -> "JobStatus":
        seen = await client.get(job_id)
        by = client.who if who is None else who
        retried = await client.retry(job_id, of_round=seen.round, who=by, why=why)
        typer.echo(
            f"round {retried.job.round}: {retried.records:,} records and {retried.deliveries:,} deliveries re-opened"
            + (f"; {retried.refused}" if retried.refused else ""),
            err=True,
        )
        return await client.get(job_id)

    with complaints():
        check_texts({"JOB": job_id, "--who": who, "--why": why})
        _print(asyncio.run(_with_client(folder, ask)), as_json=as_json)


def _say(verb: str, job_id: str, why: str, who: str | None, as_json: bool, folder: Path, **given: Any) -> None:
    from bulklane.starter.arguments import check_texts

    async def ask(client: "Client") -> "JobStatus":
        before = await client.get(job_id)
        if before.over:
            typer.echo(f"the job is over ({before.state}) already: nothing is changed", err=True)
            return before
        by = client.who if who is None else who
        after: JobStatus = await getattr(client, verb)(job_id, who=by, why=why, **given)
        return after

    with complaints():
        check_texts({"JOB": job_id, "--who": who, "--why": why})
        _print(asyncio.run(_with_client(folder, ask)), as_json=as_json)


def verify(job_id: JobId, as_json: AsJson = False, folder: Folder = DEFAULT_FOLDER) -> None:
    """Check a job's balance against input, audit, index and providers. Exit code 0: it holds; 1: it differs."""
    with complaints():
        report = asyncio.run(_verify(folder, job_id))
        from bulklane.starter.show import as_json as json_line
        from bulklane.starter.show import make_console, print_report, report_json

        if as_json:
            make_console().print(json_line(report_json(report)))
        else:
            print_report(make_console(), report)
        if not report.holds:
            raise typer.Exit(1)


async def _verify(folder: Path, job_id: str) -> "Report":
    from bulklane.starter.connect import connected
    from bulklane.starter.settings import ChannelsSettings
    from bulklane.starter.verify import verify_job

    async with connected(folder, operations=True) as client:
        endpoints = ChannelsSettings().endpoints()
        return await asyncio.to_thread(verify_job, client.engine, client.registry, job_id, endpoints)


async def _with_client(folder: Path, ask: "Callable[[Client], Awaitable[JobStatus]]") -> "JobStatus":
    from bulklane.starter.connect import connected

    async with connected(folder) as client:
        return await ask(client)


def _print(found: "JobStatus", *, as_json: bool) -> None:
    from bulklane.starter.show import as_json as json_line
    from bulklane.starter.show import make_console, print_status, status_json

    if as_json:
        make_console().print(json_line(status_json(found)))
    else:
        print_status(make_console(), found)
