"""An index built anew while jobs write to it and people read it; killed in the middle, and before each stage."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from sqlalchemy import Engine

from bulklane.database.search_index import Stage
from bulklane.operations.channel import Endpoint
from bulklane.operations.senders.index_admin import IndexAdmin
from bulklane.operations.senders.index_reader import read_index
from bulklane.operations.senders.search_index import SearchIndexSender
from bulklane.starter import rebuild, reindex
from bulklane.starter.comparison import Comparison, Kind
from bulklane.starter.index_source import find_source
from bulklane.starter.rebuild import ReindexRunning
from bulklane.starter.reindex import Reindexer
from tests.support.indexed import ALIAS, CHANNEL, MODULE, REGISTRY, committed, drained, make_parcels, versions
from tests.support.jobs import run, scalar
from tests.support.waiting import until, until_async

pytestmark = pytest.mark.anyio
STILL = 300


class Killed(RuntimeError):
    """Stands for a process that ends without another word."""


def reindexer(engine: Engine, search_url: str, admin: IndexAdmin, sender: SearchIndexSender) -> Reindexer:
    """What the command runs."""
    source = find_source(REGISTRY, CHANNEL, {CHANNEL: Endpoint(search_url)})
    return Reindexer(engine, source, admin, sender, lambda _: None, lambda _what, _done: None, "ann")


def live(search_url: str) -> dict[str, int]:
    """By key: the version of each document that readers see."""
    found: dict[str, int] = {}
    for tenant in ("acme", "still"):
        documents = read_index(Endpoint(search_url), ALIAS, tenant)
        found |= {key: one.version for key, one in documents.items() if not one.deleted}
    return found


@asynccontextmanager
async def traffic(engine: Engine, search_url: str, sender: SearchIndexSender) -> AsyncIterator[list[int]]:
    """Jobs that change and delete acme's parcels, and readers who count the other tenant's; how many jobs and reads."""
    counts, stop = [0, 0], asyncio.Event()

    async def write() -> None:
        first = 1
        while not stop.is_set():
            ids = [str(n) for n in range(first, first + 150)]
            job = await asyncio.to_thread(committed, engine, selection={"ids": ids})
            await drained(engine, job, sender)
            gone = await asyncio.to_thread(committed, engine, "remove_parcels", selection={"ids": ids[:10]})
            await drained(engine, gone, sender)
            first = first + 150 if first < 4000 else 1
            counts[0] += 2

    async def read() -> None:
        async with httpx.AsyncClient(base_url=search_url, trust_env=False) as http:
            while not stop.is_set():
                body = {"query": {"term": {"tenant": "still"}}, "track_total_hits": True, "size": 0}
                answer = await http.post(f"/{ALIAS}/_search", json=body)
                assert (answer.status_code, answer.json()["hits"]["total"]["value"]) == (200, STILL), answer.text
                counts[1] += 1

    tasks = [asyncio.create_task(write()), asyncio.create_task(read())]
    try:
        yield counts
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def filled(engine: Engine, sender: SearchIndexSender, count: int) -> None:
    """Two tenants' parcels, all indexed."""
    make_parcels(engine, count)
    make_parcels(engine, STILL, "still", first=count + 1)
    for tenant in ("acme", "still"):
        await drained(engine, committed(engine, tenant=tenant), sender)


@pytest.mark.slow
async def test_killed_in_the_middle_while_jobs_go_on(
    engine: Engine, database_url: str, search_url: str, sender: SearchIndexSender, admin: IndexAdmin
) -> None:
    await filled(engine, sender, 6000)
    await admin.refresh(ALIAS)
    command = [sys.executable, "-m", "bulklane.starter.cli", "reindex", CHANNEL]
    environment = {
        **os.environ,
        "BULKLANE_DATABASE_URL": database_url,
        "BULKLANE_OPERATIONS": MODULE,
        "BULKLANE_CHANNELS__PARCELS__URL": search_url,
    }

    def written() -> int:
        return int(scalar(engine, "SELECT written FROM bulklane.search_index WHERE stage = 'filling'") or 0)

    async with traffic(engine, search_url, sender) as counts:
        first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        await asyncio.to_thread(until, written, 30, what="the new index is being filled")
        first.kill()
        first.wait()
        before = written()
        assert 0 < before < 6000 + STILL
        second = await asyncio.to_thread(
            subprocess.run, command, env=environment, capture_output=True, text=True, check=False, timeout=90
        )
        assert second.returncode == 0, second.stderr
        assert "goes on with the reindex to parcels-v2" in second.stderr
        assert f"{ALIAS} stands for {ALIAS}-v2" in second.stderr
        jobs = counts[0]

        async def went_on() -> bool:
            return counts[0] > jobs + 1

        await until_async(went_on, what="jobs write through the alias")
    assert min(counts) > 3
    assert await admin.present() == f"{ALIAS}-v2"
    assert not await admin.exists(f"{ALIAS}-v1")
    assert scalar(engine, "SELECT stage FROM bulklane.search_index") is None
    assert live(search_url) == versions(engine)


