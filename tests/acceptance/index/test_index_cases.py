"""What goes wrong between a sender and a search engine, on a real one: comes late, is refused, is too large."""

import asyncio
import random
from datetime import timedelta

import httpx
import pytest
from sqlalchemy import Engine

from bulklane.activities import index_delivery
from bulklane.activities.index_delivery import IndexDelivery
from bulklane.contracts.message import Verb, VerbMessage
from bulklane.database import search_index
from bulklane.operations.channel import Endpoint
from bulklane.operations.senders import search_index as sending
from bulklane.operations.senders.index_admin import IndexAdmin
from bulklane.operations.senders.index_reader import read_index
from bulklane.operations.senders.search_index import SearchIndexSender
from bulklane.stack.opensearch import OpenSearchNode
from bulklane.starter.accept import retry_job
from tests.database.jobs import look, opened
from tests.support.indexed import ALIAS, CHANNEL, REGISTRY, committed, drained, keys, make_parcels, refused, versions
from tests.support.jobs import run
from tests.support.search_proxy import SearchProxy
from tests.support.waiting import until_async

pytestmark = pytest.mark.anyio


def live(url: str, tenant: str = "acme") -> dict[str, int]:
    """By key: the version of each document that readers see."""
    found = read_index(Endpoint(url), ALIAS, tenant)
    return {key: one.version for key, one in found.items() if not one.deleted}


@pytest.mark.case("C04")
@pytest.mark.slow
async def test_a_deleted_record_stays_deleted_when_an_upsert_is_late(
    engine: Engine,
    node: OpenSearchNode,
    search_url: str,
    proxy: SearchProxy,
    sender: SearchIndexSender,
    proxied: SearchIndexSender,
    admin: IndexAdmin,
) -> None:
    """elastic/elasticsearch#101178: an upsert that comes after the engine has forgotten the delete."""
    # the engine's own memory of deletes is as good as none
    httpx.put(f"{search_url}/{ALIAS}/_settings", json={"index.gc_deletes": "0s"}, trust_env=False).raise_for_status()
    make_parcels(engine, 50)
    changed = committed(engine)
    proxy.hold()
    late = asyncio.create_task(drained(engine, changed, proxied))

    async def under_way() -> bool:
        return proxy.held > 0

    await until_async(under_way, what="the upsert is held")
    # its sender is taken for dead; the job's effects are delivered by another, and the records deleted by the next job
    await drained(engine, changed, sender)
    assert live(search_url) == versions(engine)
    await drained(engine, committed(engine, "remove_parcels"), sender)
    with engine.connect() as connection:
        now = search_index.now(connection)
    assert await admin.purge(await admin.present(), now - timedelta(days=7)) == 0
    await asyncio.to_thread(node.stop)
    await asyncio.to_thread(node.start)
    await asyncio.to_thread(node.wait_until_ready)
    assert node.url == search_url
    proxy.release()
    await late
    assert live(search_url) == {}
    hidden = httpx.get(f"{search_url}/{ALIAS}/_count", trust_env=False).json()["count"]
    assert (hidden, len(read_index(Endpoint(search_url), ALIAS, "acme"))) == (0, 50)


async def test_deleted_documents_are_purged_unless_the_record_is_there_again(
    engine: Engine, search_url: str, sender: SearchIndexSender, admin: IndexAdmin
) -> None:
    make_parcels(engine, 20)
    await drained(engine, committed(engine, "remove_parcels"), sender)
    make_parcels(engine, 5)
    run(engine, "UPDATE parcel SET row_version = 9")
    await drained(engine, committed(engine), sender)
    with engine.connect() as connection:
        now = search_index.now(connection)
    index = await admin.present()
    assert await admin.purge(index, now - timedelta(hours=1)) == 0
    assert await admin.purge(index, now + timedelta(seconds=1)) == 15
    assert live(search_url) == versions(engine)
    assert len(read_index(Endpoint(search_url), ALIAS, "acme")) == 5


def test_only_one_process_purges_at_a_time(engine: Engine) -> None:
    with engine.begin() as connection:
        assert search_index.claim_purge(connection, "parcels", every=60)
    with engine.begin() as connection:
        assert not search_index.claim_purge(connection, "parcels", every=60)
        assert search_index.claim_purge(connection, "parcels", every=0)


@pytest.mark.case("C31")
@pytest.mark.slow
async def test_each_item_of_a_bulk_answer_counts(
    engine: Engine, search_url: str, proxy: SearchProxy, proxied: SearchIndexSender
) -> None:
    """opensearch-project/opensearch-go#764: the answer is 200, and some of its items failed."""
    chance = random.Random(31)
    poison = keys(range(100, 5001, 100))

    def spoil(document: str) -> tuple[int, str] | None:
        if document in poison:
            return 400, "mapper_parsing_exception"
        return (429, "rejected_execution_exception") if chance.random() < 0.1 else None

    make_parcels(engine, 5000)
    job = committed(engine)
    proxy.spoil = spoil
    delivery = await drained(engine, job, proxied)
    assert (delivery.held, delivery.settled) == (None, 5000)
    expected = {key: version for key, version in versions(engine).items() if key not in poison}
    assert live(search_url) == expected
    assert refused(engine, job) == dict.fromkeys(poison, ("400", "mapper_parsing_exception"))
    # a retry sends those again, and only those
    assert look(engine, job).state == "completed_with_failures"
    message = VerbMessage("again", Verb.RETRY, "ann", "the mapping is put right")
    retried = retry_job(engine, job.job_id, message, tenant=None, of_round=1, small_max_records=100)
    assert (retried.records, retried.deliveries) == (0, len(poison))
    proxy.spoil, before = None, len(proxy.requests)
    await drained(engine, opened(engine, retried.job, "run-2", 2), proxied)
    assert live(search_url) == versions(engine)
    assert (len(proxy.requests) - before, refused(engine, job)) == (1, {})
    assert look(engine, job).state == "completed"


