"""Deletes reach the index as surely as changes, whoever is killed in between."""

import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.operations.senders.index_admin import IndexAdmin
from bulklane.operations.senders.index_reader import read_index
from bulklane.operations.senders.search_index import SearchIndexSender, connect_search
from bulklane.starter.index_source import find_source
from bulklane.starter.local import LocalStack
from bulklane.starter.reconcile import Reconciler
from tests.support.counting import make_items
from tests.support.faults import without_workers
from tests.support.jobs import finished, scalar
from tests.support.nursery import nursery
from tests.support.ownership import count_up
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(400)]

ITEMS = 5_000
KILLS = 20
_PROGRESS = """
SELECT (SELECT coalesce(sum(changed), 0) FROM bulklane.chunk WHERE job_no = job.job_no)
     + (SELECT coalesce(sum(taken_to), 0) FROM bulklane.owed WHERE job_no = job.job_no)
FROM bulklane.job WHERE job_id = :j
"""


async def fill(local: LocalStack, engine: Engine, tenant: str) -> None:
    """Every item of the tenant into the index."""
    source = find_source(local.registry, "counts", local.endpoints)
    client = connect_search(source.endpoint, 30)
    try:
        admin = IndexAdmin(client, source.index.alias)
        index = await admin.present()
        sender = SearchIndexSender(client, index, is_alias=False)
        filled = await Reconciler(engine, source, admin, sender, index, tenant, repair=True).run()
        assert (filled.equal, filled.rows) == (True, ITEMS)
    finally:
        await client.close()


@pytest.mark.case("C36")
async def test_deletes_survive_twenty_kills_of_all_workers(local: LocalStack, client: Client, engine: Engine) -> None:
    """dotCMS/core#37276: upserts had a journal, deletes were kept in memory only."""
    tenant = make_items(engine, "deletes", ITEMS, pause=0.002)
    await fill(local, engine, tenant)

    def progress() -> int:
        return int(scalar(engine, _PROGRESS, j=job_id) or 0)

    with without_workers(local, *local.workers()), nursery(local) as workers:
        job_id = await count_up(client, tenant, "count_away")
        for _ in range(KILLS):
            before = progress()
            until(lambda before=before: progress() > before, 30, what="a chunk or a delivery further")  # type: ignore[misc]
            workers.again()
        assert progress() < 2 * ITEMS
        status = await finished(client, job_id, seconds=120)
    assert (status.state, status.changed, status.owed) == ("completed", ITEMS, 0)
    assert scalar(engine, "SELECT count(*) FROM counted WHERE tenant = :t", t=tenant) == 0
    documents = read_index(local.endpoints["counts"], "counted", tenant)
    assert (len(documents), [key for key, one in documents.items() if not one.deleted]) == (ITEMS, [])
