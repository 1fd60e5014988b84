"""An index compared with its table: each kind of difference is found, told and repaired."""

import json
from collections.abc import Iterator

import httpx
import pytest
from opensearchpy import AsyncOpenSearch
from sqlalchemy import Engine
from typer.testing import CliRunner

from bulklane.operations.channel import Channel, Endpoint
from bulklane.operations.operation import IndexEffect, Operation, OperationError, Registry
from bulklane.operations.senders.index_admin import IndexAdmin
from bulklane.operations.senders.index_reader import create_index, read_index
from bulklane.operations.senders.search_index import SearchIndex, SearchIndexSender
from bulklane.starter.cli import app
from bulklane.starter.comparison import Comparison, Kind
from bulklane.starter.index_source import find_source
from bulklane.starter.reconcile import Reconciler
from tests.support.indexed import ALIAS, CHANNEL, MODULE, REGISTRY, committed, drained, make_parcels, versions
from tests.support.jobs import run
from tests.support.ledgers import AddToEntries, entries, make_entries

PLANTED = {
    "missing": "INSERT INTO parcel (parcel, tenant) VALUES (9000, 'acme')",
    "stale": "UPDATE parcel SET n = 7 WHERE parcel IN (3, 4)",
    "orphan": "DELETE FROM parcel WHERE parcel IN (10, 11, 12)",
}


async def compared(
    engine: Engine,
    search_url: str,
    admin: IndexAdmin,
    sender: SearchIndexSender,
    *,
    registry: Registry = REGISTRY,
    channel: str = CHANNEL,
    repair: bool = False,
    tenant: str | None = None,
) -> Comparison:
    """A comparison of the index behind the alias."""
    source = find_source(registry, channel, {channel: Endpoint(search_url)})
    index = await admin.present()
    return await Reconciler(engine, source, admin, sender.beside(index), index, tenant, repair).run()


@pytest.mark.anyio
async def test_each_kind_of_difference_is_found_and_repaired(
    engine: Engine, search_url: str, admin: IndexAdmin, sender: SearchIndexSender
) -> None:
    make_parcels(engine, 300)
    make_parcels(engine, 40, "other", first=1001)
    for tenant in ("acme", "other"):
        await drained(engine, committed(engine, tenant=tenant), sender)
    assert (await compared(engine, search_url, admin, sender)).equal
    for statement in PLANTED.values():
        run(engine, statement)
    found = await compared(engine, search_url, admin, sender)
    assert (found.rows, found.documents, found.equal) == (338, 340, False)
    assert found.left == {Kind.MISSING: 1, Kind.STALE: 2, Kind.ORPHAN: 3}
    assert {(kind, one.key) for kind, one, _ in found.kept} == {
        *((Kind.ORPHAN, key) for key in ("10", "11", "12")),
        *((Kind.STALE, key) for key in ("3", "4")),
        (Kind.MISSING, "9000"),
    }
    assert (await compared(engine, search_url, admin, sender, tenant="other")).equal
    repaired = await compared(engine, search_url, admin, sender, repair=True)
    assert (repaired.equal, repaired.repaired) == (True, found.left)
    assert (await compared(engine, search_url, admin, sender)).equal
    hidden = read_index(Endpoint(search_url), ALIAS, "acme")["10"]
    assert (hidden.deleted, hidden.version) == (True, 3)


@pytest.mark.anyio
async def test_a_document_ahead_of_its_row_is_told_and_left(
    engine: Engine, search_url: str, admin: IndexAdmin, sender: SearchIndexSender
) -> None:
    make_parcels(engine, 10)
    await drained(engine, committed(engine), sender)
    run(engine, "DELETE FROM parcel WHERE parcel = 5")
    make_parcels(engine, 1, first=5)
    found = await compared(engine, search_url, admin, sender, repair=True)
    assert [(kind, one.key, one.row, one.version) for kind, one, _ in found.kept] == [(Kind.AHEAD, "5", 1, 2)]


@pytest.mark.anyio
async def test_a_repair_that_the_index_refuses_is_named(
    engine: Engine, search_url: str, admin: IndexAdmin, sender: SearchIndexSender
) -> None:
    make_parcels(engine, 10)
    await drained(engine, committed(engine), sender)
    run(engine, f"UPDATE parcel SET n = {2**40} WHERE parcel = 5")
    found = await compared(engine, search_url, admin, sender, repair=True)
    assert [(kind, one.key) for kind, one, _ in found.kept] == [(Kind.REFUSED, "5")]
    assert "mapper_parsing_exception" in found.kept[0][2]


