"""Over the real stack: how soon a small job's effects leave, and what a throttled provider does to another's jobs."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

from sqlalchemy import Engine, text

from benchmarks.measure import console
from bulklane import Client
from bulklane.database.engine import connect_engine
from bulklane.starter.local import LocalStack, local_stack
from bulklane.starter.settings import StackSettings
from tests.support.arrivals import in_parts
from tests.support.calling import MODULE, Ledger
from tests.support.counting import make_items
from tests.support.waiting import until_async

SMALL_JOBS = 15
THROTTLED_CALLS = 3000
THROTTLED = {"kind": "rate_limit", "share": 0.97, "retry_after": "1"}
PATIENCE = 60.0

_TIMES = text("""
SELECT extract(epoch FROM max(written_at))::float8 AS committed,
       extract(epoch FROM over_at - accepted_at)::float8 AS seconds
FROM bulklane.job JOIN bulklane.chunk USING (job_no) WHERE job_id = :job GROUP BY accepted_at, over_at
""")


@dataclass(frozen=True)
class OverStack:
    """Milliseconds: from a commit to the call's arrival, and the p50s of a round's small jobs without and with."""

    delays: list[float]
    quiet: list[float]
    beside_throttled: list[float]

    @property
    def latency(self) -> float:
        """The p50."""
        return median(self.delays)

    @property
    def unrelated(self) -> float:
        """The median over the rounds."""
        return median(there / here for here, there in zip(self.quiet, self.beside_throttled, strict=True))


def measure(rounds: int) -> OverStack:
    """A stack of its own, two providers."""
    with tempfile.TemporaryDirectory(prefix="bl-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        settings = StackSettings(folder=Path(folder), operations=MODULE, bulk_workers=1)
        with local_stack(settings, worker_environment={"BULKLANE_SMALL_MAX_RECORDS": "100"}) as local:
            os.environ.update(local.environment | {"BULKLANE_SMALL_MAX_RECORDS": "100"})
            engine = connect_engine(local.addresses.database_url, role="bench", pool_size=2)
            try:
                return asyncio.run(_measure(local, engine, rounds))
            finally:
                engine.dispose()


async def _measure(local: LocalStack, engine: Engine, rounds: int) -> OverStack:
    calls, slow = Ledger(local.endpoints["limited"].url), Ledger(local.endpoints["slow"].url)
    found = OverStack([], [], [])
    async with Client.connect() as client:
        # the first jobs of a worker are slower
        await _small_jobs(client, engine, calls)
        tenant = make_items(engine, "throttled", THROTTLED_CALLS)
        slow.misbehave(THROTTLED)
        throttled = (await in_parts(client, "call_slow", tenant, 1))[0]
        for number in range(rounds):
            async with _paused(client, throttled):
                delays, quiet = await _small_jobs(client, engine, calls)
            beside = (await _small_jobs(client, engine, calls))[1]
            if (await client.get(throttled)).over:
                raise RuntimeError("the throttled job is over: nothing was measured beside it")
            found.delays.extend(delays)
            found.quiet.append(quiet)
            found.beside_throttled.append(beside)
            console.print(
                f"round {number + 1}  a small job, p50: {quiet:.0f} ms, beside a throttled provider {beside:.0f} ms;"
                f" commit to arrival {median(delays):.0f} ms"
            )
    calls.close()
    slow.close()
    return found


@asynccontextmanager
async def _paused(client: Client, job: str) -> AsyncIterator[None]:
    await client.pause(job)

    async def stands() -> bool:
        status = await client.get(job)
        return status.state == "paused" and status.calls_out == 0

    await until_async(stands, PATIENCE, what="the throttled job is paused")
    yield
    await client.resume(job)

    async def goes_on() -> bool:
        return (await client.get(job)).state != "paused"

    await until_async(goes_on, PATIENCE, what="the throttled job goes on")


async def _small_jobs(client: Client, engine: Engine, calls: Ledger) -> tuple[list[float], float]:
    """One after another: from each commit to its call, and the p50 of their times from accepted to over."""
    delays, seconds = [], []
    for _ in range(SMALL_JOBS):
        job = (await in_parts(client, "call_limited", make_items(engine, "quick", 1), 1))[0]
        await client.wait(job, seconds=PATIENCE)
        with engine.connect() as connection:
            times = connection.execute(_TIMES, {"job": job}).one()
        arrived = datetime.fromisoformat(calls.calls(job)[0]["time"]).timestamp()
        delays.append((arrived - times.committed) * 1000)
        seconds.append(times.seconds * 1000)
    return delays, median(seconds)
