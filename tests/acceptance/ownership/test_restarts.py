"""A worker that is killed and comes back under the same name, again and again."""

import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.starter.local import LocalStack
from tests.support.counting import make_items
from tests.support.faults import without_workers
from tests.support.jobs import finished
from tests.support.ownership import assert_owned, count_up, latest_epoch
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

RESTARTS = 20


@pytest.mark.case("C54")
async def test_killed_twenty_times_under_one_name(local: LocalStack, client: Client, engine: Engine) -> None:
    """procrastinate-org/procrastinate#1518: the new process makes the dead one's items look alive."""
    tenant = make_items(engine, "restarts", 4_000, pause=0.01)
    assert "BULKLANE_PROCESS_NAME" in local.stack.workers["bulk-1"].environment
    with without_workers(local, "bulk-2"):
        job_id = await count_up(client, tenant, parallelism=2)
        for _ in range(RESTARTS):
            epoch = latest_epoch(engine, job_id)
            until(lambda epoch=epoch: latest_epoch(engine, job_id) > epoch, 30, what="taken over")  # type: ignore[misc]
            local.stack.kill_worker("bulk-1")
            local.stack.restart_worker("bulk-1")
        assert not (await client.get(job_id)).over
        status = await finished(client, job_id, seconds=120)
    assert (status.state, status.changed) == ("completed", 4_000)
    assert_owned(local, engine, job_id)
