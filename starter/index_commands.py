"""The commands that keep a search index true to its table."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bulklane.starter.complaints import complaints
from bulklane.starter.options import DEFAULT_FOLDER, AsJson, Folder, Who

# What a command needs is imported when it runs: `--help` answers at once, and without any server's library.
if TYPE_CHECKING:
    from bulklane.operations.senders.index_admin import IndexAdmin
    from bulklane.operations.senders.search_index import SearchIndexSender
    from bulklane.starter.client import Client
    from bulklane.starter.comparison import Comparison
    from bulklane.starter.index_source import IndexSource

Name = Annotated[
    str, typer.Argument(metavar="OPERATION_OR_CHANNEL", help="A search channel, or an operation that indexes on one.")
]


def reconcile(
    name: Name,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write what is missing or stale, hide what is orphaned.")
    ] = False,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's records.")] = None,
    as_json: AsJson = False,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Compare a search index with its table. Exit code 0: they are equal; 1: they differ still."""
    with complaints():
        _finish(asyncio.run(_reconcile(folder, name, tenant, repair=repair)), as_json=as_json)


def reindex(
    name: Name,
    keep_old: Annotated[bool, typer.Option("--keep-old", help="Don't delete the old index.")] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Give up the one that is under way.")] = False,
    who: Who = None,
    as_json: AsJson = False,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Build a search index anew from its table while jobs go on, and put it behind the alias.

    After a kill the same command goes on where it stopped. Exit code 0: done; 1: something differs still, and where the
    new index refuses documents it isn't swapped in; 3: it runs already.
    """
    with complaints():
        compared = asyncio.run(_reindex(folder, name, who, keep_old=keep_old, abandon=abandon))
        if compared is not None:
            _finish(compared, as_json=as_json)


async def _reconcile(folder: Path, name: str, tenant: str | None, *, repair: bool) -> "Comparison":
    from bulklane.starter.index_show import Bar
    from bulklane.starter.reconcile import Reconciler

    async with _index(folder, name) as (client, source, admin, sender):
        if tenant is not None:
            source.records.tenant_value(tenant)
        index = await admin.present()
        with Bar() as bar:
            return await Reconciler(
                client.engine,
                source,
                admin,
                sender.beside(index),
                index,
                tenant,
                repair,
                lambda seen: bar.show(f"compares {index}", seen.rows),
            ).run()


async def _reindex(folder: Path, name: str, who: str | None, *, keep_old: bool, abandon: bool) -> "Comparison | None":
    from bulklane.starter.index_show import Bar
    from bulklane.starter.reindex import Reindexer

    async with _index(folder, name) as (client, source, admin, sender):
        with Bar() as bar:
            by = client.who if who is None else who
            reindexer = Reindexer(client.engine, source, admin, sender, bar.say, bar.show, by, keep_old)
            return await (reindexer.abandon() if abandon else reindexer.run())


@asynccontextmanager
async def _index(folder: Path, name: str) -> "AsyncIterator[tuple[Client, IndexSource, IndexAdmin, SearchIndexSender]]":
    from opensearchpy.exceptions import OpenSearchException

    from bulklane.operations.senders.index_admin import IndexAdmin, IndexBusy, IndexMissing
    from bulklane.operations.senders.search_index import SearchIndexSender, connect_search
    from bulklane.starter.complaints import Unavailable, first_line
    from bulklane.starter.connect import connected
    from bulklane.starter.index_source import find_source
    from bulklane.starter.settings import ChannelsSettings

    async with connected(folder, operations=True) as client:
        source = find_source(client.registry, name, ChannelsSettings().endpoints())
        search = connect_search(source.endpoint, source.index.request_seconds)
        try:
            alias = source.index.alias
            yield client, source, IndexAdmin(search, alias), SearchIndexSender(search, alias, is_alias=True)
        except (IndexMissing, IndexBusy) as error:
            raise Unavailable(str(error)) from error
        except OpenSearchException as error:
            told = f"{type(error).__name__}: {getattr(error, 'error', '') or first_line(error)}"
            raise Unavailable(f"the search engine of the channel {source.channel!r} can't be used: {told}") from error
        finally:
            await search.close()


def _finish(compared: "Comparison", *, as_json: bool) -> None:
    from bulklane.starter.index_show import comparison_json, comparison_lines
    from bulklane.starter.show import as_json as json_line
    from bulklane.starter.show import make_console

    console = make_console()
    if as_json:
        console.print(json_line(comparison_json(compared)))
    else:
        for line in comparison_lines(compared):
            console.print(line)
    if not compared.equal:
        raise typer.Exit(1)
