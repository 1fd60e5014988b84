"""Throttling on the real parts: by client, command line and signal, while two workers walk."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import Engine, text
from typer.testing import CliRunner

from bulklane import Client, InvalidRequest
from bulklane.starter.cli import app
from bulklane.starter.local import LocalStack
from tests.support.jobs import assert_balance, finished, submit, temporal_client
from tests.support.waiting import until_async

pytestmark = pytest.mark.anyio

_WALKED = text(
    """SELECT sum(hi - lo) OVER (ORDER BY written_at), extract(epoch FROM written_at)::float8
       FROM bulklane.chunk JOIN bulklane.job USING (job_no) WHERE job_id = :job ORDER BY written_at"""
)


def walked(engine: Engine, job_id: str) -> list[tuple[int, float]]:
    """How many records were walked at each chunk's time."""
    with engine.connect() as connection:
        return [(int(records), float(at)) for records, at in connection.execute(_WALKED, {"job": job_id})]


async def processed(client: Client, job_id: str, least: int) -> None:
    """Wait until so many are."""

    async def enough() -> bool:
        return (await client.get(job_id)).processed >= least

    await until_async(enough, what=f"{least} processed")


async def throttle_by_command(*words: str) -> str:
    """What the command line says."""
    result: Any = await asyncio.to_thread(CliRunner().invoke, app, ["throttle", *words])
    assert result.exit_code == 0, result.output
    return str(result.output)


async def test_a_job_is_throttled_by_client_command_and_signal(
    local: LocalStack, client: Client, flights_engine: Engine
) -> None:
    with flights_engine.connect() as connection:
        select = "SELECT flight_id FROM flights WHERE carrier = 'DL' ORDER BY flight_id LIMIT 600"
        ids = [str(one) for one in connection.execute(text(select)).scalars()]
    job_id = await submit(client, "DL", {"ids": ids})
    status = await client.throttle(job_id, rows_per_second=20, who="ann", why="day")
    assert status.throttle is not None
    assert (status.throttle.rows_per_second, status.throttle.parallelism, status.throttle.who) == (20.0, None, "ann")
    begun = status.processed
    await processed(client, job_id, begun + 60)
    curve = [point for point in walked(flights_engine, job_id) if point[0] > begun + 10]
    rate = (curve[-1][0] - curve[0][0]) / (curve[-1][1] - curve[0][1])
    assert 15 < rate < 30, f"{rate:.1f} rows/s by two workers"
    assert (await client.get(job_id)).slowed_by == ("the throttle allows 20 rows/s",)
    with pytest.raises(InvalidRequest, match="parallelism: 3 is more than the 2 ranges"):
        await client.throttle(job_id, parallelism=3)

    told = await throttle_by_command(job_id, "--rows-per-second", "10", "--parallelism", "1", "--who", "bob")
    assert "10 rows/s, 1 ranges side by side, bob" in told
    handle = (await temporal_client()).get_workflow_handle(job_id)

    async def held() -> bool:
        waits = (await handle.query("status"))["waits"]
        return bool(waits.get("range 1") == "the throttle lets 1 ranges walk side by side")

    await until_async(held, what="the second range waits in the workflow, without a slot")
    await handle.signal("throttle", args=["fast"])

    async def noted() -> bool:
        return "rows_per_second: 'fast' is no number" in (await handle.query("status")).get("ignored", "")

    await until_async(noted, what="the note")
    assert (await client.get(job_id)).processed < 500

    await handle.signal("throttle", {"lift": True, "who": "cy"})
    status = await finished(client, job_id)
    assert (status.state, status.changed, status.throttle, status.slowed_by) == ("completed", 600, None, ())
    assert_balance(local, flights_engine, job_id)
