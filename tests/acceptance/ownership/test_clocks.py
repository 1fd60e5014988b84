"""Clocks that are wrong: of workers, of the control loop, of a client."""

import asyncio
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.stack.processes import ChildProcess
from bulklane.starter.local import LocalStack
from tests.acceptance.ownership.conftest import TIMES
from tests.support.counting import make_items
from tests.support.faults import clock_off_by, held_items, inside_a_chunk, operator, swapped
from tests.support.jobs import finished, scalar
from tests.support.ownership import assert_owned, count_up, delivered, holder, in_state, refused

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

BULKLANE = Path(sys.executable).with_name("bulklane")
MINUTES = 600
_LEASE_SINCE = "SELECT since FROM bulklane.lease JOIN bulklane.job USING (job_no) WHERE job_id = :j"


@pytest.mark.alone
@pytest.mark.case("C25")
async def test_ten_minutes_apart(local: LocalStack, client: Client, engine: Engine) -> None:
    """johanhaleby/occurrent#659: an expiry by one clock, judged by another."""
    fast, slow = clock_off_by(MINUTES), clock_off_by(-MINUTES)
    tenant = make_items(engine, "clocks", 1_000)
    with (
        swapped(local, "bulk-1", "effects-notices", environment=fast),
        swapped(local, "control", environment=slow),
        held_items(engine, tenant, 0.5) as release,
    ):
        assert 540 < seconds_off(local.stack.workers["other-bulk-1"]) < 660
        assert -660 < seconds_off(local.stack.workers["other-control"]) < -540
        job_id = await count_up(client, tenant)
        inside_a_chunk(local, engine)
        since = scalar(engine, _LEASE_SINCE, j=job_id)
        until = time.monotonic() + 2 * TIMES.suspect_after
        while time.monotonic() < until:
            assert job_id in await submitted_by_another_clock(tenant, slow)
            await refused(client, tenant, job_id)
            assert scalar(engine, _LEASE_SINCE, j=job_id) == since
        assert (await client.get(job_id)).state == "walking"
        release()
        assert (await finished(client, job_id)).changed == 1_000
        assert_owned(local, engine, job_id)
        await terminated_and_free(local, client, engine)


def seconds_off(worker: ChildProcess) -> float:
    """How far the clock is off by which the worker has said that it serves."""
    said = next(line for line in worker.tail_of_log(50_000).splitlines() if '"event": "serving"' in line)
    return (datetime.fromisoformat(json.loads(said)["timestamp"]) - datetime.now(UTC)).total_seconds()


async def submitted_by_another_clock(tenant: str, clock: dict[str, str]) -> str:
    """What the command line says of a submission."""
    process = await asyncio.create_subprocess_exec(
        str(BULKLANE), "submit", "count_up", "--tenant", tenant, "--all",
        env={**os.environ, **clock}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode != 0, said
    return said.decode().replace("\n", "")


async def terminated_and_free(local: LocalStack, client: Client, engine: Engine) -> None:
    """The lease of a terminated job is free within the limit."""
    tenant = make_items(engine, "clocks-end", 1_000)
    with held_items(engine, tenant, 0.5):
        job_id = await count_up(client, tenant)
        inside_a_chunk(local, engine)
        await operator("workflow", "terminate", "--workflow-id", job_id)
        await in_state(client, job_id, "terminated", seconds=60)
    assert holder(engine, tenant) is None
    await delivered(client, job_id)
    assert_owned(local, engine, job_id)
