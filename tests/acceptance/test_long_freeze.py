"""A freeze that runs for three heartbeat timeouts stays its first attempt: heartbeats go on beside the statement."""

import time

import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.starter.local import LocalStack
from tests.support.holding import held_at, waiting
from tests.support.jobs import assert_balance, finished, submit, temporal_client
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
HEARTBEAT_SECONDS = 2.0


async def test_a_long_freeze_stays_attempt_one(local: LocalStack, client: Client, flights_engine: Engine) -> None:
    temporal = await temporal_client()
    with held_at(flights_engine, "in freeze"):
        job_id = await submit(client, "F9")
        waiting(local, flights_engine, "bulk")
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 3 * HEARTBEAT_SECONDS, what="three heartbeat timeouts")
        described = await temporal.get_workflow_handle(job_id).describe()
        (freeze,) = described.raw_description.pending_activities
        assert (freeze.activity_type.name, freeze.attempt) == ("freeze", 1)
    assert (await finished(client, job_id)).state == "completed"
    assert_balance(local, flights_engine, job_id)