class IndexEntries(Operation):
    """Keys of two columns, which two tenants have alike."""

    name = "index_entries"
    records = AddToEntries.records
    effects = (IndexEffect("document", "entries", {"amount": entries.c.amount}),)


ENTRIES = Registry({"index_entries": IndexEntries()}, {"entries": Channel("entries", SearchIndex("entries"))})


@pytest.mark.anyio
async def test_tenants_with_the_same_keys_have_documents_of_their_own(
    engine: Engine, search: AsyncOpenSearch, search_url: str
) -> None:
    create_index(search_url, "entries", {"amount": {"type": "integer"}})
    admin, sender = IndexAdmin(search, "entries"), SearchIndexSender(search, "entries", is_alias=True)
    for tenant in ("acme", "Zoë", "zed"):
        make_entries(engine, 30, tenant)
    of_entries = {"registry": ENTRIES, "channel": "entries"}
    filled = await compared(engine, search_url, admin, sender, repair=True, **of_entries)  # type: ignore[arg-type]
    assert (filled.equal, filled.repaired) == (True, {Kind.MISSING: 90})
    again = await compared(engine, search_url, admin, sender, **of_entries)  # type: ignore[arg-type]
    assert (again.equal, again.documents) == (True, 90)
    assert [len(read_index(Endpoint(search_url), "entries", tenant)) for tenant in ("acme", "Zoë", "zed")] == [30] * 3


class Other(Operation):
    """Another table on the parcels' channel."""

    name = "other"
    records = AddToEntries.records
    effects = (IndexEffect("document", CHANNEL, {"amount": entries.c.amount}),)


def test_what_can_not_be_compared_is_refused_with_the_way_out() -> None:
    known = {CHANNEL: Endpoint("http://localhost:1")}
    with pytest.raises(OperationError, match="name one of the search channels"):
        find_source(REGISTRY, "nothing", known)
    with pytest.raises(OperationError, match="BULKLANE_CHANNELS__PARCELS__URL"):
        find_source(REGISTRY, "touch_parcels", {})
    operations: dict[str, Operation] = {**REGISTRY.operations, "other": Other()}
    with pytest.raises(OperationError, match="one document for each row of one table"):
        find_source(Registry(operations, REGISTRY.channels), CHANNEL, known)


@pytest.fixture
def command(database_url: str, search_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    """The command line, with the environment of this test's servers."""
    monkeypatch.setenv("BULKLANE_DATABASE_URL", database_url)
    monkeypatch.setenv("BULKLANE_OPERATIONS", MODULE)
    monkeypatch.setenv("BULKLANE_CHANNELS__PARCELS__URL", search_url)
    yield CliRunner()


def test_the_command_says_by_its_exit_code_whether_they_are_equal(
    engine: Engine, command: CliRunner, search_url: str
) -> None:
    make_parcels(engine, 7)
    differing = command.invoke(app, ["reconcile", "touch_parcels", "--json"])
    assert differing.exit_code == 1, differing.output
    told = json.loads(differing.stdout)
    assert (told["left"], told["records"][0]["key"]) == ({"missing": 7}, "1")
    assert command.invoke(app, ["reconcile", CHANNEL, "--repair"]).exit_code == 0
    assert command.invoke(app, ["reconcile", CHANNEL, "--tenant", "acme"]).exit_code == 0
    built = command.invoke(app, ["reindex", CHANNEL])
    assert (built.exit_code, built.stdout.splitlines()[-1]) == (0, "equal"), built.output
    assert sorted(httpx.get(f"{search_url}/_alias", trust_env=False).json()) == [f"{ALIAS}-v2"]
    assert {key: one.version for key, one in read_index(Endpoint(search_url), ALIAS, "acme").items()} == versions(
        engine
    )
    httpx.delete(f"{search_url}/{ALIAS}-v2", trust_env=False).raise_for_status()
    away = command.invoke(app, ["reconcile", CHANNEL])
    assert (away.exit_code, away.stderr.strip()) == (
        5,
        f"the search engine has no alias {ALIAS!r}: create the index first",
    )
