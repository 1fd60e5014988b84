"""Decisions on the real parts: a job that is over has undecided deliveries, and a person decides by command line."""

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner

from bulklane import Client
from bulklane.starter.cli import app
from bulklane.starter.local import LocalStack
from bulklane.starter.verify import verify_job
from tests.support.jobs import assert_balance, finished, run, submit
from tests.support.waiting import until_async

pytestmark = pytest.mark.anyio

# as if the provider could not be asked any more when their senders died
DOUBT = """
UPDATE bulklane.delivery SET state = 'undecided', doubt = 1, settled_at = now() WHERE (job_no, effect, key) IN (
  SELECT job_no, effect, key FROM bulklane.delivery JOIN bulklane.job USING (job_no)
  WHERE job_id = :job ORDER BY key LIMIT 4)
"""


@pytest.fixture
def provider(local: LocalStack) -> Iterator[httpx.Client]:
    """The notice provider."""
    with httpx.Client(base_url=local.endpoints["notices"].url) as connected:
        yield connected


async def bulklane(*words: str) -> tuple[int, list[str]]:
    """A command's exit code and what it prints."""
    result = await asyncio.to_thread(CliRunner().invoke, app, list(words))
    return result.exit_code, result.stdout.splitlines()


async def test_undecided_deliveries_of_a_job_that_is_over(
    local: LocalStack, client: Client, flights_engine: Engine, provider: httpx.Client
) -> None:
    job_id = await submit(client, "OO")
    before = await finished(client, job_id)
    run(flights_engine, DOUBT, job=job_id)
    status = await client.get(job_id)
    assert (status.undecided, status.deliveries["notices"]) == (4, {"done": 28, "undecided": 4})
    report = verify_job(flights_engine, local.registry, job_id, local.endpoints)
    assert [check.name for check in report.checks if not check.holds] == ["provider notices: undecided"]

    code, lines = await bulklane("undecided", job_id, "--json")
    listed = [json.loads(line) for line in lines]
    assert (code, [one["doubt"] for one in listed]) == (0, [1, 1, 1, 1])
    one = ("--effect", "notice", "--key", listed[0]["key"], "--doubt")
    code, lines = await bulklane("decide", job_id, "--verdict", "done", *one, "2")
    assert (code, "that is doubt 1" in lines[1]) == (1, True)
    assert await bulklane("decide", job_id, "--verdict", "done", *one, "1", "--who", "ann", "--why", "seen") == (
        0,
        ["1 decided: done"],
    )
    other = ("--effect", "notice", "--key", listed[1]["key"], "--doubt", "1")
    assert (await bulklane("decide", job_id, "--verdict", "give-up", *other))[0] == 0
    assert await bulklane("decide", job_id, "--verdict", "resend", "--all") == (0, ["2 decided: resend"])

    async def delivered() -> bool:
        return (await client.get(job_id)).deliveries["notices"] == {"done": 31, "given_up": 1}

    # the control loop has it delivered without the job's workflow, whose state stays
    await until_async(delivered, what="what is sent again is delivered")
    after = await client.get(job_id)
    assert (after.state, after.over_at, after.round) == (before.state, before.over_at, before.round)
    calls = provider.get("/calls", params={"prefix": f"{job_id}/"}).text.splitlines()
    assert len(calls) == 32  # the look-up knew them: nothing was called twice
    assert_balance(local, flights_engine, job_id)
