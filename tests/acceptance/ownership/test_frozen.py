"""Processes that freeze in the middle of a transaction, and wake when somebody else has taken over."""

from contextlib import ExitStack

import pytest
from sqlalchemy import Engine, text

from bulklane import Client
from bulklane.starter.local import LocalStack
from tests.support.counting import make_items
from tests.support.faults import (
    THE_JOB,
    frozen,
    frozen_between_chunks,
    held_items,
    inside_a_chunk,
    operator,
    swapped,
    waiting_workers,
    walker_of,
)
from tests.support.jobs import finished, scalar
from tests.support.ownership import (
    assert_owned,
    changes,
    count_up,
    delivered,
    holder,
    in_state,
    latest_epoch,
    overtaken,
    refused,
)
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

LOG = 100_000  # characters: all since its start
_HOLD_JOB = text("SELECT 1 FROM bulklane.job WHERE job_id = :j FOR UPDATE")


@pytest.mark.case("C26")
async def test_a_frozen_bulk_worker(local: LocalStack, client: Client, engine: Engine) -> None:
    """rails/solid_queue#761: it wakes after the takeover; here even after the job, when another one owns the items."""
    tenant = make_items(engine, "frozen", 2_000)
    with ExitStack() as stack:
        release = stack.enter_context(held_items(engine, tenant, 0.5))
        job_id = await count_up(client, tenant)
        victim = inside_a_chunk(local, engine)
        epoch = latest_epoch(engine, job_id)
        with frozen(victim):
            overtaken(engine, job_id, epoch)
            release()
            await finished(client, job_id)
            # it is held in the first chunk of both its ranges, so that nothing of it is changed
            holding = stack.enter_context(held_items(engine, tenant, 0.0, 0.5))
            following = await count_up(client, tenant, parallelism=2)
            until(lambda: waiting_workers(local, engine, "bulk"), what="the next job is in its first chunk")
            before = (changes(engine, tenant), latest_epoch(engine, job_id))
        # its one slot is free again: the frozen attempt is over
        until(lambda: victim in waiting_workers(local, engine, "bulk"), what="the woken worker walks for the next job")
        assert (changes(engine, tenant), latest_epoch(engine, job_id)) == before
        await refused(client, tenant, following)
        holding()
    await finished(client, following)
    assert_owned(local, engine, job_id)
    assert_owned(local, engine, following)


@pytest.mark.slow
@pytest.mark.case("C26")
async def test_a_bulk_worker_frozen_between_two_chunks(local: LocalStack, client: Client, engine: Engine) -> None:
    """Its sessions outlive the freeze: what it does next is up to the gate."""
    tenant = make_items(engine, "between", 10_000, pause=0.0004)
    with swapped(local, "control", environment={"BULKLANE_SEGMENT": "60"}):  # so that it would go on when it wakes
        job_id = await count_up(client, tenant, "recount")
        until(lambda: changes(engine, tenant) > 0, what="it walks")
        victim = await walker_of(local, job_id)
        with frozen_between_chunks(engine, victim):
            overtaken(engine, job_id, latest_epoch(engine, job_id))
            moved = changes(engine, tenant)
            until(lambda: changes(engine, tenant) > moved, what="the later attempt moves on")
        assert (await finished(client, job_id)).changed == 10_000
    assert_owned(local, engine, job_id)


@pytest.mark.slow
@pytest.mark.case("C26")
async def test_a_frozen_control_loop(local: LocalStack, client: Client, engine: Engine) -> None:
    """Frozen while it settles a job; another one settles it, and the items go to a new job."""
    tenant = make_items(engine, "frozen-loop", 500)
    quick = {"BULKLANE_SHIFT_STATEMENT_TIMEOUT": "2"}  # so that the frozen transaction ends after 7 s
    with swapped(local, "control", environment=quick), ExitStack() as stack:
        local.start_worker("second-control", "control", quick)
        stack.callback(local.stack.stop_worker, "second-control")
        local.wait_until_serving(["second-control"])
        row = stack.enter_context(engine.connect())
        holding = stack.enter_context(held_items(engine, tenant, 0.0))
        job_id = await count_up(client, tenant)
        inside_a_chunk(local, engine)
        row.execute(_HOLD_JOB, {"j": job_id})
        await operator("workflow", "terminate", "--workflow-id", job_id)
        victim = until(lambda: waiting_workers(local, engine, "control", THE_JOB), 30, what="settling")[0]
        with frozen(victim):
            row.rollback()
            await in_state(client, job_id, "terminated", seconds=60)
            following = await count_up(client, tenant)
            said = victim.tail_of_log(LOG)
        # it hears a wish again: its loop goes round
        await client.pause(following)
        until(lambda: victim.tail_of_log(LOG) != said, what="the woken loop says that its step failed")
        await in_state(client, following, "paused")
        assert holder(engine, tenant) == following
        assert '"settled"' not in victim.tail_of_log(LOG)
        await client.resume(following)
        holding()
        await finished(client, following)
    await delivered(client, job_id)
    assert scalar(engine, "SELECT round FROM bulklane.job WHERE job_id = :j", j=job_id) == 1
    assert_owned(local, engine, job_id)
    assert_owned(local, engine, following)
