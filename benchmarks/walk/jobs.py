"""Our walk: a job by the client, its segments in a bulk worker, Temporal between them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text
from temporalio.client import Client as TemporalClient
from temporalio.envconfig import ClientConfig

from benchmarks.walk.table import TENANT
from bulklane import Client
from bulklane.starter.local import LocalStack

# a look costs the database some milliseconds
_POLL = 0.5
_DEADLINE = 1_200.0

_SECONDS = text("""
SELECT extract(epoch FROM max(written_at))::float8 - min(chunk.epoch) / 1e6 AS walk,
       extract(epoch FROM selected_at - opened_at)::float8 AS before,
       count(*) AS chunks, sum(chunk.changed) AS changed
FROM bulklane.job JOIN bulklane.selection USING (selection_no) JOIN bulklane.chunk USING (job_no)
WHERE job_id = :job
GROUP BY selected_at, opened_at
""")


@dataclass(frozen=True)
class Walked:
    """One job's walk: seconds from when its first segment was scheduled to its last commit; before that, its freeze."""

    job_id: str
    seconds: float
    freeze_seconds: float
    chunks: int
    changed: int
    events: int
    memory: Mapping[str, tuple[int, int]]
    """Of each bulk worker: resident kilobytes when a tenth was walked, and at the end."""


def walk(local: LocalStack, engine: Engine, operation: str, *, live: bool = False, **options: Any) -> Walked:
    """Walk the whole table. Its effects stay owed: no worker is there to send them beside the next contender."""
    return asyncio.run(_walk(local, engine, operation, live, options))


async def _walk(local: LocalStack, engine: Engine, operation: str, live: bool, options: Mapping[str, Any]) -> Walked:
    early: dict[str, int] = {}
    selection = {"all": True, "live": live}
    async with Client.connect() as client, asyncio.timeout(_DEADLINE):
        job = await client.submit(operation, tenant=TENANT, selection=selection, **options)
        while (status := await client.get(job.job_id)).state in ("accepted", "opening", "freezing", "walking"):
            if not early and status.total and status.processed > status.total / 10:
                early = memory(local)
            await asyncio.sleep(_POLL)
        late = memory(local)
    with engine.connect() as connection:
        row = connection.execute(_SECONDS, {"job": job.job_id}).one()
    temporal = await TemporalClient.connect(**ClientConfig.load_client_connect_config())
    handle = temporal.get_workflow_handle(job.job_id)
    events = len((await handle.fetch_history()).events)
    await handle.terminate("walked")
    both = {name: (early.get(name, late[name]), late[name]) for name in late}
    return Walked(job.job_id, row.walk, row.before, row.chunks, row.changed, events, both)


def memory(local: LocalStack) -> dict[str, int]:
    """The resident kilobytes of each bulk worker; empty where the machine doesn't say."""
    found = {}
    for name, process in local.stack.workers.items():
        status = Path(f"/proc/{process.pid}/status")
        if name.startswith("bulk") and status.exists():
            found[name] = int(status.read_text().split("VmRSS:")[1].split()[0])
    return found
