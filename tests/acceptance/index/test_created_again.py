"""A record that was deleted and created again with a row version that begins anew."""

import asyncio
from collections.abc import Sequence

import httpx
import pytest
from sqlalchemy import Engine

from bulklane.operations.channel import Endpoint
from bulklane.operations.sender import Answer, Document
from bulklane.operations.senders.index_admin import IndexAdmin
from bulklane.operations.senders.index_reader import read_index
from bulklane.operations.senders.search_index import SearchIndexSender, connect_search
from bulklane.starter.comparison import Kind
from tests.acceptance.index.test_index_cases import live
from tests.acceptance.index.test_reconcile import compared
from tests.support.indexed import ALIAS, committed, drained, make_parcels, refused, versions
from tests.support.jobs import run

pytestmark = pytest.mark.anyio


async def test_it_is_found_again_or_its_effect_is_refused_in_plain_sight(
    engine: Engine, search_url: str, sender: SearchIndexSender
) -> None:
    make_parcels(engine, 5)
    run(engine, "UPDATE parcel SET n = 1")
    await drained(engine, committed(engine, "remove_parcels"), sender)
    make_parcels(engine, 5)
    job = committed(engine)
    await drained(engine, job, sender)
    assert live(search_url).keys() | refused(engine, job).keys() == versions(engine).keys()
    assert {code for code, _ in refused(engine, job).values()} == {"409"}
    assert "a `deleted` document of version 4 stands there" in refused(engine, job)["1"][1]


async def test_a_record_that_is_deleted_meanwhile_is_done(
    engine: Engine, search_url: str, sender: SearchIndexSender
) -> None:
    make_parcels(engine, 3)
    await drained(engine, committed(engine), sender)
    job = committed(engine)

    class DeletedBeforeTheLook(SearchIndexSender):
        """The row is read, and then goes, before its document is written."""

        async def index(self, documents: Sequence[Document]) -> list[Answer]:
            if any(one.source is not None for one in documents):
                removing = await asyncio.to_thread(committed, engine, "remove_parcels")
                await drained(engine, removing, sender)
            return await super().index(documents)

    async with connect_search(Endpoint(search_url), 30) as client:
        await drained(engine, job, DeletedBeforeTheLook(client, ALIAS, is_alias=True))
    assert (live(search_url), refused(engine, job)) == ({}, {})


async def test_a_repair_brings_it_in(
    engine: Engine, search_url: str, admin: IndexAdmin, sender: SearchIndexSender
) -> None:
    httpx.put(f"{search_url}/{ALIAS}/_settings", json={"index.gc_deletes": "1s"}, trust_env=False).raise_for_status()
    make_parcels(engine, 5)
    run(engine, "UPDATE parcel SET n = 1")
    await drained(engine, committed(engine, "remove_parcels"), sender)
    make_parcels(engine, 4)
    told = await compared(engine, search_url, admin, sender)
    assert told.left == {Kind.HIDDEN: 4}
    repaired = await compared(engine, search_url, admin, sender, repair=True)
    assert (repaired.equal, repaired.repaired) == (True, {Kind.HIDDEN: 4})
    assert live(search_url) == versions(engine)
    assert read_index(Endpoint(search_url), ALIAS, "acme")["5"].deleted


async def test_a_deleted_document_that_was_written_since_is_not_removed(
    engine: Engine, search_url: str, admin: IndexAdmin, sender: SearchIndexSender
) -> None:
    make_parcels(engine, 1)
    await drained(engine, committed(engine, "remove_parcels"), sender)
    index = await admin.present()
    marks = await admin.deleted_marks(index, ["1", "2"])
    await sender.index([Document("1", "acme", 9, None)])
    assert await admin.remove(index, list(marks.values())) == 0
    assert (await admin.look(index, ["1"]))["1"] == (9, True)