async def test_many_writers_on_a_short_write_queue(engine: Engine, search_url: str, sender: SearchIndexSender) -> None:
    tenants = [f"tenant-{n}" for n in range(10)]
    for n, tenant in enumerate(tenants):
        make_parcels(engine, 400, tenant, first=400 * n + 1)
    jobs = [committed(engine, tenant=tenant) for tenant in tenants]
    await asyncio.gather(*(drained(engine, job, sender) for job in jobs))
    found = {key: version for tenant in tenants for key, version in live(search_url, tenant).items()}
    assert found == versions(engine)


@pytest.mark.case("C50")
@pytest.mark.filterwarnings("ignore:Sending a large body")
async def test_one_document_too_large_is_named_and_its_neighbours_are_indexed(
    engine: Engine, search_url: str, proxy: SearchProxy, proxied: SearchIndexSender
) -> None:
    """open-metadata/OpenMetadata#15258: 413 for the whole request, resent unchanged."""
    proxy.limit = 1_000_000
    make_parcels(engine, 300)
    run(
        engine,
        """UPDATE parcel SET payload = repeat('x', CASE WHEN parcel % 100 = 7 THEN 1500000
           WHEN parcel % 20 = 3 THEN 900000 ELSE 2000 END)""",
    )
    job = committed(engine)
    await drained(engine, job, proxied)
    large = keys([7, 107, 207])
    assert live(search_url) == {key: version for key, version in versions(engine).items() if key not in large}
    assert {key: code for key, (code, _) in refused(engine, job).items()} == dict.fromkeys(large, "413")
    # the size that passes is learned, rather than found anew for each request
    assert proxy.too_large < 20


@pytest.mark.case("C51")
async def test_not_a_number_is_null_and_takes_nobody_with_it(
    engine: Engine, search_url: str, sender: SearchIndexSender
) -> None:
    """elastic/elasticsearch-py#486: NaN is no JSON, and the whole bulk body is refused."""
    make_parcels(engine, 3000)
    values = {1: "'NaN'", 1000: "'Infinity'", 2000: "'-Infinity'", 2999: "0.5"}
    for parcel, value in values.items():
        # numbers in jsonb are exact, and this one is no double
        deep = "jsonb_build_object('deep', jsonb_build_array(1e400 + 0.5, 1))"
        run(engine, f"UPDATE parcel SET weight = {value}, extra = {deep} WHERE parcel = {parcel}")
    job = committed(engine)
    await drained(engine, job, sender)
    assert (live(search_url), refused(engine, job)) == (versions(engine), {})
    weights: dict[int, float | None] = {}
    inner: list[object] = []
    for parcel in values:
        source = httpx.get(f"{search_url}/{ALIAS}/_doc/{parcel}", trust_env=False).json()["_source"]
        weights[parcel], inner = source["weight"], [*inner, source["extra"]["deep"]]
    assert (weights, inner) == ({1: None, 1000: None, 2000: None, 2999: 0.5}, [[None, 1]] * 4)


async def test_a_sender_that_was_frozen_sends_nothing_of_what_it_had_read(
    engine: Engine, search_url: str, sender: SearchIndexSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_parcels(engine, 10)
    job = committed(engine)
    with monkeypatch.context() as patched:
        patched.setattr(sending, "FRESH_SECONDS", -1.0)
        patched.setattr(index_delivery, "LONGEST_BACKOFF", 0.1)
        assert await IndexDelivery(engine, REGISTRY, job, CHANNEL, sender).send_some()
    assert live(search_url) == {}
    await drained(engine, job, sender)
    assert live(search_url) == versions(engine)


async def test_a_missing_or_blocked_index_holds_the_channel(
    engine: Engine, search_url: str, sender: SearchIndexSender
) -> None:
    make_parcels(engine, 10)
    job = committed(engine)
    with httpx.Client(base_url=search_url, trust_env=False) as http:
        http.put(f"/{ALIAS}/_settings", json={"index.blocks.write": True}).raise_for_status()
        blocked = await drained(engine, job, sender)
        assert "cluster_block_exception" in (blocked.held or "")
        http.delete(f"/{ALIAS}-v1/_alias/{ALIAS}").raise_for_status()
        missing = await drained(engine, job, sender)
        assert "404" in (missing.held or "") or "index_not_found" in (missing.held or "")
        assert (missing.settled, refused(engine, job)) == (0, {})
        http.put(f"/{ALIAS}-v1/_settings", json={"index.blocks.write": False}).raise_for_status()
        alias = {"add": {"index": f"{ALIAS}-v1", "alias": ALIAS, "filter": {"term": {"deleted": False}}}}
        http.post("/_aliases", json={"actions": [alias]}).raise_for_status()
    await drained(engine, job, sender)
    assert live(search_url) == versions(engine)
