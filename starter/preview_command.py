"""`bulklane preview`: what a job would do."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bulklane.starter.complaints import complaints
from bulklane.starter.options import DEFAULT_FOLDER, AsJson, Folder, Who, Why
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

if TYPE_CHECKING:
    from bulklane.starter.preview import Preview


def preview(
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
    sample: Annotated[int, typer.Option(help="How many records are tried, 1 to 100.")] = 10,
    as_json: AsJson = False,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Show what `submit` with the same options would do: a sample is changed and rolled back. Nothing is stored.

    Exit code 2: it can't be as asked for; 5: a server is away, or the sample is held by others.
    """
    options = {"parallelism": parallelism, "priority": priority, "job_id": job_id, "idempotency_key": idempotency_key}
    named = {"operation": operation, "tenant": tenant, "who": who, "why": why, **options}
    with complaints():
        selected = (ids, ids_file, filters, searches)
        request = read_options(*selected, parameters, assignments, named, every=every, live=live)
        found = asyncio.run(_preview(folder, request | {"sample": sample}))
        from bulklane.starter.show import as_json as json_line
        from bulklane.starter.show import make_console
        from bulklane.starter.show_preview import preview_json, print_preview

        if as_json:
            make_console().print(json_line(preview_json(found)))
        else:
            print_preview(make_console(), found)


async def _preview(folder: Path, request: dict[str, Any]) -> "Preview":
    from bulklane.starter.connect import connected

    async with connected(folder, operations=True) as client:
        return await client.preview(**with_keys(request, client.registry.operations))
