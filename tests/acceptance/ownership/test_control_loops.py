"""Five control loops, two hundred jobs whose workflows were terminated, and kills among the loops."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.stack.processes import ChildProcess
from bulklane.starter.local import LocalStack
from tests.support.counting import make_items
from tests.support.faults import lines_of_logs, operator, without_workers
from tests.support.jobs import scalar
from tests.support.ownership import assert_owned, count_up, delivered, in_state
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ORPHANS = 200
LOOPS = [f"loop-{number}" for number in range(5)]
_IN_STATE = "SELECT count(*) FROM bulklane.job WHERE job_id LIKE 'orphan-%' AND state = :state"
_LEASES = "SELECT count(*) FROM bulklane.lease JOIN bulklane.job USING (job_no) WHERE job_id LIKE 'orphan-%'"


@contextmanager
def control_loops(local: LocalStack) -> Iterator[list[ChildProcess]]:
    """Five control workers."""
    for name in LOOPS:
        local.start_worker(name, "control")
    try:
        yield [local.stack.workers[name] for name in LOOPS]
    finally:
        for name in LOOPS:
            local.stack.stop_worker(name)


@pytest.mark.case("C55")
@pytest.mark.timeout(400)
async def test_two_hundred_orphans(local: LocalStack, client: Client, engine: Engine) -> None:
    """procrastinate-org/procrastinate#1408: the cleaner of stuck jobs gets stuck, or acts on an old list."""
    tenants = {f"orphan-{n}": make_items(engine, "orphan", 2) for n in range(ORPHANS)}
    with without_workers(local, "effects-reminders"):
        for job_id, tenant in tenants.items():
            await count_up(client, tenant, "count_up_holding", job_id=job_id)
        until(lambda: scalar(engine, _IN_STATE, state="delivering") == ORPHANS, 120, what="all have walked")
        assert scalar(engine, _LEASES) == ORPHANS
        with without_workers(local, "control"), control_loops(local) as loops:
            local.wait_until_serving(LOOPS)
            query = "WorkflowType = 'BulkJob' AND ExecutionStatus = 'Running' AND Operation = 'count_up_holding'"
            await operator("workflow", "terminate", "--query", query, "--yes", "--reason", "by mistake")
            killed = kill_while_they_settle(local, engine)
            until(lambda: scalar(engine, _IN_STATE, state="terminated") == ORPHANS, 60, what="all are settled")
            settled = settled_by(loops)
    assert scalar(engine, _LEASES) == 0
    assert set(settled.values()) == {1}
    # a loop that was killed may have settled one without saying so
    assert ORPHANS - killed <= len(settled) <= ORPHANS
    for job_id in tenants:
        await in_state(client, job_id, "terminated")
        await delivered(client, job_id, seconds=120)
        assert_owned(local, engine, job_id)


def kill_while_they_settle(local: LocalStack, engine: Engine) -> int:
    """Kill three of them, each after some more are settled, and start it again; how many."""
    for number, name in enumerate(LOOPS[:3]):
        enough = 20 + 50 * number
        until(lambda enough=enough: scalar(engine, _IN_STATE, state="terminated") >= enough, 60)  # type: ignore[misc]
        local.stack.kill_worker(name)
        local.stack.restart_worker(name)
    return 3


def settled_by(loops: list[ChildProcess]) -> Counter[str]:
    """By job: how often a loop said that it settled it."""
    return Counter(json.loads(line)["job_id"] for line in lines_of_logs(loops, '"event": "settled"'))
