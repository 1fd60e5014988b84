"""A worker that is killed and comes back under the same name, again and again."""

import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.starter.local import LocalStack
from tests.support.counting import make_items
from tests.support.faults import without_workers
from tests.support.jobs import finished
from tests.support.ownership import assert_owned, changes, count_up, latest_epoch
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(400)]

RESTARTS = 20


@pytest.mark.case("C54")
async def test_killed_twenty_times_under_one_name(local: LocalStack, client: Client, engine: Engine) -> None:
    """procrastinate-org/procrastinate#1518: the new process makes the dead one's items look alive."""
    tenant = make_items(engine, "restarts", 8_000, pause=0.002)
    assert "BULKLANE_PROCESS_NAME" in local.stack.workers["bulk-1"].environment
    with without_workers(local, "bulk-2"):
        job_id = await count_up(client, tenant, parallelism=2)
        for _ in range(RESTARTS):
            moved_on_since(engine, job_id, tenant, latest_epoch(engine, job_id), changes(engine, tenant))
            local.stack.kill_worker("bulk-1")
            local.stack.restart_worker("bulk-1")
        assert (await client.get(job_id)).state == "walking"
        status = await finished(client, job_id, seconds=150)
    assert (status.state, status.changed) == ("completed", 8_000)
    assert_owned(local, engine, job_id)


def moved_on_since(engine: Engine, job_id: str, tenant: str, epoch: int, changed: int) -> None:
    """A later attempt has taken a range, and records are changed since."""
    until(
        lambda: latest_epoch(engine, job_id) > epoch and changes(engine, tenant) > changed,
        30,
        what="taken over, and a chunk further",
    )
