"""Everything through PgBouncer in transaction mode."""

import subprocess
import sys

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from bulklane import Client
from bulklane.database.engine import connect_engine
from bulklane.database.migrate import differences, migrate
from bulklane.starter.local import LocalStack
from bulklane.starter.settings import StarterSettings
from tests.support.counting import FAMILY, items_of, make_items
from tests.support.faults import held_items, inside_a_chunk, operator, pooler, reset_workflow, swapped
from tests.support.jobs import finished
from tests.support.ownership import (
    assert_owned,
    count_up,
    delivered,
    in_state,
    latest_epoch,
    overtaken,
    refused,
)

pytestmark = pytest.mark.anyio

# holds an uncommitted lease and a row until it is killed
_CLIENT = """
import sys, time
from sqlalchemy import text
from bulklane.database import lease
from bulklane.database.engine import connect_engine
url, resource, item = sys.argv[1:]
with connect_engine(url, role="killed", pool_size=1).begin() as connection:
    lease.acquire(connection, [resource], job_no=0, round_no=1)
    connection.execute(text("SELECT 1 FROM counted WHERE item = :i FOR UPDATE"), {"i": int(item)})
    print("holds", flush=True)
    time.sleep(600)
"""


@pytest.mark.case("C53")
def test_migrations(local: LocalStack) -> None:
    """goauthentik/authentik#23876: a session's lock behind a transaction pooler."""
    with pooler(local.addresses.database_url) as url:
        outside = create_engine(url, isolation_level="AUTOCOMMIT", connect_args={"prepare_threshold": None})
        with outside.connect() as connection:
            connection.execute(text("CREATE DATABASE migrated_through_a_pooler"))
        outside.dispose()
        made = make_url(url).set(database="migrated_through_a_pooler").render_as_string()
        engine = connect_engine(made, role="test", pool_size=3)
        migrate(engine)
        migrate(engine)
        with engine.connect() as connection:
            assert differences(connection) == []
        engine.dispose()


@pytest.mark.slow
@pytest.mark.case("C53")
async def test_exclusivity(local: LocalStack, engine: Engine) -> None:
    with (
        pooler(local.addresses.database_url) as url,
        swapped(local, *local.workers(), environment={"BULKLANE_DATABASE_URL": url}),
    ):
        async with Client.connect(StarterSettings(database_url=url)) as client:
            await whole_job(local, client, engine)
            await killed_client(local, client, engine, url)
            await terminated(local, client, engine)


async def whole_job(local: LocalStack, client: Client, engine: Engine) -> None:
    """A conflict, a worker killed inside a chunk, and a reset."""
    tenant = make_items(engine, "pooled", 2_000)
    with held_items(engine, tenant, 0.6) as release:
        job_id = await count_up(client, tenant, parallelism=2)
        victim = inside_a_chunk(local, engine)
        await refused(client, tenant, job_id)
        epoch = latest_epoch(engine, job_id)
        victim.kill()
        overtaken(engine, job_id, epoch)
        epoch = latest_epoch(engine, job_id)
        await reset_workflow(job_id, "first")
        overtaken(engine, job_id, epoch)
        release()
    assert (await finished(client, job_id)).changed == 2_000
    assert_owned(local, engine, job_id)


async def killed_client(local: LocalStack, client: Client, engine: Engine, url: str) -> None:
    """What a client held that was killed is free."""
    tenant = make_items(engine, "pooled-killed", 500)
    words = [sys.executable, "-c", _CLIENT, url, f"{FAMILY}:{tenant}", str(items_of(tenant)[100])]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holds\n"
        process.kill()
    job_id = await count_up(client, tenant)
    assert (await finished(client, job_id, seconds=60)).changed == 500
    assert_owned(local, engine, job_id)


async def terminated(local: LocalStack, client: Client, engine: Engine) -> None:
    """A terminated job's lease is free within the limit."""
    tenant = make_items(engine, "pooled-end", 500)
    with held_items(engine, tenant, 0.5):
        job_id = await count_up(client, tenant)
        inside_a_chunk(local, engine)
        await operator("workflow", "terminate", "--workflow-id", job_id)
        await in_state(client, job_id, "terminated", seconds=60)
    await delivered(client, job_id)
    assert_owned(local, engine, job_id)
