"""A live walk through client, plain Temporal and worker processes."""

import pytest
from sqlalchemy import Engine

from bulklane import Client, InvalidRequest
from bulklane.starter.local import LocalStack
from bulklane.starter.verify import verify_job
from tests.support.jobs import assert_balance, finished, run, scalar, submit, temporal_client

pytestmark = pytest.mark.anyio


async def test_a_live_job_is_walked_delivered_and_verified(
    local: LocalStack, client: Client, flights_engine: Engine
) -> None:
    count = scalar(flights_engine, "SELECT count(*) FROM flights WHERE carrier = 'AS' AND origin <> 'ZZZ'")
    job_id = await submit(client, "AS", {"filter": {"field": "origin", "op": "!=", "value": "ZZZ"}, "live": True})
    status = await finished(client, job_id)
    assert (status.state, status.lane, status.live) == ("completed", "bulk", True)
    assert (status.total, status.changed, status.not_started) == (count, count, 0)
    assert_balance(local, flights_engine, job_id)
    own = "SELECT s.live FROM bulklane.job j JOIN bulklane.selection s USING (selection_no) WHERE j.job_id = :j"
    assert scalar(flights_engine, own, j=job_id) is True
    # the same record once more in one of its own transactions: the balance is against the audit, not our counters
    doubled = "INSERT INTO flight_audit (flight_id, carrier, old_scheduled_departure, new_scheduled_departure,"
    doubled += " transaction_id) SELECT flight_id, carrier, old_scheduled_departure, new_scheduled_departure,"
    doubled += " transaction_id FROM flight_audit WHERE carrier = 'AS' ORDER BY id DESC LIMIT 1"
    run(flights_engine, doubled)
    broken = [check.name for check in verify_job(flights_engine, local.registry, job_id, local.endpoints).checks
              if not check.holds]  # fmt: skip
    assert "records changed twice" in broken


async def test_a_service_starts_a_live_walk_itself(local: LocalStack, client: Client, flights_engine: Engine) -> None:
    temporal = await temporal_client()
    request = {
        "operation": "reschedule_flights",
        "tenant": "OO",
        "selection": {"all": True, "live": True},
        "parameters": {"minutes": 5},
    }
    assert await temporal.execute_workflow("BulkJob", request, id="plain-live", task_queue="jobs") == "completed"
    assert (await client.get("plain-live")).live
    assert_balance(local, flights_engine, "plain-live")


async def test_live_ids_are_refused(client: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"selection\.live"):
        await submit(client, "OO", {"ids": [1], "live": True})