@pytest.mark.parametrize("stage", [Stage.FILLING, Stage.CHECKING, Stage.SWAPPING, Stage.ENDING])
async def test_killed_at_the_head_of_a_stage(
    engine: Engine,
    search_url: str,
    sender: SearchIndexSender,
    admin: IndexAdmin,
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reindex, "GRACE_SECONDS", 0.0)
    await filled(engine, sender, 50)
    await drained(engine, committed(engine, "remove_parcels", selection={"ids": ["1", "2"]}), sender)
    begin = Reindexer._begin

    async def begin_and_die(self: Reindexer, at: Stage) -> Stage:
        await begin(self, at)
        if at is stage:
            raise Killed
        return at

    with monkeypatch.context() as patched:
        patched.setattr(Reindexer, "_begin", begin_and_die)
        with pytest.raises(Killed):
            await reindexer(engine, search_url, admin, sender).run()
    # what happens meanwhile reaches both
    await drained(engine, committed(engine, selection={"ids": ["3", "4"]}), sender)
    await drained(engine, committed(engine, "remove_parcels", selection={"ids": ["4"]}), sender)
    assert (await reindexer(engine, search_url, admin, sender).run()).equal
    assert await admin.present() == f"{ALIAS}-v2"
    assert live(search_url) == versions(engine)
    hidden = [key for key, one in read_index(Endpoint(search_url), ALIAS, "acme").items() if one.deleted]
    assert sorted(hidden) == ["1", "2", "4"]


async def test_a_second_start_says_so(
    engine: Engine, search_url: str, sender: SearchIndexSender, admin: IndexAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "SILENT_SECONDS", 0.8)
    monkeypatch.setattr(rebuild, "BEAT_SECONDS", 0.1)
    await filled(engine, sender, 20)
    going_on = asyncio.Event()

    async def slow(*_: object) -> Comparison:
        await going_on.wait()
        return Comparison()

    one = reindexer(engine, search_url, admin, sender)
    monkeypatch.setattr(one, "_check", slow)
    running = asyncio.create_task(one.run())

    async def checking() -> bool:
        return bool(scalar(engine, "SELECT stage = 'checking' FROM bulklane.search_index"))

    await until_async(checking, what="it checks")
    with pytest.raises(ReindexRunning, match=r"is running since .* by ann and stands at checking"):
        await reindexer(engine, search_url, admin, sender).run()
    going_on.set()
    assert (await running).equal


@pytest.mark.parametrize("put_right", ["data", "mapping"])
async def test_a_mapping_that_refuses_documents_is_never_swapped_in(
    engine: Engine,
    search_url: str,
    sender: SearchIndexSender,
    admin: IndexAdmin,
    put_right: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reindex, "GRACE_SECONDS", 0.0)
    await filled(engine, sender, 20)
    run(engine, "UPDATE parcel SET weight = 1e300 WHERE parcel = 7")
    await drained(engine, committed(engine), sender)
    one = reindexer(engine, search_url, admin, sender)
    properties = {**(await mapping(search_url)), "weight": {"type": "half_float"}}
    object.__setattr__(one.source.index, "properties", properties)
    try:
        found = await one.run()
    finally:
        object.__setattr__(one.source.index, "properties", None)
    assert [(kind, differing.key) for kind, differing, _ in found.kept] == [(Kind.REFUSED, "7")]
    assert await admin.present() == f"{ALIAS}-v1"
    # jobs don't fail by what only the new index refuses
    await drained(engine, committed(engine), sender)
    assert live(search_url) == versions(engine)
    if put_right == "mapping":
        await reindexer(engine, search_url, admin, sender).abandon()
        assert not await admin.exists(f"{ALIAS}-v2")
    else:
        run(engine, "UPDATE parcel SET weight = 1 WHERE parcel = 7")
    assert (await reindexer(engine, search_url, admin, sender).run()).equal
    assert await admin.present() == f"{ALIAS}-v2"
    assert live(search_url) == versions(engine)


async def test_a_record_that_was_made_anew_under_an_older_version_is_there_again(
    engine: Engine, search_url: str, sender: SearchIndexSender, admin: IndexAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reindex, "GRACE_SECONDS", 0.0)
    await filled(engine, sender, 20)
    await drained(engine, committed(engine, "remove_parcels", selection={"ids": ["1", "2"]}), sender)
    make_parcels(engine, 1)
    assert (await reindexer(engine, search_url, admin, sender).run()).equal
    documents = read_index(Endpoint(search_url), ALIAS, "acme")
    assert [(documents[key].deleted, documents[key].version) for key in ("1", "2")] == [(False, 1), (True, 4)]


async def mapping(search_url: str) -> dict[str, object]:
    """The properties of the index behind the alias."""
    async with httpx.AsyncClient(base_url=search_url, trust_env=False) as http:
        found = next(iter((await http.get(f"/{ALIAS}/_mapping")).json().values()))
    properties: dict[str, object] = found["mappings"]["properties"]
    return properties
